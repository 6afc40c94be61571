"""The base class of encoders with a gated recursive cell, and operations that they share."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.nn.leaf import LeafTransform
from beamtree.parts.cell import GatedRecursiveCell
from beamtree.pytorch.checks import ChecksSearch
from beamtree.pytorch.tracing import is_exporting


class TreeEncoder(ChecksSearch):
    """Base class of encoders that turn tokens into leaves and merge these with a gated recursive cell.

    A subclass decides which nodes are merged.

    Args:
        d_model: width of a node.
        input_size: width of the tokens, `d_model` if not given.
        dropout: dropout rate on the cell's hidden layer, with one mask per node.
    """

    def __init__(
        self,
        d_model: int,
        *,
        input_size: int | None = None,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.input_size = d_model if input_size is None else input_size
        self.leaf = LeafTransform(self.input_size, d_model, device=device, dtype=dtype)
        self.cell = GatedRecursiveCell(d_model, dropout=dropout, device=device, dtype=dtype)

    def read(self, x: Tensor, key_padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return leaves (B, n, d) and lengths (B,); the content of padded rows, even NaN, has no effect."""
        return self.leaf.read(x, key_padding_mask)


def refuse_export(module: nn.Module) -> None:
    """Raise NotImplementedError while `torch.export` traces a model that cannot be exported."""
    if is_exporting():
        raise NotImplementedError(
            f"{type(module).__name__} cannot be exported, neither by torch.export nor to ONNX"
        )


def with_zero_gradients(output: Tensor, parameters: Iterable[Tensor]) -> Tensor:
    """Return the output, made to depend on unused parameters, so that their gradients are zero, not None."""
    for parameter in parameters:
        output = output + parameter[:0].sum()
    return output


def gumbel_noise(*shape: int, like: Tensor) -> Tensor:
    """Draw standard Gumbel noise, −log of an exponential variable, at least in float32 as scores are."""
    wide = torch.promote_types(like.dtype, torch.float32)
    waiting = torch.empty(shape, dtype=wide, device=like.device).exponential_()
    return waiting.clamp_(min=torch.finfo(wide).tiny).log_().neg_()


def row(nodes: Tensor, index: Tensor) -> Tensor:
    """Return nodes[b, index[b]] for every b: (B, n, d), (B,) -> (B, d)."""
    return nodes.gather(1, index[:, None, None].expand(-1, 1, nodes.shape[-1])).squeeze(1)


def merge_by_choice(choice: Tensor, parents: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return y_j·p_j + (1 − c_j)·l_j + (c_j − y_j)·r_j with c = cumsum(y).

    The chosen pair is replaced by its parent; nodes before it stay in place, nodes after it move up by one.
    The choice y (B, pairs) may be spread over several pairs; parents and children are (B, pairs, d).
    """
    passed, choice = running_sum(choice).unsqueeze(-1), choice.unsqueeze(-1)
    return choice * parents + (1 - passed) * left + (passed - choice) * right


def running_sum(x: Tensor) -> Tensor:
    """cumsum along the last axis, which also works on a GPU with `torch.use_deterministic_algorithms`."""
    if x.is_cuda and torch.are_deterministic_algorithms_enabled():
        return sum_by_blocks(x)
    return x.cumsum(-1)


def sum_by_blocks(x: Tensor) -> Tensor:
    """cumsum by products with triangular matrices of ones: inside blocks of about √m, then over blocks."""
    m = x.shape[-1]
    size = int(m**0.5) + 1
    blocks = F.pad(x, (0, -m % size)).unflatten(-1, (-1, size))
    inside = blocks @ x.new_ones(size, size).triu()
    total = inside[..., -1]
    before = total @ x.new_ones(total.shape[-1], total.shape[-1]).triu(1)
    return (inside + before.unsqueeze(-1)).flatten(-2)[..., :m]
