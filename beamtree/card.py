"""Model cards: the `README.md` of a folder of weights, which says what is in it and how to use it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from beamtree.markdown import code, plain
from beamtree.printable import write_json

if TYPE_CHECKING:
    from beamtree.model import TreeClassifier

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

TRAINING = {"epoch": "best epoch", "dev_loss": "dev loss", "dev_accuracy": "dev accuracy"}


def classifier_card(model: "TreeClassifier") -> str:
    """What a classifier is and reads, and of its training what stands beside its weights."""
    settings, task = model.settings, model.task
    facts = {
        "encoder": [settings.encoder],
        "d_model": settings.d_model,
        **settings.options,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "labels": task.labels,
        **{name: model.notes[key] for key, name in TRAINING.items() if key in model.notes},
    }
    argument = "text" if task.sentences == 1 else "(first, second)"
    usage = (
        "from beamtree.model import TreeClassifier\n\n"
        'model = TreeClassifier.from_pretrained("this/repository")\n'
        f"model.predict([{argument}])"
    )
    says = f"A classifier for the task {code(task.name)}, trained with beamtree."
    title, tags = f"{settings.encoder} on {task.name}", [settings.encoder, task.name]
    return write_card(title, says, usage, facts, tags=tags, pipeline="text-classification")


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
