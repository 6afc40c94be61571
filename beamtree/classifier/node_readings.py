"""The classifier's head read on every node of a tree, all in one call: what it would say of each part.

It was trained on whole texts. Where a part is a text of the task too, such as a list in a list, this is what
it learnt; elsewhere, such as half a list or a phrase, it extrapolates.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from beamtree.classifier.classifier import Classifier
from beamtree.classifier.model import NodeReading, TreeClassifier
from beamtree.data.task import Example, Tokens
from beamtree.data.vocabulary import PAD
from beamtree.errors import BeamtreeError
from beamtree.nn.heads import class_probabilities, pair_features
from beamtree.trees.forest import Forest

# Spans whose tokens are pooled in one call, to bound its memory.
_SPANS_AT_ONCE = 64


class Input(NamedTuple):
    """One text, or a pair, as a model reads it."""

    ids: Tensor  # (S, n) of words
    x: Tensor  # (S, n, e) token vectors
    key_padding_mask: Tensor  # (S, n)
    parts: list[Tensor]  # of each sentence (1, m, e): what its trees are over, unpadded
    gold_merges: list[Tensor | None]  # of each sentence (1, m−1) where the encoder needs them


def has_node_vectors(model: TreeClassifier) -> bool:
    """Whether the encoder hands out its nodes, and each sentence has its own."""
    return hasattr(model.encoder, "forest") and not model.meets


def read_input(model: TreeClassifier, sentences: tuple[Tokens, ...]) -> Input:
    device = next(model.parameters()).device
    batch = model.encode([Example(sentences, "")], labelled=False).collate(np.arange(1)).to(device)
    x, padding = model.embedding(batch.ids), model.token_padding(batch.ids, batch.key_padding_mask)
    parts: list[Tensor] = []
    merges: list[Tensor | None] = []
    for s in range(len(sentences)):
        own = ~padding[s]
        parts.append(model.part_for_trees(x[s : s + 1, own], padding[s : s + 1, own])[0])
        gold = batch.gold_merges
        merges.append(None if gold is None else gold[s : s + 1, : parts[-1].shape[1] - 1])
    # Numbers of subwords are not of words, which have no scores then.
    ids = batch.ids if model.words.encoder is None else torch.full_like(padding, PAD, dtype=torch.long)
    return Input(ids, x, padding, parts, merges)


def grow_forests(model: TreeClassifier, given: Input) -> list[Forest]:
    """The trees of each sentence with their node vectors."""
    encoder: Any = model.encoder
    return [
        encoder.forest(part, **({} if merges is None else {"merges": merges}))
        for part, merges in zip(given.parts, given.gold_merges, strict=True)
    ]


def read_vectors(
    model: TreeClassifier, given: Input, roots: Tensor, sentence: int, vectors: Tensor, spans: Tensor
) -> Tensor:
    """The probability of every label for nodes (…, d) of one sentence over spans (…, 2): (…, labels).

    `roots` (S, d) stand for the other sentence of a pair.
    """
    read = vectors.flatten(0, -2)
    if model.settings.readout != "pooled":
        said = None
    else:
        pooled, said = _read_spans(model, given, sentence, spans.flatten(0, -2))
        read = torch.cat((read, pooled), -1)
    if model.task.sentences == 2:
        other = model.read_out(roots, given.x, given.key_padding_mask)[1 - sentence].expand_as(read)
        read = pair_features(read, other) if sentence == 0 else pair_features(other, read)
    logits = model.head(read) if said is None else model.head(read) + said
    return class_probabilities(logits).unflatten(0, vectors.shape[:-1])


def _read_spans(
    model: TreeClassifier, given: Input, sentence: int, spans: Tensor
) -> tuple[Tensor, Tensor | None]:
    """The tokens of each span pooled, and what its words say where words have a say.

    A span has also those tokens that a bounded tree leaves out in its midst.
    """
    places = model.in_trees(range(int((~given.key_padding_mask[sentence]).sum())))
    known, which = spans.unique(dim=0, return_inverse=True)  # beams share most of their spans
    here = torch.arange(given.ids.shape[1], device=spans.device)
    where = torch.tensor([(places[start], places[end - 1]) for start, end in known.tolist()]).to(spans)
    padding = (here < where.view(-1, 2)[:, :1]) | (here > where.view(-1, 2)[:, 1:])  # (spans, n)
    pooled, said = [], []
    for some in padding.split(_SPANS_AT_ONCE):
        pooled.append(model.pooling(given.x[sentence].expand(len(some), -1, -1), some))
        if model.word_scores is not None:
            said.append(model.word_scores(given.ids[sentence].expand(len(some), -1).masked_fill(some, PAD)))
    return torch.cat(pooled)[which], torch.cat(said)[which] if said else None


@torch.no_grad()
def read_nodes(
    model: TreeClassifier, sentences: tuple[Tokens, ...], beam: int
) -> tuple[list[NodeReading], ...]:
    """`TreeClassifier.read_nodes` of a model that evaluates."""
    if not has_node_vectors(model):
        raise BeamtreeError(f"the encoder {model.settings.title!r} hands out no node vectors to read")
    given = read_input(model, sentences)
    forests = grow_forests(model, given)
    roots = torch.cat([forest.average(forest.roots) for forest in forests])
    found = []
    for s, (forest, tokens) in enumerate(zip(forests, sentences, strict=True)):
        living = int(forest.trees.alive.sum())
        if not 0 <= beam < living:
            raise BeamtreeError(f"there is no beam {beam}: {living} are alive, counted from 0")
        spans = forest.trees.spans[0, beam]
        shares = read_vectors(model, given, roots, s, forest.nodes[0, beam], spans)
        best, labels = shares.max(-1)
        texts = texts_in(model, model.in_trees(tokens))
        found.append(
            [
                NodeReading(start, end, model.task.labels[label], share, (start, end) in texts)
                for (start, end), label, share in zip(
                    spans.tolist(), labels.tolist(), best.tolist(), strict=True
                )
            ]
        )
    return tuple(found)


def texts_in(model: Classifier, tokens: Tokens) -> set[tuple[int, int]]:
    """The spans that are texts of the task by themselves; of a natural language the whole only."""
    known = model.task.texts_in
    return {(0, len(tokens)), *(known(tokens) if known is not None else ())}
