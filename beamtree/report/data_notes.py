"""What a table of a language task must say of its data: how much of the corpus was learnt from, and which
word vectors were used.
"""

from collections.abc import Sequence
from typing import Any

from beamtree.data.survey import is_part
from beamtree.data.task import find_task
from beamtree.report.runs import TrainedRun

PAPER_VECTORS = "GloVe 840B, 300 wide"


def data_note(task_name: str, runs: Sequence[TrainedRun]) -> str:
    """One or more sentences, none for a formal task or runs that left no `data.json`."""
    task = find_task(task_name)
    if task.words is None:
        return ""
    sentences = dict.fromkeys(
        _sentence(run.data, task.published.get(run.recipe.task.train)) for run in runs if run.data is not None
    )
    if sentences and task_name == "mnli":
        sentences["The stress tests are rebuilt from the dev sets where the release is not at hand."] = None
    return " ".join(sentences)


def _sentence(facts: dict[str, Any], published: int | None) -> str:
    count, words = facts["train"]["examples"], facts["words"]
    learnt = f"{count:,} training examples"
    if published is not None and is_part(count, published):
        learnt = f"a subset: {count:,} of {published:,} training examples"
    if words is None or words["vectors"] is None:
        return f"Ours learn from {learnt}, without word vectors (the paper: {PAPER_VECTORS})."
    vectors = f"{words['vectors']}, {words['width']} wide"
    if "840b" in words["vectors"].lower() and words["width"] == 300:
        return f"Ours learn from {learnt}, with the paper's vectors: {vectors}."
    return f"Ours learn from {learnt}, with other vectors: {vectors} (the paper: {PAPER_VECTORS})."
