"""What a model makes of one input: probabilities and trees, and the search where it can be watched."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from beamtree.classifier.evaluation_mode import evaluating
from beamtree.classifier.inference import refuse_unless_finite, run_in_batches
from beamtree.classifier.model import TreeClassifier
from beamtree.data.task import Example, Tokens
from beamtree.errors import BeamtreeError
from beamtree.explorer.watched_search import SearchRecord, record_search
from beamtree.nn.encoder import BeamTreeEncoder
from beamtree.nn.heads import class_probabilities, pair_features
from beamtree.trees.beam_trees import BeamTrees
from beamtree.zoo.beam_tree_grc import BeamTreeGRC


class Outcome(NamedTuple):
    """Trees and records are one for each sentence, or None."""

    probabilities: list[float]  # of the task's labels
    trees: Sequence[BeamTrees | None]
    records: Sequence[SearchRecord | None]


def is_watched(model: TreeClassifier) -> bool:
    """Whether the encoder is the engine's search and nothing else, so that its steps can be shown."""
    encoder = model.encoder
    return isinstance(encoder, BeamTreeEncoder | BeamTreeGRC) and not getattr(
        encoder, "merge_equal_trees", False
    )


@torch.no_grad()
def run_model(model: TreeClassifier, sentences: tuple[Tokens, ...], beam_size: int | None) -> Outcome:
    """One forward pass; `beam_size` is the encoder's own if it is None."""
    model = evaluating(model)
    if is_watched(model):
        return _watch(model, sentences, beam_size)
    if beam_size is not None:
        raise BeamtreeError(f"beam_size does not apply to the encoder {model.settings.encoder!r}")
    encoded = model.encode([Example(sentences, "")], labelled=False)
    ((_, logits, trees),) = run_in_batches(model, encoded, need_trees=True)
    nothing = [None] * len(sentences)
    return Outcome(
        class_probabilities(logits)[0].tolist(),
        nothing if trees is None else [trees[s] for s in range(len(sentences))],
        nothing,
    )


def _watch(model: TreeClassifier, sentences: tuple[Tokens, ...], beam_size: int | None) -> Outcome:
    encoder: Any = model.encoder
    device = next(model.parameters()).device
    records = []
    for tokens in sentences:
        ids = torch.tensor([model.vocabulary.encode(tokens)], device=device)
        records.append(record_search(encoder, model.embedding(ids), beam_size or encoder.beam_size))
    roots = [record.beams.root() for record in records]
    logits = refuse_unless_finite(model.head(roots[0] if len(roots) == 1 else pair_features(*roots)))
    trees = [record.beams.trees() for record in records]
    return Outcome(class_probabilities(logits)[0].tolist(), trees, records)
