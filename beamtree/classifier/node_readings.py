"""Applies a classifier's head to every node of a tree, to see what it would predict for each part of a text.

The head was trained on whole texts. For a part that could be a text by itself, such as a list in a list, it
does what it learnt; for others, such as half a list or a phrase, it extrapolates.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from beamtree.classifier.found_trees import find_trees, grow_forest
from beamtree.classifier.inference import refuse_unless_finite
from beamtree.data.task import Example, Range, Task, Tokens
from beamtree.data.vocabulary import PAD
from beamtree.errors import BeamtreeError
from beamtree.nn.heads import class_probabilities, pair_features
from beamtree.trees.forest import Forest

if TYPE_CHECKING:
    from beamtree.classifier.model import TreeClassifier

_SPANS_AT_ONCE = 64  # pooled in one call, to bound its memory


class NodeReading(NamedTuple):
    """What a model predicts for the tokens from `start` up to `end`, as if they were the whole text."""

    start: int
    end: int  # not included
    label: str
    probability: float
    is_text: bool  # whether this part could be a text of the task; if not, the model extrapolates


def has_node_vectors(model: "TreeClassifier") -> bool:
    """Return True if the encoder gives access to its nodes and each sentence has its own."""
    return hasattr(model.encoder, "forest") and not model.reads_pairs


class NodeReader:
    """A model and one text of S sentences: one, or two for a pair. Its roots are (S, d)."""

    def __init__(self, model: "TreeClassifier", sentences: tuple[Tokens, ...]) -> None:
        self.model = model
        device = next(model.parameters()).device
        batch = model.encode([Example(sentences, "")], labelled=False).collate(np.arange(1)).to(device)
        self.x = model.embedding(batch.ids)  # (S, n, e) token vectors
        self.key_padding_mask = model.token_padding(batch.ids, batch.key_padding_mask)  # (S, n)
        # With a Hugging Face encoder the ids are subwords, so there are no word scores.
        subwords = model.words.encoder is not None
        self.ids = batch.ids.new_full(self.x.shape[:2], PAD) if subwords else batch.ids  # (S, n) of words
        self._batch = batch
        self.parts: list[Tensor] = []  # per sentence (1, m, e): the tokens that its trees cover, unpadded
        for s, padding in enumerate(self.key_padding_mask):
            alone = self.x[s : s + 1, ~padding]
            self.parts.append(model.part_for_trees(alone, padding.new_zeros(alone.shape[:2]))[0])

    def grow_forests(self) -> tuple[list[Forest], Tensor]:
        """Return the trees of each sentence with their node vectors, and the roots."""
        encoder: Any = self.model.encoder
        forests = []
        for s, part in enumerate(self.parts):
            if self.model.parser is not None:
                ids = self._batch.ids[s : s + 1, : part.shape[1]]
                trees = find_trees(self.model.parser, ids, ids.new_zeros(ids.shape, dtype=torch.bool))
                forests.append(grow_forest(encoder, part, trees))
                continue
            gold = self._batch.gold_merges  # (S, n−1), if the model needs them
            merges = {} if gold is None else {"merges": gold[s : s + 1, : part.shape[1] - 1]}
            forests.append(encoder.forest(part, **merges))
        return forests, torch.cat([forest.average(forest.roots) for forest in forests])

    def read_text(self, roots: Tensor) -> list[float]:
        """Return the probability of every label for the whole text."""
        logits = self.model.classify(roots, self.ids, self.x, self.key_padding_mask)
        probabilities: list[float] = class_probabilities(refuse_unless_finite(logits))[0].tolist()
        return probabilities

    def read(self, sentence: int, nodes: Tensor, spans: Tensor, roots: Tensor) -> Tensor:
        """Return the probability of every label, (…, labels), for nodes (…, d) of one sentence and their
        spans (…, 2).

        In a pair, each part of one sentence is classified together with the whole other sentence.
        """
        model = self.model
        read, word_logits = nodes.flatten(0, -2), None
        if model.settings.readout == "pooled":
            pooled, word_logits = self._pool_spans(sentence, spans.flatten(0, -2))
            read = torch.cat((read, pooled), -1)
        if model.task.sentences == 2:
            other = model.read_out(roots, self.x, self.key_padding_mask)[1 - sentence].expand_as(read)
            read = pair_features(read, other) if sentence == 0 else pair_features(other, read)
        logits = model.head(read) if word_logits is None else model.head(read) + word_logits
        return class_probabilities(logits).unflatten(0, nodes.shape[:-1])

    def _pool_spans(self, sentence: int, spans: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the pooled tokens of each span and, if words have scores, the logits from its words.

        Tokens in the middle that the trees do not cover (`tree_tokens`) count too.
        """
        model, ids, x = self.model, self.ids[sentence], self.x[sentence]
        places = model.in_trees(range(int((~self.key_padding_mask[sentence]).sum())))
        known, which = spans.unique(dim=0, return_inverse=True)  # beams share most of their spans
        here = torch.arange(len(ids), device=spans.device)
        where = torch.tensor([(places[start], places[end - 1]) for start, end in known.tolist()]).to(spans)
        padding = (here < where.view(-1, 2)[:, :1]) | (here > where.view(-1, 2)[:, 1:])  # (spans, n)
        pooled, word_logits = [], []
        for some in padding.split(_SPANS_AT_ONCE):
            pooled.append(model.pooling(x.expand(len(some), -1, -1), some))
            if model.word_scores is not None:
                word_logits.append(model.word_scores(ids.expand(len(some), -1).masked_fill(some, PAD)))
        return torch.cat(pooled)[which], torch.cat(word_logits)[which] if word_logits else None


@torch.no_grad()
def read_nodes(
    model: "TreeClassifier", sentences: tuple[Tokens, ...], beam: int
) -> tuple[list[NodeReading], ...]:
    """Do what `TreeClassifier.read_nodes` does, for a model in evaluation mode."""
    if not has_node_vectors(model):
        raise BeamtreeError(f"the encoder {model.settings.title!r} gives no access to its node vectors")
    reader = NodeReader(model, sentences)
    forests, roots = reader.grow_forests()
    found = []
    for s, (forest, tokens) in enumerate(zip(forests, sentences, strict=True)):
        living = int(forest.trees.alive.sum())
        if not 0 <= beam < living:
            raise BeamtreeError(f"there is no beam {beam}: {living} are alive, counted from 0")
        spans = forest.trees.spans[0, beam]
        best, labels = reader.read(s, forest.nodes[0, beam], spans, roots).max(-1)
        texts = texts_in(model.task, model.in_trees(tokens))
        found.append(
            [
                NodeReading(start, end, model.task.labels[label], share, (start, end) in texts)
                for (start, end), label, share in zip(
                    spans.tolist(), labels.tolist(), best.tolist(), strict=True
                )
            ]
        )
    return tuple(found)


def texts_in(task: Task, tokens: Tokens) -> set[Range]:
    """Return the spans that could be texts of the task by themselves; in natural language only the whole."""
    return {(0, len(tokens)), *(() if task.texts_in is None else task.texts_in(tokens))}
