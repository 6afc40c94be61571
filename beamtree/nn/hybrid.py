"""Stacks of unlike layers over one sequence: trees, attention, state spaces, (B, n, d) → (B, n, d).

Every layer is a pre-norm residual block, so they go in any order; the stack carries the padding mask.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from beamtree.errors import BeamtreeError
from beamtree.nn.contextualizer import BeamTreeContextualizer
from beamtree.nn.state_space import StateSpaceLayer
from beamtree.pytorch.checks import lengths_from, require_tokens
from beamtree.pytorch.precision import layer_norm_wide

KINDS = ("tree", "attention", "ssm")


class HybridStack(nn.Module):
    """`HybridStack(["ssm", "tree", "attention"], 128)`.

    A layer is a name or a module of your own, called `layer(x, key_padding_mask)`. "tree" is a
    `BeamTreeContextualizer`, "attention" PyTorch's Transformer layer, which knows no positions (add them to
    the tokens, or put a layer that reads in order below it), "ssm" a `StateSpaceLayer`. A layer norm ends the
    stack.
    """

    def __init__(
        self,
        layers: Sequence[str | nn.Module],
        d_model: int,
        *,
        beam_size: int = 5,
        heads: int = 4,
        feedforward_size: int | None = None,
        state_size: int = 16,
        bidirectional: bool = True,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if isinstance(layers, str) or not isinstance(layers, Sequence) or not layers:
            raise ValueError(f"layers must be a list of names and modules, one at least, got {layers!r}")
        if "attention" in layers and d_model % heads:
            raise ValueError(f"heads must divide d_model = {d_model}, got {heads}")

        def build(layer: str | nn.Module) -> nn.Module:
            if isinstance(layer, nn.Module):
                return layer
            if layer == "tree":
                return BeamTreeContextualizer(
                    d_model, beam_size=beam_size, residual=True, dropout=dropout, device=device, dtype=dtype
                )
            if layer == "ssm":
                return StateSpaceLayer(
                    d_model,
                    state_size=state_size,
                    bidirectional=bidirectional,
                    dropout=dropout,
                    device=device,
                    dtype=dtype,
                )
            if layer == "attention":
                return nn.TransformerEncoderLayer(
                    d_model,
                    heads,
                    feedforward_size or 4 * d_model,
                    dropout,
                    nn.functional.gelu,
                    batch_first=True,
                    norm_first=True,
                    device=device,
                    dtype=dtype,
                )
            raise BeamtreeError(
                f"there is no layer {layer!r}; there are {', '.join(KINDS)}, or your own module"
            )

        self.d_model = d_model
        self.layers = nn.ModuleList(build(layer) for layer in layers)
        self.norm = nn.LayerNorm(d_model, device=device, dtype=dtype)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        lengths_from(x, key_padding_mask, input_size=self.d_model, weight=self.norm.weight)
        if key_padding_mask is not None:
            x = x.masked_fill(key_padding_mask.unsqueeze(-1), 0.0)
        for layer in self.layers:
            if isinstance(layer, nn.TransformerEncoderLayer):
                # PyTorch's attention takes no mask for an empty batch.
                x = layer(x, src_key_padding_mask=key_padding_mask if x.shape[0] else None)
            else:
                x = require_tokens(layer(x, key_padding_mask), x, layer)
        x = layer_norm_wide(x, self.norm)
        return x if key_padding_mask is None else x.masked_fill(key_padding_mask.unsqueeze(-1), 0.0)
