"""Several models of one task as one classifier: the mean of their probabilities, the trees of the first."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.classifier.classifier import Classifier
from beamtree.classifier.model import TreeClassifier
from beamtree.errors import BeamtreeError
from beamtree.printable import code
from beamtree.trees.beam_trees import BeamTrees


class Ensemble(Classifier):
    """Averages the probabilities of named models of one task and vocabulary; trees are those of the first."""

    def __init__(self, members: dict[str, TreeClassifier]) -> None:
        super().__init__()
        if not members:
            raise BeamtreeError("an ensemble needs at least one member")
        first = next(iter(members.values()))
        for name, member in members.items():
            if (member.task.name, member.task.labels) != (first.task.name, first.task.labels):
                raise BeamtreeError(f"{name} has different labels from the first member of the ensemble")
            if member.words.vocabulary != first.words.vocabulary:
                raise BeamtreeError(
                    f"{name} has a different vocabulary from the first member of the ensemble"
                )
        self.names = tuple(members)
        self.each = nn.ModuleList(members.values())
        self.settings, self.task, self.words = first.settings, first.task, first.words
        self.notes = {}

    @property
    def members(self) -> tuple[TreeClassifier, ...]:
        return tuple(self.each)  # type: ignore[arg-type]

    @property
    def title(self) -> str:
        return f"{self.members[0].title} × {len(self.names)}"

    def _run(
        self, ids: Tensor, key_padding_mask: Tensor, gold_merges: Tensor | None, need_trees: bool
    ) -> tuple[Tensor, BeamTrees | None]:
        first, *others = self.members
        found = first(ids, key_padding_mask, gold_merges, need_trees=need_trees)
        logits, trees = found if need_trees else (found, None)
        return average([logits, *(other(ids, key_padding_mask, gold_merges) for other in others)]), trees

    def _save_folder(self, folder: Path) -> None:
        from beamtree.classifier.model_folder import save_ensemble, save_model

        for name, member in zip(self.names, self.members, strict=True):
            save_model(member, folder / name, member.notes)
        save_ensemble(folder, self.names)

    def _card(self) -> str:
        task = self.task
        facts = {
            "encoder": [self.settings.title],
            "members": self.names,
            "parameters": sum(weight.numel() for weight in self.parameters()),
            "labels": task.labels,
        }
        says = (
            f"{len(self.names)} classifiers for the task {code(task.name)}, trained with beamtree, whose "
            "probabilities are averaged."
        )
        return self._write_card(f"{self.title} on {task.name}, an ensemble", says, facts)


def average(logits: Sequence[Tensor]) -> Tensor:
    """Return the logits of the mean probabilities; all logits are (B, classes), or (B, 1) for two classes.

    It works on logarithms, so the result is finite even where a probability rounds to 0.
    """
    if len(logits) == 1:
        return logits[0]
    stacked = torch.stack([each.to(torch.promote_types(each.dtype, torch.float32)) for each in logits])
    if stacked.shape[-1] == 1:
        return F.logsigmoid(stacked).logsumexp(0) - F.logsigmoid(-stacked).logsumexp(0)
    return stacked.log_softmax(-1).logsumexp(0) - math.log(len(logits))
