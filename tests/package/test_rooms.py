"""The layout: rooms that import downwards only, and a public surface that is whole."""

import ast
import inspect
import sys
import typing
from pathlib import Path

import pytest

import beamtree

PACKAGE = Path(beamtree.__file__).parent

# Each may import from those before it. CONTRIBUTING.md says what each is for.
ROOMS = [
    "printable",
    "errors",
    "files",
    "data",
    "pytorch",
    "trees",
    "parts",
    "kernels",
    "engine",
    "graphs",
    "recursion",
    "saving",
    "nn",
    "zoo",
    "classifier",
    "training",
    "paper",
    "compare",
    "explorer",
    "cli",
]
OUTSIDE = {"__init__", "__main__", "moved"}  # the public names, the command line, the old names


def imports(text: str, place: str) -> list[str]:
    """The rooms that the module imports from anywhere in it, functions and annotations included."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{place} imports by a relative name"
            if node.module == "beamtree":
                found += [alias.name for alias in node.names]
            elif (node.module or "").startswith("beamtree."):
                found.append(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found += [alias.name.split(".")[1] for alias in node.names if alias.name.startswith("beamtree.")]
    return found


def upward(text: str, place: str, room: str) -> list[str]:
    allowed = set(ROOMS[: ROOMS.index(room) + 1])
    return [f"{place} imports {other}" for other in imports(text, place) if other not in allowed]


def test_rooms_import_downwards_only() -> None:
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        room = place.parts[0].removesuffix(".py")
        if room not in OUTSIDE:
            wrong += upward(path.read_text(), str(place), room)
    assert not wrong, "\n".join(wrong)


def test_every_room_is_in_the_list_and_in_contributing() -> None:
    there = {
        path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert there == set(ROOMS) | OUTSIDE
    page = (PACKAGE.parent / "CONTRIBUTING.md").read_text()
    lines = page.split("### All packages")[1].split("\n## ")[0].splitlines()
    places = [place for line in lines if line.startswith("| `") for place in line.split("|")[1].split(",")]
    told = [place.strip(" `/").removesuffix(".py") for place in places]
    assert told == [*ROOMS, "moved"]


@pytest.mark.parametrize(
    "line",
    [
        "from beamtree.nn.encoder import BeamTreeEncoder",
        "import beamtree.nn.encoder",
        "from beamtree import recursion",
        "def f():\n    from beamtree.graphs import step_graphs",
    ],
)
def test_an_import_upwards_would_be_seen(line: str) -> None:
    assert upward(line, "engine/search.py", "engine")
    assert not upward(line, "zoo/crvnn.py", "zoo")


def test_every_type_that_a_public_call_returns_is_public() -> None:
    public = {getattr(beamtree, name) for name in beamtree.__all__}
    hidden = []
    for name in beamtree.__all__:
        thing = getattr(beamtree, name)
        calls = {name: thing} if inspect.isfunction(thing) else dict(vars(thing))
        for call, member in calls.items():
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if call.startswith("_") or not inspect.isfunction(function):
                continue
            returned = typing.get_type_hints(function).get("return")
            for kind in _classes(returned):
                if kind.__module__.startswith("beamtree.") and kind not in public:
                    hidden.append(f"{name}.{call} returns {kind.__module__}.{kind.__name__}")
    assert not hidden, "\n".join(hidden)


def _classes(annotation: typing.Any) -> list[type]:
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return [annotation]
    return [kind for part in typing.get_args(annotation) for kind in _classes(part)]


def test_a_star_import_brings_what_is_listed() -> None:
    found: dict[str, object] = {}
    exec("from beamtree import *", found)
    assert set(beamtree.__all__) <= found.keys()


def test_layers_can_be_imported_from_their_room() -> None:
    import beamtree.nn

    for name in beamtree.nn.__all__:
        assert getattr(beamtree.nn, name) is getattr(beamtree, name)


def test_an_old_name_is_the_module_itself_not_a_copy() -> None:
    import beamtree.nn.encoder
    import beamtree.zoo.crvnn

    old_encoder = __import__("beamtree.encoder", fromlist=["*"])
    old_crvnn = __import__("beamtree.rivals.crvnn", fromlist=["*"])
    assert old_encoder is beamtree.nn.encoder
    assert old_crvnn is beamtree.zoo.crvnn
    assert beamtree.nn.encoder.__spec__.name == "beamtree.nn.encoder"


def test_every_old_name_leads_somewhere() -> None:
    from beamtree.moved import MOVED

    for old in MOVED:
        __import__(f"beamtree.{old}")


def test_the_old_module_of_classifiers_has_both_the_model_and_its_folder() -> None:
    from beamtree.classifier import model, model_folder

    old = __import__("beamtree.model", fromlist=["*"])
    assert old.Prediction is beamtree.Prediction
    for name in ("ModelSettings", "TreeClassifier", "check_model", "create_model"):
        assert getattr(old, name) is getattr(model, name)
    for name in ("PRETRAINED", "find_model", "load_model", "save_model", "shipped_models"):
        assert getattr(old, name) is getattr(model_folder, name)


@pytest.mark.parametrize("name", ["crvnn_step", "by_name", "naive", "judges"])
def test_what_was_among_the_rivals_is_never_loaded_twice(name: str) -> None:
    old = __import__(f"beamtree.rivals.{name}", fromlist=["*"])
    assert not old.__name__.startswith("beamtree.rivals")
    assert old is sys.modules[old.__name__]


def test_old_names_are_attributes_as_they_were_and_a_wrong_one_is_not() -> None:
    assert beamtree.encoder.BeamTreeEncoder is beamtree.BeamTreeEncoder
    assert beamtree.rivals is sys.modules["beamtree.zoo"]
    with pytest.raises(AttributeError, match="no attribute 'decoder'"):
        _ = beamtree.decoder
    with pytest.raises(ModuleNotFoundError):
        __import__("beamtree.rivals.nothing")


def test_a_person_who_explores_sees_the_public_names() -> None:
    assert set(dir(beamtree)) == {*beamtree.__all__, "__version__"}
