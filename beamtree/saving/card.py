"""Model cards: the `README.md` of a folder of weights, which says what is in it and how to use it."""

from collections.abc import Mapping, Sequence
from typing import Any

from beamtree.printable import code, plain, write_json

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


_LONGEST = 200  # characters of a value
_MOST = 1000  # values


def write_card(
    title: str, says: str, usage: str, facts: Mapping[str, Any], *, tags: Sequence[str], pipeline: str = ""
) -> str:
    """A card; `facts` become a table, `usage` is Python. `says` is Markdown, the rest may be a stranger's."""
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
        return ", ".join(code(str(name)[:_LONGEST]) for name in value[:_MOST])
    return plain(str(value)[:_LONGEST])
