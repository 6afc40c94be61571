"""The leaf transform: what a token's vector passes before the tree is built, leaf = LayerNorm(W x + b)."""

import torch
from torch import Tensor, nn

from beamtree.kernels.runtime.products import linear
from beamtree.pytorch.checks import check_form, lengths_from, looks_at_values, zero_at_padding
from beamtree.pytorch.derivatives import is_transformed
from beamtree.pytorch.direct_reading import DirectlyRead
from beamtree.pytorch.precision import autocasts, layer_norm_wide
from beamtree.pytorch.registry import has_kernels
from beamtree.pytorch.threads import threads_for
from beamtree.pytorch.tracing import is_compiling

WIDEST_AT_ONCE = 256  # features of a leaf that one kernel reads, normalises and counts


class LeafTransform(DirectlyRead):
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
        return layer_norm_wide(linear(x, self.linear), self.norm)

    def read(
        self, x: Tensor, key_padding_mask: Tensor | None, *, once: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Leaves (B, n, d) and lengths (B,) of a checked input; what stands in padded rows has no effect.

        `once`: there will be no second derivative, so that on a GPU one kernel can do it in training too.
        """
        linear = self.linear
        size, weight = linear.in_features, linear.weight
        simple = once or not torch.is_grad_enabled()
        if simple and self._reads_at_once(x):
            check_form(x, key_padding_mask, input_size=size, weight=weight)
            from beamtree.kernels.leaf_kernels import read_leaves

            return read_leaves(x, key_padding_mask, linear, self.norm)
        lengths = lengths_from(x, key_padding_mask, input_size=size, weight=weight)
        x = zero_at_padding(x, key_padding_mask)
        with threads_for(x.numel() * linear.out_features, x):
            return self(x), lengths

    def _reads_at_once(self, x: Tensor) -> bool:
        """Whether one kernel does it all, with nobody looking on."""
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
