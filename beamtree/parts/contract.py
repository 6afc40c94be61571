"""The interfaces that your own cell and scorer must implement, and checks that they do.

Both are modules that are called on rows of nodes, (…, d) each. A row of the result may depend only on the
same row of the arguments and on the parameters, because nodes are recomputed in the backward pass. In
evaluation and without dropout a cell is called `cell(left, right)`.
"""

import weakref
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.nn.utils.spectral_norm import SpectralNorm

from beamtree.pytorch.precision import product_dtype

_CHANGING = (  # layers and hooks whose result changes from call to call
    nn.modules.dropout._DropoutNd,
    nn.modules.batchnorm._BatchNorm,
    nn.RReLU,
    nn.utils.parametrizations._SpectralNorm,
    SpectralNorm,
)


class Cell(Protocol):
    """A module that composes two children into a parent."""

    def __call__(self, left: Tensor, right: Tensor, /) -> Tensor:
        """Return the parents (…, d) of left and right children, (…, d) each."""


@runtime_checkable
class CellWithDropout(Protocol):
    """A cell with dropout: in training it gets masks `keep` (…, hidden_size), one per node, to multiply by.

    The masks are already scaled by 1/(1 − dropout).
    """

    dropout: float
    hidden_size: int

    def __call__(self, left: Tensor, right: Tensor, keep: Tensor | None = None, /) -> Tensor:
        """Return the parents (…, d) of left and right children, (…, d) each."""


class Scorer(Protocol):
    """A module that scores pairs of neighbours.

    The higher its score, the sooner a pair is merged; −inf forbids the merge, but some tree must stay
    permitted.
    """

    def __call__(self, left: Tensor, right: Tensor, /) -> Tensor:
        """Return the scores (…) of pairs of left and right nodes, (…, d) each."""


def dropout_rate(cell: nn.Module) -> float:
    """Return the cell's dropout rate: 0 in evaluation mode, or if `dropout` is a layer or no number."""
    try:
        rate = float(getattr(cell, "dropout", 0.0)) if cell.training else 0.0
    except (TypeError, ValueError, RuntimeError):  # as of None, a method, a layer, several numbers
        return 0.0
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"cell.dropout must be a rate, at least 0 and less than 1, got {rate}")
    return rate


def mask_width(cell: nn.Module) -> int:
    """Return the width of the dropout masks that a cell takes; an error if it does not say."""
    if not isinstance(cell, CellWithDropout) or cell.hidden_size < 1:
        raise ValueError("cell has a rate `dropout` but no `hidden_size`, the width of the masks it gets")
    return int(cell.hidden_size)


def refuse_random_layers(module: nn.Module, role: str) -> None:
    """Refuse a module with layers that draw random numbers or mix rows, as most of them do in training only.

    The engine recomputes nodes in the backward pass, so such layers would give wrong gradients.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.running_mean is None:
            raise ValueError(
                f"{role} contains {type(layer).__name__} ({name or 'itself'}) without running statistics, "
                "but must compute each row by itself: normalise rows, as nn.LayerNorm does"
            )
        if not layer.training or (isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p == 0.0):
            continue
        drops = isinstance(layer, (nn.MultiheadAttention, nn.RNNBase)) and layer.dropout > 0.0
        for part in (layer, *layer._forward_pre_hooks.values()):
            if isinstance(part, _CHANGING) or (drops and part is layer):
                raise ValueError(
                    f"{role} contains {type(part).__name__} ({name or 'itself'}) in training mode, but must "
                    "be a function of its arguments: apply dropout with its `keep` mask, or put the layer in "
                    "eval mode"
                )


def version_of(tensor: Tensor) -> int:
    """Return how often a tensor was changed in place; always 0 if it was made in inference mode."""
    return 0 if tensor.is_inference() else tensor._version


# The settings with which a part's results were compared last.
_compared: weakref.WeakKeyDictionary[nn.Module, tuple[bool | float, ...]] = weakref.WeakKeyDictionary()


def refuse_changing_results(part: nn.Module, role: str, *rows: Tensor) -> None:
    """Refuse a module that gives other results for the same rows, without a layer that says so.

    For example, `F.dropout` draws random numbers, and `h - h.mean(0)` mixes rows. The module is called on the
    given pair, one row of each, again and again and together with another one, and the results are compared:
    at first, and when its mode or a number among its attributes has changed, as a rate may have been zero
    before. Not every time, because the host waits for a GPU.

    Where a graph is recorded it is called each time, before the search calls it without a graph: it may keep
    weights that it derives from its parameters.
    """
    kind = rows[0].device.type
    if kind not in ("cpu", "cuda") or (kind == "cuda" and torch.cuda.is_current_stream_capturing()):
        return
    settings = tuple(
        value
        for module in part.modules()
        for value in vars(module).values()
        if isinstance(value, (bool, float))
    )
    if _compared.get(part) == settings:
        if torch.is_grad_enabled():
            part(*(row.clone() for row in rows))  # it may work in place
        return
    for _ in range(3):  # another thread may change weights meanwhile, but hardly each time
        fault = _find_change(part, role, rows)
        if not fault:
            _compared[part] = settings
            return
    raise ValueError(f"{role} {fault}")


def _find_change(part: nn.Module, role: str, rows: Sequence[Tensor]) -> str | None:
    """What a module does that it must not do, in words, and what to do about it."""
    found = _call_first(part, role, rows)
    if isinstance(found, Tensor):
        # A part compiled with CUDA graphs may write its next result in the same place.
        found = found.detach().clone()
    # Only now, as the first call may have made what is kept from then on.
    buffers = {name: (buffer, version_of(buffer)) for name, buffer in part.named_buffers()}
    with torch.no_grad():
        alike = all(_alike(found, part(*(row.clone() for row in rows))) for _ in range(3))
        mixes = alike and _mixes_rows(part, found, rows)
    mode = "training" if part.training else "evaluation"
    advice = (
        f"in {mode}, but must be a function of its arguments and parameters: apply dropout with its `keep` "
        "mask, and keep nothing from call to call"
    )
    now = dict(part.named_buffers())
    for name, (buffer, version) in buffers.items():
        if now.get(name) is not buffer or version_of(buffer) != version:
            return f"changes its buffer {name} when it is called {advice}"
    if not alike:
        return f"gives other results for the same rows {advice}"
    if mixes:
        return (
            f"mixes rows in {mode}: what it returns for a pair changes with the other pairs in the same "
            "call, but each row of the result may depend only on the same row of the arguments: compute "
            "over the last dimension (-1), never over the first (0)"
        )
    if not _may_return(found, role) and all(row.isfinite().all() for row in rows):
        wrong = (
            "NaN or +inf (only −inf is allowed, to forbid a merge)" if role == "scorer" else "NaN or infinity"
        )
        return (
            f"returns {wrong} for a pair of finite nodes in {mode}: check its parameters, and what "
            "it divides by or takes a root or logarithm of"
        )
    return None


def _call_first(part: nn.Module, role: str, rows: Sequence[Tensor]) -> object:
    """The result for the first pair; an error says what the module was given and what it must return."""
    try:
        return part(*(row.clone() for row in rows))
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        names = zip(("left", "right", "keep"), rows, strict=False)
        given = ", ".join(f"{name} {tuple(row.shape)}" for name, row in names)
        width = rows[0].shape[-1]
        wanted = f"the parent, shape (1, {width})" if role == "cell" else "the score, shape (1,)"
        raise ValueError(
            f"{role} failed with {type(error).__name__}: {error}\nIt was called with {given} and must return "
            f"{wanted}: nodes are {width} wide here, and it returns as many rows as it gets"
        ) from error


def _may_return(found: object, role: str) -> bool:
    """Whether all numbers are finite or, as scores, −inf."""
    if not isinstance(found, Tensor) or not found.is_floating_point():
        return True  # another check says what is wrong
    allowed = found.isfinite()
    return bool((allowed | (found == -torch.inf) if role == "scorer" else allowed).all())


def _mixes_rows(part: nn.Module, alone: object, rows: Sequence[Tensor]) -> bool:
    """Whether a row of the result depends on the other rows, on its place or on how many there are."""
    width = rows[0].shape[-1]
    ramp = torch.linspace(-1, 1, width, dtype=rows[0].dtype, device=rows[0].device)
    # Made from the first pair, as a batch may have no other; its sums, differences and products are others.
    shifts = (ramp, ramp / -2, None)  # of left, right and the mask

    def call(*shifted: int) -> Tensor | None:
        two = [row.repeat(2, 1) for row in rows]  # the same pair twice
        for some, shift in zip(two, shifts, strict=False):
            if shift is not None and shifted:
                some[list(shifted)] += shift
        found = part(*two)
        fits = isinstance(found, Tensor) and found.shape[:1] == (2,) and found.is_floating_point()
        return found.clone() if fits else None

    twice, both, other_twice = call(), call(1), call(0, 1)
    if both is None or twice is None or other_twice is None or not isinstance(alone, Tensor):
        return False  # another check says what is wrong
    # In the same place, among as many rows, a result is also rounded in the same way.
    if not _alike(both[0], twice[0]) or not _alike(both[1], other_twice[1]):
        return True
    return not _alike(twice, alone.expand_as(twice), _coarsest(rows[0]))


def _coarsest(rows: Tensor) -> float:
    """A bound of the precision in which rows are multiplied, where this may depend on how many there are."""
    if rows.dtype == torch.float64:
        return 1e-8
    dtype = product_dtype(rows)
    if dtype == torch.float32 and (rows.is_cuda or torch.get_float32_matmul_precision() != "highest"):
        dtype = torch.bfloat16  # TF32, or what the CPU has in its place
    return max(torch.finfo(dtype).eps, 1e-4)  # a part may round to half precision inside


def _alike(found: object, again: object, precision: float = 0.0) -> bool:
    """Whether two results are equal up to rounding, which may differ on a GPU."""
    if not isinstance(found, Tensor) or not isinstance(again, Tensor) or not found.is_floating_point():
        return True  # another check says what is wrong
    if torch.equal(found, again):
        return True
    near = max(torch.finfo(found.dtype).eps, precision) ** 0.5
    return torch.allclose(found.detach(), again, near, near, equal_nan=True)


def refuse_other_tensors(outputs: Tensor, inputs: Sequence[Tensor]) -> set[Node]:
    """Refuse outputs that depend on a tensor that requires grad and is not among the inputs.

    Gradients are computed for inputs and parameters only, so such a tensor would silently get none. Returns
    the nodes of the graph.
    """
    seen = {get_gradient_edge(tensor).node for tensor in inputs}
    nodes = [outputs.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        other = getattr(node, "variable", None)
        if other is not None:
            raise ValueError(
                f"a cell or scorer reads a tensor of shape {tuple(other.shape)} that requires gradient but "
                "is not one of its parameters: make it a parameter, or detach it"
            )
        nodes += [below for below, _ in node.next_functions]
    return seen
