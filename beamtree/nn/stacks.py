"""Trees combined with other layers: mixed stacks, a tree block in place of a Transformer layer, and words
averaged from subwords.

Every layer of a stack is a pre-norm residual block, (B, n, d) → (B, n, d), so layers can go in any order; the
stack passes the padding mask on to each.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from beamtree.errors import BeamtreeError
from beamtree.nn.contextualizer import BeamTreeContextualizer
from beamtree.nn.state_space import StateSpaceLayer
from beamtree.pytorch.checks import (
    check_mask,
    lengths_from,
    looks_at_values,
    require_tokens,
    zero_at_padding,
)
from beamtree.pytorch.precision import layer_norm_wide

OUTSIDE = -1  # the word id of special tokens and of padding


class HybridStack(nn.Module):
    """A stack of different layers with a final layer norm, (B, n, d_model) -> (B, n, d_model).

    ```python
    stack = HybridStack(["ssm", "tree", "attention"], 128)
    y = stack(x, key_padding_mask=is_pad)  # (B, n, 128), (B, n) -> (B, n, 128), zero at padding
    ```

    PyTorch's Transformer layer does not know the positions of tokens: add them to the tokens, or put a layer
    below it that reads in order, such as "ssm".

    Args:
        layers: names or modules of your own, from the input to the output: "tree" is a
            `BeamTreeContextualizer`, "ssm" a `StateSpaceLayer`, "attention" an `nn.TransformerEncoderLayer`.
            Your own module is called `layer(x, key_padding_mask)` and returns a tensor of the shape of x.
            The stack adds no skip connection: give a `BeamTreeContextualizer` of your own `residual=True`.
        d_model: width of a token.
        beam_size: how many trees a "tree" layer keeps.
        heads: number of heads of an "attention" layer; must divide `d_model`.
        feedforward_size: feed-forward width of an "attention" layer, 4·d_model if not given.
        state_size: states per feature of an "ssm" layer.
        bidirectional: whether an "ssm" layer reads in both directions.
        dropout: dropout rate of all named layers.
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
        """Apply the layers to x (B, n, d_model); the mask (B, n) is True at padding, on the right."""
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
    """Wraps a block so that it can replace an `nn.TransformerEncoderLayer`.

    ```python
    layer = TreeTransformerLayer(BeamTreeContextualizer(128, residual=True))
    transformer = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    y = transformer(x, src_key_padding_mask=is_pad)  # (B, n, 128), (B, n) -> (B, n, 128)
    ```

    A tree spans the whole sequence, so `is_causal=True` or a `src_mask` raises a ValueError.

    Args:
        block: called `block(x, key_padding_mask)` on (B, n, d). Nothing else adds a skip connection, which
            Transformer layers have: give a `BeamTreeContextualizer` `residual=True`.
        batch_first: whether `src` is (B, n, d) or (n, B, d).
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
        """Apply the block to src, called like `nn.TransformerEncoderLayer`; src may also be (n, d)."""
        if is_causal:
            raise ValueError("is_causal must be False: a tree spans the whole sequence, the future included")
        if src_mask is not None:
            raise ValueError("src_mask must be None: a tree spans the whole sequence and cannot obey a mask")
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
                    "a floating-point src_key_padding_mask must be 0 at tokens and -inf at padding: a tree "
                    "cannot weight its tokens"
                )
            mask = is_padding
        if mask is not None:
            check_mask(mask, x, "src_key_padding_mask")
        y = require_tokens(self.block(x, mask), x, self.block)
        if src.dim() == 2:
            return y.squeeze(0)
        return y if self.batch_first else y.transpose(0, 1)


class SubwordsToWords(nn.Module):
    """Averages each word's subwords: vectors (B, s, d), word ids (B, s) -> (B, n, d), padding (B, n).

    ```python
    encoding = tokenizer(texts, padding=True, return_tensors="pt")
    subwords = model(**encoding).last_hidden_state  # (B, s, d)
    words, is_pad = SubwordsToWords()(subwords, SubwordsToWords.word_ids(encoding))
    ```

    Word ids count from 0 in every row and are −1 at special tokens and padding. A word without subwords gets
    a vector of zeros. The layer has no weights.
    """

    def forward(self, x: Tensor, word_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the words (B, n, d) and their padding mask (B, n), True at padding."""
        if x.dim() != 3 or word_ids.shape != x.shape[:2]:
            raise ValueError(
                f"word_ids must be (B, s) for x (B, s, d), got shapes {tuple(word_ids.shape)} "
                f"and {tuple(x.shape)}"
            )
        counts = word_ids.amax(1, keepdim=True) + 1  # (B, 1)
        places = torch.arange(int(counts.max()), device=x.device)  # (n,)
        belongs = (word_ids.unsqueeze(1) == places.unsqueeze(1)).to(x.dtype)  # (B, n, s)
        shares = belongs / belongs.sum(-1, keepdim=True).clamp(min=1)
        # Some encoders leave NaN at padding, of which even a share of zero is NaN.
        x = zero_at_padding(x, word_ids < 0)
        return shares @ x, places >= counts

    @staticmethod
    def word_ids(encoding: Any) -> Tensor:
        """Return the word ids (B, s) of the result of a fast `transformers` tokenizer for a list of texts."""
        if not getattr(encoding, "is_fast", False):
            raise ValueError("word ids need a fast tokenizer, one with a tokenizer.json")
        rows = range(len(encoding["input_ids"]))
        words = [[OUTSIDE if word is None else word for word in encoding.word_ids(row)] for row in rows]
        return torch.tensor(words)
