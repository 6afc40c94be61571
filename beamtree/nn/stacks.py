"""Trees among other layers: stacks of unlike layers, a tree block in place of a Transformer layer, and the
words of an encoder that reads subwords.

Every layer of a stack is a pre-norm residual block, (B, n, d) → (B, n, d), so they go in any order; the stack
carries the padding mask.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from beamtree.errors import BeamtreeError
from beamtree.nn.contextualizer import BeamTreeContextualizer
from beamtree.nn.state_space import StateSpaceLayer
from beamtree.pytorch.checks import lengths_from, looks_at_values, require_tokens, zero_at_padding
from beamtree.pytorch.precision import layer_norm_wide

OUTSIDE = -1  # the word of a special token, or of padding


class HybridStack(nn.Module):
    """`HybridStack(["ssm", "tree", "attention"], 128)`.

    A layer is a name or a module of your own, called `layer(x, key_padding_mask)`. "tree" is a
    `BeamTreeContextualizer`, "ssm" a `StateSpaceLayer`, "attention" PyTorch's Transformer layer, which does
    not know positions: add them to the tokens, or put a layer below it that reads in order. A layer norm ends
    the stack.
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
            raise ValueError(f"layers must be a non-empty list of names and modules, got {layers!r}")
        if "attention" in layers and d_model % heads:
            raise ValueError(f"heads must divide d_model = {d_model}, got {heads}")

        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        kinds: dict[str, Callable[[], nn.Module]] = {
            "tree": lambda: BeamTreeContextualizer(
                d_model, beam_size=beam_size, residual=True, dropout=dropout, **factory
            ),
            "attention": lambda: nn.TransformerEncoderLayer(
                d_model,
                heads,
                feedforward_size or 4 * d_model,
                dropout,
                nn.functional.gelu,
                batch_first=True,
                norm_first=True,
                **factory,
            ),
            "ssm": lambda: StateSpaceLayer(
                d_model, state_size=state_size, bidirectional=bidirectional, dropout=dropout, **factory
            ),
        }
        self.layers = nn.ModuleList()
        for layer in layers:
            if not isinstance(layer, nn.Module) and layer not in kinds:
                raise BeamtreeError(f"there is no layer {layer!r}: use {', '.join(kinds)} or your own module")
            self.layers.append(layer if isinstance(layer, nn.Module) else kinds[layer]())
        self.d_model = d_model
        self.norm = nn.LayerNorm(d_model, **factory)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        lengths_from(x, key_padding_mask, input_size=self.d_model, weight=self.norm.weight)
        x = zero_at_padding(x, key_padding_mask)
        for layer in self.layers:
            if isinstance(layer, nn.TransformerEncoderLayer):
                # PyTorch's attention takes no mask for an empty batch.
                x = layer(x, src_key_padding_mask=key_padding_mask if x.shape[0] else None)
            else:
                x = require_tokens(layer(x, key_padding_mask), x, layer)
        return zero_at_padding(layer_norm_wide(x, self.norm), key_padding_mask)


class TreeTransformerLayer(nn.Module):
    """A block that is called like `nn.TransformerEncoderLayer`, to take its place.

    The block itself is called `block(x, key_padding_mask)` on (B, n, d). Give it `residual=True`, as the
    layers it replaces are residual. A tree sees the whole sequence, so causal use raises an error.
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
                    "a floating-point src_key_padding_mask must be 0 at tokens and -inf at padding: trees "
                    "cannot weight their tokens"
                )
            mask = is_padding
        y = require_tokens(self.block(x, mask), x, self.block)
        if src.dim() == 2:
            return y.squeeze(0)
        return y if self.batch_first else y.transpose(0, 1)


class SubwordsToWords(nn.Module):
    """The mean of each word's subwords: vectors (B, s, d) and word ids (B, s) -> (B, n, d), padding (B, n).

    Word ids count from 0 in every row and are −1 at special tokens and padding. A word without subwords gets
    a vector of zeros. The layer has no weights.
    """

    def forward(self, x: Tensor, word_ids: Tensor) -> tuple[Tensor, Tensor]:
        if x.dim() != 3 or word_ids.shape != x.shape[:2]:
            raise ValueError(
                f"word_ids must be (B, s) for x (B, s, d), got shapes {tuple(word_ids.shape)} "
                f"and {tuple(x.shape)}"
            )
        counts = word_ids.amax(1, keepdim=True) + 1  # (B, 1)
        places = torch.arange(int(counts.max()), device=x.device)  # (n,)
        belongs = (word_ids.unsqueeze(1) == places.unsqueeze(1)).to(x.dtype)  # (B, n, s)
        shares = belongs / belongs.sum(-1, keepdim=True).clamp(min=1)
        return shares @ x, places >= counts

    @staticmethod
    def word_ids(encoding: Any) -> Tensor:
        """Word ids (B, s), from what a fast tokenizer of `transformers` returns for a list of texts."""
        if not getattr(encoding, "is_fast", False):
            raise ValueError("word ids need a fast tokenizer, one with a tokenizer.json")
        rows = range(len(encoding["input_ids"]))
        words = [[OUTSIDE if word is None else word for word in encoding.word_ids(row)] for row in rows]
        return torch.tensor(words)
