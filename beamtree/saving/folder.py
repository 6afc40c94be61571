"""What all saved folders have: a `config.json` with a format number, weights that fit it, a model card."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import beamtree
from beamtree.errors import BeamtreeError
from beamtree.files.atomic import replace_file
from beamtree.files.bounded import read_json, shown
from beamtree.printable import code, plain, write_json

Model = TypeVar("Model", bound=nn.Module)

FORMAT = 1
_NOT_IN_FILES = ("cell", "scorer", "device", "dtype")
_MOST = {"memory_slots": 4096, "test_slots": 4096} | dict.fromkeys(
    ("beam_size", "layers", "steps", "repeats", "refinements"), 1024
)
_LONGEST_VALUE, _MOST_VALUES = 200, 1000  # characters of a value in a card, values of a list
CONFIG, WEIGHTS, VOCABULARY, CARD = "config.json", "model.safetensors", "vocabulary.json", "README.md"


def write_config(folder: Path, content: Mapping[str, Any]) -> None:
    config = {"format": FORMAT, "beamtree": beamtree.__version__, **content}
    replace_file(folder / CONFIG, write_json(config, indent=2) + "\n")


def read_config(folder: Path, kinds: Mapping[str, tuple[type, str]]) -> dict[str, Any]:
    """Read and check a folder's config; `kinds` maps each required key to its type and that type's name."""
    path = folder / CONFIG
    config = read_json(path)
    if not isinstance(config, dict) or "format" not in config:
        raise BeamtreeError(f"{path} is not the config of a model: it has no format")
    if config["format"] != FORMAT:
        by = config.get("beamtree", "unknown")
        raise BeamtreeError(
            f"{path} has model format {shown(config['format'])}, written by beamtree {shown(by)}; "
            f"this is beamtree {beamtree.__version__}, which reads format {FORMAT}"
        )
    block = config.get("block")
    if isinstance(block, str) and "block" not in kinds:
        raise BeamtreeError(
            f"{folder} holds a {block[:80]}, not a classifier: load it with {block[:80]}.from_pretrained"
        )
    for key, (kind, wanted) in kinds.items():
        if not isinstance(config.get(key), kind):
            raise BeamtreeError(f"{path}: {key} must be {wanted}, got {shown(config.get(key))}")
    return config


def check_options(options: Mapping[str, Any], name: str) -> None:
    """Raise for options that a file must not set, and for sizes that would only waste memory."""
    for key, option in options.items():
        if not key.isidentifier():
            raise BeamtreeError(f"{name}: there is no option {shown(key)}")
        if key in _NOT_IN_FILES:
            raise BeamtreeError(f"{name}.{key} cannot be set in a recipe or config.json")
        most = _MOST.get(key, 65536)
        if type(option) is int and option > most:
            raise BeamtreeError(f"{name}.{key[:80]} must be at most {most}, got {shown(option)}")
        if isinstance(option, dict):
            check_options(option, f"{name}.{key}")


def sizes_of(make: Callable[[], nn.Module]) -> dict[str, Tensor]:
    """Return a model's weights by name, with shapes and dtypes but without memory."""
    with torch.device("meta"):
        return make().state_dict()


def make_with_weights(
    make: Callable[[], Model], tensors: Mapping[str, Tensor], device: torch.device | str
) -> Model:
    """Return a model with these weights, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):  # `make` draws initial weights, which are replaced
        model = make()
    model.load_state_dict(tensors)
    return model.to(device).eval()


def bytes_of(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def check_fit(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], path: Path, config: str) -> None:
    """Raise unless tensors have the names, shapes and dtypes that the files called `config` determine."""
    for name in sorted(expected.keys() ^ found.keys()):  # sorted: all processes name the same tensor
        problem = "lacks" if name in expected else "has an unknown tensor"
        raise BeamtreeError(f"{path} does not fit {config}: it {problem} {shown(name)}")
    for name, tensor in expected.items():
        if found[name].shape != tensor.shape or found[name].dtype != tensor.dtype:
            is_so, should_be = _describe(found[name]), _describe(tensor)
            raise BeamtreeError(f"{path} does not fit {config}: {name!r} is {is_so}, expected {should_be}")


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


CITATION = """\
## Citation
```bibtex
@inproceedings{raychowdhury2023efficient,
  title     = {Efficient Beam Tree Recursion},
  author    = {Ray Chowdhury, Jishnu and Caragea, Cornelia},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2023}
}
```
"""


def write_card(
    title: str, says: str, usage: str, facts: Mapping[str, Any], *, tags: Sequence[str], pipeline: str = ""
) -> str:
    """Write the `README.md` of a folder: what is in it and how to use it.

    `facts` become a table; `usage` is Python code. `says` must be safe Markdown; other text is escaped, as it
    may come from a stranger.
    """
    head = ["library_name: beamtree", *([f"pipeline_tag: {pipeline}"] if pipeline else []), "tags:"]
    head += [f"- {write_json(tag, ensure_ascii=False)}" for tag in ("beamtree", *tags)]
    rows = (f"| {plain(name)} | {_cell(value)} |" for name, value in facts.items())
    table = ["| | |", "| --- | --- |", *rows]
    parts = [
        "\n".join(["---", *head, "---"]),
        f"# {plain(title)}",
        says,
        f"```python\n{usage.rstrip()}\n```",
        "\n".join(table),
        CITATION,
    ]
    return "\n\n".join(parts)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(code(str(name)[:_LONGEST_VALUE]) for name in value[:_MOST_VALUES])
    return plain(str(value)[:_LONGEST_VALUE])
