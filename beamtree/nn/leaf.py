"""The leaf transform, applied to each token before the tree is built: leaf = LayerNorm(W x + b)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.kernels.runtime.products import FEW, float32_precision, product
from beamtree.pytorch.checks import check_form, lengths_from, looks_at_values, zero_at_padding
from beamtree.pytorch.derivatives import carries_tangents, is_transformed
from beamtree.pytorch.direct_reading import DirectlyRead, read_part
from beamtree.pytorch.launch import has_kernels
from beamtree.pytorch.precision import autocasts, in_blocks, layer_norm_wide
from beamtree.pytorch.threads import threads_for
from beamtree.pytorch.tracing import is_compiling

WIDEST_AT_ONCE = 256  # the most features of a leaf for which one kernel does the whole transform


class LeafTransform(DirectlyRead):
    """LayerNorm(W x + b), which turns tokens (…, input_size) into leaves (…, d_model)."""

    def __init__(
        self,
        input_size: int,
        d_model: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(input_size, d_model, device=device, dtype=dtype)
        self.norm = nn.LayerNorm(d_model, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Return the leaves (…, d_model) of tokens (…, input_size)."""
        return layer_norm_wide(linear(x, self.linear), self.norm)

    def read(
        self, x: Tensor, key_padding_mask: Tensor | None, *, once: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Check the input and return leaves (B, n, d) and lengths (B,); padded rows have no effect.

        `once` promises that there will be no second derivative, so that on a GPU a single kernel can be used
        in training too.
        """
        size, weight = self.linear.in_features, self.linear.weight
        if (once or not torch.is_grad_enabled()) and self._one_kernel_reads(x):
            check_form(x, key_padding_mask, input_size=size, weight=weight)
            from beamtree.kernels.leaf_kernels import read_leaves

            return read_leaves(x, key_padding_mask, self.linear, self.norm)
        lengths = lengths_from(x, key_padding_mask, input_size=size, weight=weight)
        x = zero_at_padding(x, key_padding_mask)
        with threads_for(x.numel() * self.linear.out_features, x):
            return self(x), lengths

    def _one_kernel_reads(self, x: Tensor) -> bool:
        """Return True if one kernel can do it all: no hooks would be skipped, and values are not checked."""
        linear, norm = self.linear, self.norm
        return (
            not is_compiling()
            and type(x) is Tensor
            and x.is_cuda
            and x.dtype == linear.weight.dtype == torch.float32
            and x.numel() > 0
            and linear.out_features <= WIDEST_AT_ONCE
            and not (self._forward_hooks or self._forward_pre_hooks)
            and not (linear._forward_pre_hooks or norm._forward_pre_hooks)
            and not autocasts(x)
            and not looks_at_values(x)
            and has_kernels(x.device)
            and not is_transformed()
        )


def linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """`layer(x)`; for small inputs by our kernel, and so are the derivatives, of any order."""
    weight, bias = read_part(layer)
    rows, shape = x.reshape(-1, x.shape[-1]), (*x.shape[:-1], weight.shape[0])
    if is_few(x, weight):
        y: Tensor = _Product.apply(rows, weight.t())
        return y.view(shape) + bias
    if x.device.type == "cpu" and not is_compiling():
        return F.linear(in_blocks(rows), weight, bias)[: rows.shape[0]].view(shape)
    return F.linear(x, weight, bias)


def is_few(x: Tensor, weight: Tensor) -> bool:
    return (
        x.is_cuda
        and torch.is_grad_enabled()
        and x.numel() <= FEW
        and x.dtype == weight.dtype == torch.float32
        and not is_compiling()
        and not autocasts(x)
        and not carries_tangents(x, weight)
        and has_kernels(x.device)
    )


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        with torch.cuda.device_of(x):
            return product(x, y, float32_precision())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, y = ctx.saved_tensors
        to_x = _Product.apply(grad, y.t()) if ctx.needs_input_grad[0] else None
        return to_x, _Product.apply(x.t(), grad) if ctx.needs_input_grad[1] else None
