"""What a table of a language task must say of its data: how much of the corpus was learnt from, and which
word vectors were used.
"""

from collections.abc import Sequence
from typing import Any

from beamtree.data.survey import is_part
from beamtree.data.task import find_task
from beamtree.paper.report.runs import TrainedRun

PAPER_VECTORS = "GloVe 840B, 300 wide"


def data_note(task_name: str, runs: Sequence[TrainedRun]) -> str:
    """One or more sentences, none for a formal task or runs that left no `data.json`."""
    sentences = dict.fromkeys(_sentence(facts, published) for facts, published in _facts(task_name, runs))
    if sentences and task_name == "mnli":
        sentences["The stress tests are rebuilt from the dev sets where the release is not at hand."] = None
    return " ".join(sentences)


def data_marks(task_name: str, runs: Sequence[TrainedRun]) -> list[str]:
    """What differs from the paper's data, in a word each, for the title of a table."""
    marks: dict[str, None] = {}
    for facts, published in _facts(task_name, runs):
        marks |= {"subset": None} if _is_subset(facts, published) else {}
        if not _has_paper_vectors(facts):
            marks |= {"other vectors" if facts["words"] and facts["words"]["vectors"] else "no vectors": None}
    return list(marks)


def _facts(task_name: str, runs: Sequence[TrainedRun]) -> list[tuple[dict[str, Any], int | None]]:
    """What each run of a language task learnt from, beside the number of examples in the paper's corpus."""
    task = find_task(task_name)
    if task.words is None:
        return []
    return [(run.data, task.published.get(run.recipe.task.train)) for run in runs if run.data is not None]


def _is_subset(facts: dict[str, Any], published: int | None) -> bool:
    return published is not None and is_part(facts["train"]["examples"], published)


def _has_paper_vectors(facts: dict[str, Any]) -> bool:
    words = facts["words"]
    return bool(words and words["vectors"] and "840b" in words["vectors"].lower() and words["width"] == 300)


def _sentence(facts: dict[str, Any], published: int | None) -> str:
    count, words = facts["train"]["examples"], facts["words"]
    learnt = f"{count:,} training examples"
    if _is_subset(facts, published):
        learnt = f"a subset: {count:,} of {published:,} training examples"
    if words is None or words["vectors"] is None:
        return f"Ours learn from {learnt}, without word vectors (the paper: {PAPER_VECTORS})."
    vectors = f"{words['vectors']}, {words['width']} wide"
    if _has_paper_vectors(facts):
        return f"Ours learn from {learnt}, with the paper's vectors: {vectors}."
    return f"Ours learn from {learnt}, with other vectors: {vectors} (the paper: {PAPER_VECTORS})."
