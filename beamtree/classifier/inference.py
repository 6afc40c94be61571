"""Runs a trained model on many examples, in batches of similar length and limited size."""

from collections.abc import Iterator, Mapping, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from beamtree.data.batching import Batch, BucketedBatches, EncodedExamples
from beamtree.data.task import Example
from beamtree.errors import BeamtreeError, first_line
from beamtree.nn.heads import class_probabilities
from beamtree.trees.beam_trees import BeamTrees

if TYPE_CHECKING:
    from beamtree.classifier.classifier import Classifier

Model = TypeVar("Model", bound=nn.Module)

BATCH_TOKENS = 16384  # rows × padded length: about 1 GiB for the largest encoders of the paper
_SHORTEST_ROW = 16  # shorter ones count as this long, so that a batch never has thousands of rows


@torch.no_grad()
def run_in_batches(
    model: "Classifier",
    examples: EncodedExamples,
    *,
    batch_tokens: int = BATCH_TOKENS,
    need_trees: bool = False,
) -> Iterator[tuple[Batch, Tensor, BeamTrees | None]]:
    """Yield (batch, logits, trees), not in the order of the examples: `batch.rows` has their indices.

    The model runs as in evaluation but keeps its mode, so that other threads may use it at the same time.
    Trees are None if they are not needed or the encoder builds none.
    """
    if batch_tokens < 1:
        raise BeamtreeError(f"--batch-tokens must be at least 1, got {batch_tokens}")
    rows = max(1, batch_tokens // _SHORTEST_ROW)
    batches = BucketedBatches(
        examples, batch_size=rows, bucket=-(-len(examples) // rows), max_padded_tokens=batch_tokens
    )
    need_trees = need_trees and model.builds_trees
    model = evaluating(model)
    try:
        for batch in batches.epoch(0, device=next(model.parameters()).device):
            try:
                found = model(batch.ids, batch.key_padding_mask, batch.gold_merges, need_trees=need_trees)
            except ValueError as error:  # the search found numbers that are not finite
                raise BeamtreeError(f"the model cannot be run: {first_line(error)}") from error
            logits, trees = found if need_trees else (found, None)
            yield batch, refuse_unless_finite(logits), trees
    except torch.OutOfMemoryError as error:
        raise BeamtreeError(
            f"the device ran out of memory with batches of {batch_tokens} tokens: lower --batch-tokens"
        ) from error


def predict_in_batches(
    model: "Classifier",
    examples: Sequence[Example],
    *,
    batch_tokens: int = BATCH_TOKENS,
    need_trees: bool = False,
) -> Iterator[tuple[list[int], Tensor, BeamTrees | None]]:
    """Yield (indices of examples, probabilities (rows, labels), trees); the labels are not read."""
    if not examples:
        return
    encoded = model.encode(examples, labelled=False)
    for batch, logits, trees in run_in_batches(
        model, encoded, batch_tokens=batch_tokens, need_trees=need_trees
    ):
        yield batch.rows.tolist(), class_probabilities(logits), trees


def evaluating(model: Model) -> Model:
    """Return the model if all its modules are in evaluation mode, else a twin that is, for one use.

    The twin has modules of its own that share parameters, buffers, hooks and CUDA graphs with the model. The
    model itself does not change, so other threads may train it or predict with it at the same time.
    """
    parts = list(model.modules())
    if not any(part.training for part in parts):
        return model
    twins = {id(part): object.__new__(type(part)) for part in parts}
    for part in parts:
        own = {name: _for_twin(value, twins) for name, value in vars(part).items()}
        # A user's cell keeps its own CUDA graphs. Marked as a replica, like those that DataParallel makes, it
        # captures none: for a single use that is not worth the time.
        vars(twins[id(part)]).update(own, training=False, _compiled_call_impl=None, _is_replica=True)
    return _twin_of(model, twins)


def _for_twin(value: Any, twins: Mapping[int, nn.Module]) -> Any:
    """Return an attribute's value for the twin: the same object, but with twins in place of modules."""
    if isinstance(value, nn.Module):
        return _twin_of(value, twins)
    if isinstance(value, MethodType) and id(value.__self__) in twins:
        return MethodType(value.__func__, _twin_of(value.__self__, twins))
    if type(value) is dict and any(id(part) in twins for part in value.values()):
        return {name: _twin_of(part, twins) for name, part in value.items()}
    if type(value) in (list, tuple) and any(id(part) in twins for part in value):
        return type(value)(_twin_of(part, twins) for part in value)
    return value


def _twin_of(part: Any, twins: Mapping[int, nn.Module]) -> Any:
    part = getattr(part, "_orig_mod", part)  # the module inside a wrapper that `torch.compile` made
    return twins.get(id(part), part)


def refuse_unless_finite(output: Tensor) -> Tensor:
    """Return a model's output, or raise: even finite weights may be too large."""
    if not output.isfinite().all():
        raise BeamtreeError(
            "the model's output is not finite: use weights saved earlier, or train again with a lower "
            "learning rate"
        )
    return output


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """Return the device of this name; `auto` is this process's GPU if the machine has one, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and torch.cuda.is_available():
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was compiled with CUDA
        raise BeamtreeError(f"cannot use the device {name!r}: {first_line(error)}") from error
    return device


def set_beam_size(model: "Classifier", beam_size: int | None) -> None:
    """Set the number of beams of the search, unless it is None; the weights do not depend on it."""
    if beam_size is None:
        return
    if beam_size < 1:
        raise BeamtreeError(f"--beam must be at least 1, got {beam_size}")
    for member in model.members:
        found = next((part for part in member.tree_finder.modules() if hasattr(part, "beam_size")), None)
        if found is None:
            encoder = model.settings.title
            raise BeamtreeError(f"--beam does not apply: the encoder {encoder!r} has no beams; leave it out")
        found.beam_size = beam_size  # type: ignore[assignment]


def merge_equal_trees(model: "Classifier") -> None:
    """Make the search return distinct trees, however the model was trained."""
    for member in model.members:
        if not hasattr(member.tree_finder, "merge_equal_trees"):
            encoder = model.settings.title
            raise BeamtreeError(
                f"--merge-equal-trees does not apply: the encoder {encoder!r} cannot merge them; leave it out"
            )
        member.tree_finder.merge_equal_trees = True  # type: ignore[assignment]
