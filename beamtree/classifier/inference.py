"""A trained model over many examples, in batches of like length that keep to a budget of token places."""

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
_SHORTEST_ROW = 16  # so that a batch of tiny sentences does not have thousands of rows


@torch.no_grad()
def run_in_batches(
    model: "Classifier",
    examples: EncodedExamples,
    *,
    batch_tokens: int = BATCH_TOKENS,
    need_trees: bool = False,
) -> Iterator[tuple[Batch, Tensor, BeamTrees | None]]:
    """(batch, logits, trees) in an order that mixes lengths; `batch.rows` tells which examples they are.

    The model evaluates and stays in the mode it is in, so that others may use it meanwhile. There are no
    trees from an encoder that builds none, whatever is needed.
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
            except ValueError as error:  # of a search among numbers that are not finite
                raise BeamtreeError(f"the model cannot be run: {first_line(error)}") from error
            logits, trees = found if need_trees else (found, None)
            yield batch, refuse_unless_finite(logits), trees
    except torch.OutOfMemoryError as error:
        raise BeamtreeError(
            f"the device ran out of memory with {batch_tokens} token places in a batch: lower --batch-tokens"
        ) from error


def predict_in_batches(
    model: "Classifier",
    examples: Sequence[Example],
    *,
    batch_tokens: int = BATCH_TOKENS,
    need_trees: bool = False,
) -> Iterator[tuple[list[int], Tensor, BeamTrees | None]]:
    """(which examples, the probabilities (rows, labels), trees) of examples whose labels nobody knows."""
    if not examples:
        return
    encoded = model.encode(examples, labelled=False)
    for batch, logits, trees in run_in_batches(
        model, encoded, batch_tokens=batch_tokens, need_trees=need_trees
    ):
        yield batch.rows.tolist(), class_probabilities(logits), trees


def evaluating(model: Model) -> Model:
    """The model itself where all of it evaluates, else a twin that does, for one use.

    The twin has the same parameters, buffers, hooks and CUDA graphs, only its modules are others: nothing of
    the model changes, so that threads that train it or predict with it do not meet.
    """
    parts = list(model.modules())
    if not any(part.training for part in parts):
        return model
    twins = {id(part): object.__new__(type(part)) for part in parts}
    for part in parts:
        own = {name: _as_of_twin(value, twins) for name, value in vars(part).items()}
        # Graphs of a user's cell are kept by the cell: like a replica that DataParallel makes, one that lives
        # for a single use is not worth a capture.
        vars(twins[id(part)]).update(own, training=False, _compiled_call_impl=None, _is_replica=True)
    return _twin_of(model, twins)


def _as_of_twin(value: Any, twins: Mapping[int, nn.Module]) -> Any:
    """What a module holds as its twin does: the very same unless it is a module, or has to do with some."""
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
    part = getattr(part, "_orig_mod", part)  # what `torch.compile` made of a module calls that very module
    return twins.get(id(part), part)


def refuse_unless_finite(output: Tensor) -> Tensor:
    """What a model gives; weights that are finite may still be too large."""
    if not output.isfinite().all():
        raise BeamtreeError(
            "the model's output is not finite: use weights that were saved earlier, or train again with a "
            "lower learning rate"
        )
    return output


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """`auto` is the GPU of this process where there is one, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and torch.cuda.is_available():
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was compiled with CUDA
        raise BeamtreeError(f"cannot use the device {name!r}: {str(error).splitlines()[0]}") from error
    return device


def set_beam_size(model: "Classifier", beam_size: int | None) -> None:
    """Search with another number of beams than in training; the weights are the same for any."""
    if beam_size is None:
        return
    if beam_size < 1:
        raise BeamtreeError(f"--beam must be at least 1, got {beam_size}")
    for member in model.members:
        found = next((part for part in member.encoder.modules() if hasattr(part, "beam_size")), None)
        if found is None:
            encoder = model.settings.title
            raise BeamtreeError(f"--beam does not apply: the encoder {encoder!r} has no beams; leave it out")
        found.beam_size = beam_size  # type: ignore[assignment]


def merge_equal_trees(model: "Classifier") -> None:
    """Search with beams that are different trees, however the model was trained."""
    for member in model.members:
        if not hasattr(member.encoder, "merge_equal_trees"):
            encoder = model.settings.title
            raise BeamtreeError(
                f"--merge-equal-trees does not apply: the encoder {encoder!r} cannot merge them; leave it out"
            )
        member.encoder.merge_equal_trees = True  # type: ignore[assignment]
