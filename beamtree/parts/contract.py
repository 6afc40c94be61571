"""What is asked of a cell and a scorer of your own; both are modules, called on rows of nodes, (…, d) each.

They are functions of their arguments and parameters, row by row: nodes are computed again in the backward
pass. In inference and without dropout a cell is called `cell(left, right)`.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.utils.spectral_norm import SpectralNorm

_CHANGING = (  # layers and hooks whose result changes from call to call
    nn.modules.dropout._DropoutNd,
    nn.modules.batchnorm._BatchNorm,
    nn.RReLU,
    nn.utils.parametrizations._SpectralNorm,
    SpectralNorm,
)


class Cell(Protocol):
    """Two children make a parent."""

    def __call__(self, left: Tensor, right: Tensor, /) -> Tensor:
        """Parents (…, d) of left and right children, (…, d) each."""


@runtime_checkable
class CellWithDropout(Protocol):
    """A cell that drops out: in training it is called with masks (…, hidden_size), each for one node, already
    scaled by 1/(1 − dropout)."""

    dropout: float
    hidden_size: int

    def __call__(self, left: Tensor, right: Tensor, keep: Tensor | None = None, /) -> Tensor:
        """Parents (…, d) of left and right children, (…, d) each."""


class Scorer(Protocol):
    """How good a merge of two neighbours would be: the higher its score, the sooner a pair is merged."""

    def __call__(self, left: Tensor, right: Tensor, /) -> Tensor:
        """Scores (…) of pairs of left and right nodes, (…, d) each."""


def dropout_rate(cell: nn.Module) -> float:
    """The rate at which a cell drops out now; a layer named `dropout` is not one."""
    if not cell.training or not hasattr(cell, "dropout") or isinstance(cell.dropout, nn.Module):
        return 0.0
    return float(cell.dropout)


def mask_width(cell: nn.Module) -> int:
    """The width of the masks that a cell with dropout gets."""
    if not isinstance(cell, CellWithDropout) or cell.hidden_size < 1:
        raise ValueError("cell has a rate `dropout` but no `hidden_size`, the width of the masks it gets")
    return int(cell.hidden_size)


def refuse_random_layers(module: nn.Module, role: str) -> None:
    """The engine recomputes nodes, so a layer that draws or counts in training would give wrong gradients."""
    for name, layer in module.named_modules():
        if not layer.training or getattr(layer, "p", 1.0) == 0.0:
            continue
        drops = isinstance(layer, (nn.MultiheadAttention, nn.RNNBase)) and layer.dropout > 0.0
        for part in (layer, *layer._forward_pre_hooks.values()):
            if isinstance(part, _CHANGING) or (drops and part is layer):
                raise ValueError(
                    f"{role} contains {type(part).__name__} ({name or 'itself'}) in training mode, but must "
                    "be a function of its arguments: drop out by its `keep`, or put the layer in eval mode"
                )


_draws_nothing: WeakSet[nn.Module] = WeakSet()


def refuse_random_numbers(part: nn.Module, role: str, *rows: Tensor) -> None:
    """The same for what draws without such a layer, as by `F.dropout`: a first call on a row tells."""
    device = rows[0].device
    if not part.training or part in _draws_nothing or device.type not in ("cpu", "cuda"):
        return
    if device.type == "cpu":
        generator = torch.default_generator
    elif torch.cuda.is_current_stream_capturing():
        return
    else:
        generator = torch.cuda.default_generators[device.index]
    before = generator.get_state()
    with torch.no_grad():
        part(*rows)
    if not torch.equal(before, generator.get_state()):
        raise ValueError(
            f"{role} draws random numbers in training, as F.dropout does, but must be a function of its "
            "arguments: drop out by its `keep`"
        )
    _draws_nothing.add(part)


def refuse_other_tensors(outputs: Tensor, inputs: Sequence[Tensor]) -> None:
    """Gradient goes to parameters only: a tensor from elsewhere would silently get none."""
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
                f"a cell or scorer reads a tensor of shape {tuple(other.shape)} that requires gradient and "
                "is none of its parameters: make it one, or detach it"
            )
        nodes += [below for below, _ in node.next_functions]
