"""The interface that a single model and an ensemble share: from texts to labels, probabilities and trees."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import torch
from torch import Tensor, nn

from beamtree.classifier.inference import predict_in_batches
from beamtree.data.batching import EncodedExamples
from beamtree.data.task import Example, Task
from beamtree.data.vocabulary import Vocabulary
from beamtree.data.words import Words
from beamtree.errors import BeamtreeError, UnreadableTextError
from beamtree.files.bounded import is_folder, shown
from beamtree.saving.folder import write_card
from beamtree.saving.pretrained import HubMixin
from beamtree.trees.beam_trees import BeamTrees

if TYPE_CHECKING:
    from beamtree.classifier.model import ModelSettings, TreeClassifier

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Prediction:
    label: str  # the most probable one
    probability: float
    probabilities: dict[str, float] = field(default_factory=dict, repr=False, compare=False)  # of every label
    trees: tuple[BeamTrees, ...] = field(default=(), compare=False)  # one per sentence, with its tokens


class Classifier(HubMixin, nn.Module):
    """Token ids (S·B, n) -> logits (B, classes), or (B, 1) for two classes; S sentences per example.

    In an ensemble, trees and facts about the encoder are those of the first model.
    """

    settings: "ModelSettings"
    task: Task
    words: Words
    notes: dict[str, Any]  # stored with the weights: how they were trained

    @property
    def members(self) -> "tuple[TreeClassifier, ...]":
        """The models whose probabilities are averaged; a single model is its own only member."""
        raise NotImplementedError

    def _run(
        self, ids: Tensor, key_padding_mask: Tensor, gold_merges: Tensor | None, need_trees: bool
    ) -> tuple[Tensor, BeamTrees | None]:
        """Return the logits, and the encoder's trees if they are needed and it builds any."""
        raise NotImplementedError

    def forward(
        self,
        ids: Tensor,
        key_padding_mask: Tensor,
        gold_merges: Tensor | None = None,
        *,
        need_trees: bool = False,
    ) -> Any:
        """Return the logits; with `need_trees`, a pair of logits and the encoder's trees.

        `gold_merges` are for models that are given their trees (`needs_merges`); others search for them.
        """
        logits, trees = self._run(ids, key_padding_mask, gold_merges, need_trees)
        return (logits, trees) if need_trees else logits

    @property
    def title(self) -> str:
        """The name of the model in tables and messages."""
        return self.settings.title

    @property
    def needs_merges(self) -> bool:
        """Whether the model must be given gold trees, because nothing in it finds any."""
        first = self.members[0]
        return first.follows_trees and first.parser is None

    @property
    def builds_trees(self) -> bool:
        return getattr(self.members[0].encoder, "builds_trees", True)

    @property
    def vocabulary(self) -> Vocabulary:
        return self.words.vocabulary

    def encode(self, examples: Sequence[Example], *, labelled: bool = True) -> EncodedExamples:
        """Encode examples for this model, with gold trees if it needs them."""
        return EncodedExamples.encode(
            examples,
            self.vocabulary,
            self.task.labels if labelled else None,
            gold_merges=self.task.gold_merges if self.needs_merges else None,
        )

    def in_trees(self, tokens: Sequence[Item]) -> tuple[Item, ...]:
        """Select the tokens of a sentence that its trees cover, or other items given one per token."""
        most, front = self.settings.tree_tokens, self.settings.tree_tokens_in_front
        if not most or len(tokens) <= most or self.settings.readout == "tokens":
            return tuple(tokens)
        return (*tokens[:front], *tokens[len(tokens) - most + front :])

    def predict(
        self, texts: Sequence[str] | Sequence[tuple[str, str]], *, need_trees: bool = False
    ) -> list[Prediction]:
        """Predict the label of every text; for a task on pairs, each text is a pair of sentences.

        The model's mode, training or evaluation, does not matter and does not change, so other threads may
        train it or predict with it at the same time.
        """
        if isinstance(texts, str):
            raise BeamtreeError(f"texts must be a list of texts, got one text: {shown(texts)}")
        examples = [Example(self._sentences(text, i), "") for i, text in enumerate(texts)]
        found: dict[int, Prediction] = {}
        for rows, shares, trees in predict_in_batches(self, examples, need_trees=need_trees):
            for b, (row, own_shares) in enumerate(zip(rows, shares.tolist(), strict=True)):
                by_label = dict(zip(self.task.labels, own_shares, strict=True))
                best = max(by_label, key=by_label.__getitem__)
                own = () if trees is None else self._trees_of(examples[row], trees[b :: len(rows)])
                found[row] = Prediction(best, by_label[best], by_label, own)
        return [found[row] for row in range(len(examples))]

    def _trees_of(self, example: Example, trees: BeamTrees) -> tuple[BeamTrees, ...]:
        names = map(self.in_trees, example.sentences)
        return tuple(trees[s].named([list(tokens)]) for s, tokens in enumerate(names))

    def _write_card(self, title: str, says: str, facts: dict[str, Any]) -> str:
        """Write the model card: `says` what the model is, how to load and use it, a table of `facts`."""
        kind, task = type(self).__name__, self.task
        usage = (
            f"from beamtree import {kind}\n\n"
            f'model = {kind}.from_pretrained("this/repository")\n'
            f"model.predict([{'text' if task.sentences == 1 else '(first, second)'}])"
        )
        tags = [self.settings.title, task.name]
        return write_card(title, says, usage, facts, tags=tags, pipeline="text-classification")

    @classmethod
    def _load_folder(cls, folder: Path, device: torch.device | str) -> Self:
        from beamtree.classifier.model_folder import load_model

        found = load_model(folder, device=device)
        if not isinstance(found, cls):
            kind = type(found).__name__
            raise BeamtreeError(f"{folder} holds no {cls.__name__}: load it with {kind}.from_pretrained")
        return found

    @classmethod
    def _find_folder(cls, path_or_name: str | Path) -> Path | None:
        from beamtree.classifier.model_folder import find_model

        may_be_repository = str(path_or_name).count("/") == 1 and not is_folder(Path(path_or_name))
        return None if may_be_repository else find_model(path_or_name)

    def _sentences(self, text: Any, i: int) -> tuple[tuple[str, ...], ...]:
        parts = (text,) if self.task.sentences == 1 else text
        wanted = "a text" if self.task.sentences == 1 else "a pair of texts"
        if (
            not isinstance(parts, (tuple, list))
            or len(parts) != self.task.sentences
            or not all(isinstance(part, str) for part in parts)
        ):
            raise BeamtreeError(f"texts[{i}] must be {wanted} for task {self.task.name!r}, got {shown(text)}")
        try:
            return tuple(self.task.tokenize(part) for part in parts)
        except BeamtreeError as error:
            raise UnreadableTextError(f"texts[{i}]: {error}", getattr(error, "token", None)) from error
