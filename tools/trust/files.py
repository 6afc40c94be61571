"""Hostile files: damaged models, recipes, checkpoints and run folders must load or give a one-line error.

The error must be a BeamtreeError that names the file. Nothing may hang, run code or take more than a bounded
amount of memory.
"""

import json
import os
import random
import resource
import signal
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import beamtree
from beamtree import BeamTreeEncoder
from beamtree.classifier.model import ModelSettings, create_model
from beamtree.classifier.model_folder import load_model, save_model
from beamtree.data.task import find_task
from beamtree.errors import BeamtreeError
from beamtree.files.tensors import load_tensors, save_tensors
from beamtree.paper.report import build_report, to_html, to_markdown
from beamtree.printable import printable
from beamtree.training.checkpoint import (
    Position,
    load_checkpoint,
    random_state,
    save_checkpoint,
    set_random_state,
)
from beamtree.training.ranger import Ranger
from beamtree.training.recipe import TrainingSettings, load_recipe
from beamtree.training.schedule import Schedule
from tools.trust import RECIPE, Tally
from tools.trust.spoil import (
    NAMES,
    hostile_safetensors,
    hostile_value,
    replant,
    spoil_bytes,
    spoil_json,
    spoil_place,
)

SHORT = {"cases": 40}
SECONDS = 10  # limit for one case
MEMORY = 300 << 20  # bytes that the whole check may add to the peak


@dataclass(frozen=True)
class Kind:
    """One kind of files: `make` writes a valid set of them to a folder, `load` reads it."""

    name: str
    make: Callable[[Path], object]
    load: Callable[[Path], object]


def run(folder: Path, *, cases: int = 600, seed: int = 0) -> list[Tally]:
    os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = "64"
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    draw = random.Random(seed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    tallies = []
    with _bounded_memory():
        for kind in KINDS:
            place = folder / kind.name.replace(" ", "-")
            replant({}, place)
            kind.make(place)
            tallies.append(_fuzz(kind, place, draw, cases))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    memory = Tally(f"peak memory added, {grown / 2**20:.0f} MiB")
    memory.note(grown < MEMORY, f"{grown:,} bytes")
    code = Tally("code in files was not run")
    code.note(not (folder / "executed").exists(), "a file named executed was made")
    print(memory, code, sep="\n", flush=True)
    return [*tallies, memory, code]


def _fuzz(kind: Kind, place: Path, draw: random.Random, cases: int) -> Tally:
    tally = Tally(f"fuzzed {kind.name}")
    good = {path.name: path.read_bytes() for path in place.iterdir() if path.suffix != ".md"}
    kind.load(place)
    loaded = 0
    for _ in range(cases):
        replant(good, place)
        what = spoil(draw, good, place)
        problem = None
        try:
            with _limited_time():
                kind.load(place)
            loaded += 1
        except BeamtreeError as error:
            text = str(error)
            if not any(name in text for name in (place.name, *good)):
                problem = f"does not name the file: {text[:300]}"
            elif printable(text) != text or len(text) > 1200:
                problem = f"is not one printable line: {text[:300]!r}"
        except (Exception, _Late) as error:
            problem = f"{type(error).__name__}: {str(error)[:300]}"
        tally.note(problem is None, f"{what}: {problem}")
    print(f"{tally}; {loaded:,} loaded, {cases - loaded - len(tally.failures):,} refused", flush=True)
    return tally


def spoil(draw: random.Random, good: dict[str, bytes], place: Path) -> str:
    """Damage a file in the folder: its bytes, its content, or the whole file. Returns its name."""
    name = draw.choice(sorted(good))
    path = place / name
    match draw.randrange(4):
        case 0:
            path.write_bytes(spoil_bytes(draw, good[name]))
        case 1:
            spoil_place(draw, path)
        case _:
            _spoil_content(draw, path)
    return name


def _spoil_content(draw: random.Random, path: Path) -> None:
    """Damage the content according to the type of file."""
    match path.suffix:
        case ".safetensors" if draw.random() < 0.5:
            path.write_bytes(hostile_safetensors(draw))
        case ".safetensors":
            _spoil_tensors(draw, path)
        case ".json":
            path.write_text(_spoilt(draw, path.read_bytes()))
        case ".jsonl":
            lines = path.read_bytes().splitlines()
            place = draw.randrange(len(lines))
            lines[place] = _spoilt(draw, lines[place]).encode()
            path.write_bytes(b"\n".join(lines))
        case ".toml" if draw.random() < 0.3 and path.with_name("base.toml").exists():
            names = [*NAMES, "recipe.toml", "base.toml", "/dev/zero", "..", "/dev/stdin"]
            path.with_name("recipe.toml").write_text(f"extends = {json.dumps(draw.choice(names))}\n")
        case ".toml":
            table = spoil_json(draw, tomllib.loads(path.read_text()))
            lines = [f"{json.dumps(key)} = {_toml(value)}\n".encode() for key, value in table.items()]
            path.write_bytes(b"".join(lines))


def _spoil_tensors(draw: random.Random, path: Path) -> None:
    """Change tensors or notes and write a valid checksum."""
    tensors, notes = load_tensors(path)
    name = draw.choice(sorted(tensors))
    match draw.randrange(8):
        case 0:
            del tensors[name]
        case 1:
            tensors[draw.choice(NAMES[:-1]).replace("\0", "") or "more"] = torch.zeros(2)
        case 2:
            tensors[name] = tensors[name].reshape(-1)[:-1].clone()
        case 3:
            kinds = [torch.float64, torch.float16, torch.int64, torch.bool, torch.uint8]
            tensors[name] = tensors[name].to(draw.choice(kinds))
        case 4:
            tensors[name] = torch.zeros(draw.choice([(0,), (), (1, 1, 1), (3, 3), (100_000,)]))
        case 5:
            if tensors[name].is_floating_point():
                tensors[name].view(-1)[0] = draw.choice([float("nan"), float("inf"), 3e38])
        case 6:
            notes = hostile_value(draw)
        case _:
            notes = spoil_json(draw, notes or {"epoch": 1})
    try:
        save_tensors(path, tensors, notes)
    except ValueError:  # JSON cannot hold such a number
        save_tensors(path, tensors, {})


def _spoilt(draw: random.Random, content: bytes) -> str:
    if draw.randrange(20) == 0:
        swelling = "[" + "[]," * draw.choice([1_000_000, 5_000_000]) + "0]"
        texts = ["[" * 100_000, '["a", ' * 50_000, "1" * 100_000, "{}", "[]", "null", '"x"', swelling]
        return draw.choice(texts)
    value = json.loads(content)
    if isinstance(value, list) and draw.randrange(10) == 0:
        return json.dumps([*map(str, range(200_000)), "1"])
    try:
        return json.dumps(spoil_json(draw, value))
    except ValueError:
        return "9" * 6000


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, int) and not isinstance(value, bool) and value > 2**70:
        return hex(value)  # not subject to Python's limit on digits
    return json.dumps(value).replace("Infinity", "inf").replace("NaN", "nan")


@contextmanager
def _naming(place: Path) -> Iterator[None]:
    """Put the folder's name before errors that are raised after reading, when the path is no longer known."""
    try:
        yield
    except BeamtreeError as error:
        raise BeamtreeError(f"{place.name}: {error}") from error


def make_model(place: Path) -> None:
    settings = ModelSettings("ebt-grc", d_model=8, embedding_size=6, classifier_hidden=8)
    save_model(create_model(settings, find_task("listops")), place, {"epoch": 3})


def use_model(place: Path) -> None:
    model = load_model(place)
    with _naming(place):
        (prediction,) = model.predict(["[MAX 2 9 [MIN 4 7 ] 0 ]"])
    if not 0 <= prediction.probability <= 1:
        raise ValueError(f"a probability of {prediction.probability}")


def make_block(place: Path) -> None:
    BeamTreeEncoder(8, beam_size=2).save_pretrained(place)


def use_block(place: Path) -> None:
    BeamTreeEncoder.from_pretrained(place)(torch.zeros(1, 3, 8))


def make_checkpoint(place: Path) -> None:
    model, optimizer, schedule = _learner()
    sum((weight**2).sum() for weight in model.parameters()).backward()
    optimizer.step()
    schedule.judge(1.0)
    random_states = random_state(torch.device("cpu"))[None]
    save_checkpoint(
        place / "state.safetensors",
        model=model,
        optimizer=optimizer,
        schedule=schedule,
        position=Position("0" * 64, 1, 2, 7, 0.5, [{"epoch": 1, "best": True}]),
        by_process={"random": random_states, "sums": torch.zeros(1, 2, dtype=torch.float64)},
    )


def use_checkpoint(place: Path) -> None:
    model, optimizer, schedule = _learner()
    position, by_process = load_checkpoint(
        place / "state.safetensors", model=model, optimizer=optimizer, schedule=schedule
    )
    set_random_state(by_process["random"][0], torch.device("cpu"))
    torch.zeros(2, dtype=torch.float64).copy_(by_process["sums"][0])
    if position.epochs < 0 or not all(record["epoch"] for record in position.history):
        raise ValueError("an impossible position was accepted")


def _learner() -> Any:
    settings = ModelSettings("recurrent-grc", d_model=4, embedding_size=4, classifier_hidden=4)
    model = create_model(settings, find_task("listops"))
    optimizer = Ranger(model.parameters(), lr=0.1)
    return model, optimizer, Schedule(TrainingSettings(), optimizer)


def make_recipes(place: Path) -> None:
    (place / "recipe.toml").write_text(f'extends = "base.toml"\n{RECIPE}')
    (place / "base.toml").write_text('extends = "listops-quick"\n')


def use_recipe(place: Path) -> None:
    recipe = load_recipe(place / "recipe.toml")
    with _naming(place):
        create_model(recipe.model, find_task("listops"))


def copy_run(place: Path) -> None:
    run = Path(beamtree.__file__).parents[1] / "docs" / "runs" / "listops-seed0"
    for name in ("recipe.toml", "metrics.jsonl", "eval.json"):
        (place / name).write_bytes((run / name).read_bytes())


def report_run(place: Path) -> None:
    built = build_report([place], ())
    to_markdown(built, "")
    to_html(built, "")


KINDS = [
    Kind("model folders", make_model, use_model),
    Kind("block folders", make_block, use_block),
    Kind("checkpoints", make_checkpoint, use_checkpoint),
    Kind("recipes", make_recipes, use_recipe),
    Kind("run folders of a report", copy_run, report_run),
]


class _Late(BaseException):
    """A case took too long."""


@contextmanager
def _limited_time() -> Iterator[None]:
    def late(*_: object) -> None:
        raise _Late(f"still running after {SECONDS} s")

    before: Callable[..., Any] | Any = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _bounded_memory() -> Iterator[None]:
    """Limit memory, so that an absurd size fails here and does not bring the machine down."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
