"""A tree block in place of a Transformer layer: `nn.TransformerEncoder(TreeTransformerLayer(block), 2)`."""

import torch
from torch import Tensor, nn

from beamtree.pytorch.checks import looks_at_values, require_tokens


class TreeTransformerLayer(nn.Module):
    """Takes the arguments of `nn.TransformerEncoderLayer` and hands the block those it knows.

    The block is called `block(x, key_padding_mask)` on (B, n, d). Give it `residual=True`, as the layers it
    replaces have. A tree looks at the whole sequence, so causal use is refused.
    """

    def __init__(self, block: nn.Module, *, batch_first: bool = True) -> None:
        super().__init__()
        self.block = block
        self.batch_first = batch_first

    @property
    def self_attn(self) -> "TreeTransformerLayer":
        """`nn.TransformerEncoder` asks its first layer for `self_attn.batch_first`."""
        return self

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        if is_causal:
            raise ValueError("is_causal must be False: a tree spans the whole sequence, the future included")
        if src_mask is not None:
            raise ValueError("src_mask must be None: a leaf attends to its ancestors, whatever a mask allows")
        if src.dim() not in (2, 3):
            raise ValueError(f"src must have 2 or 3 dimensions, got shape {tuple(src.shape)}")
        x, mask = src, src_key_padding_mask
        if src.dim() == 2:
            x, mask = src.unsqueeze(0), None if mask is None else mask.unsqueeze(0)
        elif not self.batch_first:
            x = src.transpose(0, 1)
        if mask is not None and mask.is_floating_point():
            is_padding = mask == -torch.inf
            if looks_at_values(mask) and not (is_padding | (mask == 0)).all():
                raise ValueError(
                    "src_key_padding_mask of numbers must be 0 at tokens and -inf at padding: no token of a "
                    "tree counts less than another"
                )
            mask = is_padding
        y = require_tokens(self.block(x, mask), x, self.block)
        if src.dim() == 2:
            return y.squeeze(0)
        return y if self.batch_first else y.transpose(0, 1)
