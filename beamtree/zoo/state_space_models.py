"""State-space models as sentence encoders: stacks of S4D and of Mamba layers, and a tree over S4D layers."""

from typing import Any

import torch
from torch import Tensor, nn

from beamtree.nn.encoder import BeamTreeEncoder
from beamtree.nn.selective_state_space import SelectiveStateSpaceLayer
from beamtree.nn.state_space import StateSpaceLayer
from beamtree.parts.leaf import LeafTransform
from beamtree.pytorch.precision import layer_norm_wide
from beamtree.zoo.sequence_models import SequenceModel


class _MeanOfLayers(SequenceModel):
    """The sentence is the mean of its tokens after the last layer, normalised."""

    layers: nn.ModuleList

    def encode(self, leaves: Tensor, lengths: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        for layer in self.layers:
            leaves = layer(leaves, key_padding_mask)  # zero at padding
        return layer_norm_wide(leaves.sum(1) / lengths.clamp(min=1).unsqueeze(1), self.norm)


class S4DEncoder(_MeanOfLayers):
    """(B, n, input_size) -> (B, d): `layers` bidirectional S4D layers (Gu et al. 2022), then a mean."""

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
        _check_layers(layers)
        self.layers = nn.ModuleList(
            StateSpaceLayer(d_model, state_size=state_size, dropout=dropout, device=device, dtype=dtype)
            for _ in range(layers)
        )


class MambaEncoder(_MeanOfLayers):
    """(B, n, input_size) -> (B, d): `layers` of Mamba (Gu and Dao 2023), every second one reading from the
    right, then a mean."""

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
        _check_layers(layers)
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


class StateSpaceTree(nn.Module):
    """(B, n, input_size) -> (B, d): `layers` bidirectional S4D layers, and EBT-GRC of width `tree_size` (d if
    not given) over what they make of the tokens; its root is mapped to d."""

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
        _check_layers(layers)
        self.d_model = d_model
        tree_size = d_model if tree_size is None else tree_size
        self.leaf = LeafTransform(
            d_model if input_size is None else input_size, d_model, device=device, dtype=dtype
        )
        self.layers = nn.ModuleList(
            StateSpaceLayer(d_model, state_size=state_size, dropout=dropout, device=device, dtype=dtype)
            for _ in range(layers)
        )
        self.tree = BeamTreeEncoder(
            tree_size,
            input_size=d_model,
            beam_size=beam_size,
            slice_size=slice_size,
            dropout=dropout,
            device=device,
            dtype=dtype,
        )
        self.out = nn.Linear(tree_size, d_model, device=device, dtype=dtype)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None, need_trees: bool = False) -> Any:
        tokens, _ = self.leaf.read(x, key_padding_mask)
        for layer in self.layers:
            tokens = layer(tokens, key_padding_mask)
        found = self.tree(tokens, key_padding_mask, need_trees=need_trees)
        root, trees = found if need_trees else (found, None)
        vector = self.out(root).to(root.dtype)
        return (vector, trees) if need_trees else vector


def _check_layers(layers: int) -> None:
    if layers < 1:
        raise ValueError(f"layers must be at least 1, got {layers}")
