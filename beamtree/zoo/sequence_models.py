"""Sequence models as sentence encoders: BiLSTM (Hochreiter and Schmidhuber 1997), stacks of S4D layers (Gu et
al. 2022) and of Mamba layers (Gu and Dao 2023), and a tree over S4D layers.

They are here for comparison: none of them is in the paper, and the settings are ours.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.graphs.whole_graphs import WholeGraphs, lengthen
from beamtree.nn.encoder import BeamTreeEncoder
from beamtree.nn.leaf import LeafTransform
from beamtree.nn.state_space import SelectiveStateSpaceLayer, StateSpaceLayer
from beamtree.pytorch.checks import at_least_one, at_least_one_if_given, check_rates, padding_of
from beamtree.pytorch.precision import layer_norm_wide
from beamtree.pytorch.tracing import State, at, check_exported, is_exporting, runs_eagerly, traced_loop
from beamtree.zoo.tree_encoder import refuse_export, row


class _InGraphs(nn.Module):
    """Base class of models that train in CUDA graphs.

    Each of their layers is dozens of small kernels, so that a GPU would mostly wait for launches.
    """

    def __init__(self) -> None:
        super().__init__()
        self.graphs = WholeGraphs()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({"graphs": WholeGraphs(), **state})  # older pickles have no graphs

    def may_replay(self, tokens: Tensor) -> bool:
        """Return True if these tokens (B, n, d) may be processed in CUDA graphs."""
        return self.graphs.may_replay(tokens)

    def pad(self, tokens: Tensor, is_padding: Tensor | None) -> tuple[Tensor, Tensor]:
        """Pad tokens (B, n, d) and their mask to a length for which graphs are captured."""
        more = self.graphs.padding(tokens)
        return lengthen(tokens, more), lengthen(padding_of(tokens, is_padding), more, value=True)


class SequenceModel(_InGraphs):
    """Base class of encoders without trees: leaf transform, final norm, and an error for `need_trees`."""

    builds_trees = False

    def __init__(
        self,
        d_model: int,
        *,
        input_size: int | None,
        dropout: float,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        check_rates(dropout=dropout)
        self.d_model = d_model
        self.input_size = d_model if input_size is None else input_size
        self.leaf = LeafTransform(self.input_size, d_model, device=device, dtype=dtype)
        self.norm = nn.LayerNorm(d_model, device=device, dtype=dtype)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None, need_trees: bool = False) -> Tensor:
        """Encode x (B, n, input_size) as (B, d_model).

        `key_padding_mask` (B, n) is True at padding, on the right. `need_trees=True` raises ValueError, as
        there are no trees.
        """
        if need_trees:
            raise ValueError(f"{type(self).__name__} builds no tree: call it without need_trees")
        leaves, lengths = self.leaf.read(x, key_padding_mask)
        if not self.may_replay(leaves):
            return self.encode(leaves, lengths, key_padding_mask)
        leaves, is_padding = self.pad(leaves, key_padding_mask)
        return self.graphs.run(self.encode, (leaves, lengths, is_padding), [self], (self.training,))

    def encode(self, leaves: Tensor, lengths: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Return the sentence vectors (B, d) of leaves (B, n, d)."""
        raise NotImplementedError


class BiLSTM(SequenceModel):
    """A bidirectional LSTM, (B, n, input_size) -> (B, d_model).

    The sentence vector is the last states of both directions, concatenated, mapped to d_model if their width
    differs, and normalised.

    Args:
        d_model: width of the result.
        input_size: width of the tokens, `d_model` if not given.
        layers: number of layers.
        hidden_size: features per layer and direction; if not given, `d_model` / 2, which must then be even.
        dropout: dropout rate on the input of every layer.
    """

    def __init__(
        self,
        d_model: int,
        *,
        input_size: int | None = None,
        layers: int = 1,
        hidden_size: int | None = None,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if hidden_size is None and d_model % 2:
            raise ValueError(f"d_model must be even, half of it for each direction, got {d_model}")
        at_least_one(layers=layers)
        at_least_one_if_given(hidden_size=hidden_size)
        super().__init__(d_model, input_size=input_size, dropout=dropout, device=device, dtype=dtype)
        self.hidden_size = d_model // 2 if hidden_size is None else hidden_size
        both = 2 * self.hidden_size
        self.rightward, self.leftward = (
            nn.ModuleList(
                _OneWayLSTM(
                    both if layer else d_model, self.hidden_size, batch_first=True, device=device, dtype=dtype
                )
                for layer in range(layers)
            )
            for _ in range(2)
        )
        self.out = nn.Identity() if both == d_model else nn.Linear(both, d_model, device=device, dtype=dtype)

    def may_replay(self, tokens: Tensor) -> bool:
        return False  # cuDNN runs a whole LSTM in one call

    def encode(self, leaves: Tensor, lengths: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        check_exported(self)
        if is_exporting():
            return self._read_both_ways(leaves, lengths)
        B, n, _ = leaves.shape
        if B == 0:  # cuDNN refuses an empty batch
            leaves, lengths = F.pad(leaves, (0, 0, 0, 0, 0, 1)), F.pad(lengths, (0, 1), value=n)
        return self._read_eagerly(leaves, lengths)[:B]

    def _read_both_ways(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        # Both directions read padding last, so it affects no token and the host need not know the lengths.
        last = (lengths - 1).clamp(min=0)
        place = torch.arange(tokens.shape[1], device=tokens.device)
        from_end = last.unsqueeze(1) - place
        turned = torch.where(from_end >= 0, from_end, place)  # (B, n); padding stays
        for rightward, leftward in zip(self.rightward, self.leftward, strict=True):
            tokens = self.dropout(tokens)
            there = _read(rightward, tokens, lengths)
            back = _read(leftward, _turn(tokens, turned), lengths)
            tokens = torch.cat((there, _turn(back, turned)), -1)  # (B, n, d)
        half = self.hidden_size
        ends = torch.cat((row(tokens, last)[:, :half], tokens[:, 0, half:]), -1)
        return layer_norm_wide(self.out(ends), self.norm)

    _read_eagerly = runs_eagerly(_read_both_ways)


class _OneWayLSTM(nn.LSTM):
    """An LSTM that is always in training mode, because cuDNN computes no gradients in evaluation mode.

    For a single layer the mode does not change the result.
    """

    weight_ih_l0: Tensor
    weight_hh_l0: Tensor
    bias_ih_l0: Tensor
    bias_hh_l0: Tensor

    def train(self, mode: bool = True) -> "_OneWayLSTM":
        return super().train()


def _turn(tokens: Tensor, turned: Tensor) -> Tensor:
    """Reorder the tokens (B, n, d) of each sequence by the places `turned` (B, n)."""
    return tokens.gather(1, turned.unsqueeze(-1).expand_as(tokens))


def _read(layer: nn.Module, tokens: Tensor, lengths: Tensor) -> Tensor:
    """Return the state after each token: (B, n, input features) -> (B, n, hidden_size)."""
    if not is_exporting():
        found: Tensor = layer(tokens)[0]
        return found
    # PyTorch would unroll its own loop for one length.
    lstm = cast(_OneWayLSTM, layer)
    inputs = F.linear(tokens, lstm.weight_ih_l0, lstm.bias_ih_l0)  # (B, n, 4·hidden_size)
    column = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(-1)  # (n, 1)

    def step(t: Tensor, states: Tensor, state: Tensor, memory: Tensor) -> State:
        gates = at(inputs, t, 1) + F.linear(state, lstm.weight_hh_l0, lstm.bias_hh_l0)
        write, keep, new, show = gates.chunk(4, -1)
        memory = keep.sigmoid() * memory + write.sigmoid() * new.tanh()
        state = show.sigmoid() * memory.tanh()
        return torch.where(column == t, state.unsqueeze(1), states), state, memory

    nothing = torch.zeros_like(inputs[..., : lstm.hidden_size])
    start = (nothing, nothing[:, 0].clone(), nothing[:, 0].clone())
    return traced_loop(lambda t, *_: t < lengths.max(), step, start)[0]


class _MeanOfLayers(SequenceModel):
    """Base class of encoders whose sentence vector is the normalised mean of the last layer's tokens."""

    layers: nn.ModuleList

    def encode(self, leaves: Tensor, lengths: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        for layer in self.layers:
            leaves = layer(leaves, key_padding_mask)  # zero at padding
        return layer_norm_wide(leaves.sum(1) / lengths.clamp(min=1).unsqueeze(1), self.norm)


class S4DEncoder(_MeanOfLayers):
    """A stack of bidirectional S4D layers (Gu et al. 2022) and a mean, (B, n, input_size) -> (B, d_model)."""

    def __init__(
        self,
        d_model: int,
        *,
        input_size: int | None = None,
        layers: int = 6,
        state_size: int = 32,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d_model, input_size=input_size, dropout=dropout, device=device, dtype=dtype)
        at_least_one(layers=layers)
        self.layers = nn.ModuleList(
            StateSpaceLayer(d_model, state_size=state_size, dropout=dropout, device=device, dtype=dtype)
            for _ in range(layers)
        )


class MambaEncoder(_MeanOfLayers):
    """A stack of Mamba layers (Gu and Dao 2023) and a mean, (B, n, input_size) -> (B, d_model).

    Every second layer reads from right to left.
    """

    def __init__(
        self,
        d_model: int,
        *,
        input_size: int | None = None,
        layers: int = 4,
        inner_size: int | None = None,
        state_size: int = 16,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d_model, input_size=input_size, dropout=dropout, device=device, dtype=dtype)
        at_least_one(layers=layers)
        self.layers = nn.ModuleList(
            SelectiveStateSpaceLayer(
                d_model,
                inner_size=inner_size,
                state_size=state_size,
                backwards=layer % 2 == 1,
                dropout=dropout,
                device=device,
                dtype=dtype,
            )
            for layer in range(layers)
        )

    def encode(self, leaves: Tensor, lengths: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        refuse_export(self)
        return super().encode(leaves, lengths, key_padding_mask)


class StateSpaceTree(_InGraphs):
    """EBT-GRC over bidirectional S4D layers, (B, n, input_size) -> (B, d_model).

    The S4D layers contextualise the tokens; the root of the EBT-GRC over them is mapped to d_model.

    Args:
        d_model: width of the S4D layers and of the result.
        input_size: width of the tokens, `d_model` if not given.
        layers: number of S4D layers.
        state_size: states per feature of an S4D layer.
        tree_size: width of the tree's nodes, `d_model` if not given.
        beam_size: how many trees are kept.
        slice_size: how many features the scorer sees; None, or more than there are, for all of them.
        dropout: dropout rate of the S4D layers and of the cell.
    """

    builds_trees = True

    def __init__(
        self,
        d_model: int,
        *,
        input_size: int | None = None,
        layers: int = 2,
        state_size: int = 16,
        tree_size: int | None = None,
        beam_size: int = 5,
        slice_size: int | None = 64,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        at_least_one(layers=layers)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.d_model = d_model
        tree_size = d_model if tree_size is None else tree_size
        self.leaf = LeafTransform(d_model if input_size is None else input_size, d_model, **factory)
        self.layers = nn.ModuleList(
            StateSpaceLayer(d_model, state_size=state_size, dropout=dropout, **factory) for _ in range(layers)
        )
        search: dict[str, Any] = {"beam_size": beam_size, "slice_size": slice_size, "dropout": dropout}
        self.tree = BeamTreeEncoder(tree_size, input_size=d_model, **search, **factory)
        self.out = nn.Linear(tree_size, d_model, **factory)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None, need_trees: bool = False) -> Any:
        """Encode x (B, n, input_size) as (B, d_model); with `need_trees` also return the trees found.

        `key_padding_mask` (B, n) is True at padding, on the right.
        """
        leaves, _ = self.leaf.read(x, key_padding_mask)
        if self.may_replay(leaves):
            given = self.pad(leaves, key_padding_mask)
            tokens = self.graphs.run(self._contextualize, given, list(self.layers))[:, : leaves.shape[1]]
        else:
            tokens = self._contextualize(leaves, key_padding_mask)
        found = self.tree(tokens, key_padding_mask, need_trees=need_trees)
        root, trees = found if need_trees else (found, None)
        vector = self.out(root).to(root.dtype)
        return (vector, trees) if need_trees else vector

    def _contextualize(self, tokens: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        for layer in self.layers:
            tokens = layer(tokens, key_padding_mask)
        return tokens
