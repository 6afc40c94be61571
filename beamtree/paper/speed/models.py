"""What can be measured: the zoo's encoders, the original algorithm, and variants of the paper's Table 1."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from beamtree.engine.naive import naive_beam_tree_recursion
from beamtree.errors import BeamtreeError, nearest
from beamtree.kernels.runtime.random_bits import draw_seed
from beamtree.nn.encoder import BeamTreeEncoder
from beamtree.trees.beam_trees import BeamTrees
from beamtree.zoo.by_name import create_encoder, encoder_names

NAIVE = "naive"


@dataclass(frozen=True)
class Variant:
    """An encoder of the zoo with options; `d_model` and `input_size` hold whatever sizes are asked for."""

    encoder: str
    options: Mapping[str, Any] = field(default_factory=dict)
    d_model: int | None = None
    input_size: int | None = None


_VARIANTS = {
    NAIVE: Variant("ebt-grc"),
    **{f"{name}-faithful": Variant(name, {"mode": "faithful"}) for name in ("gt-grc", "bt-grc", "bt-grc-os")},
    "ebt-grc-512": Variant("ebt-grc", d_model=512, input_size=128),
    "ebt-grc-512-noslice": Variant("ebt-grc-noslice", d_model=512, input_size=128),
}


class NaiveEncoder(nn.Module):
    """The original algorithm with the weights of an encoder: the same trees, values and gradients."""

    def __init__(self, encoder: BeamTreeEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.d_model, self.input_size = encoder.d_model, encoder.input_size

    def forward(
        self, x: Tensor, key_padding_mask: Tensor | None = None, *, need_trees: bool = False
    ) -> Tensor | tuple[Tensor, BeamTrees]:
        encoder = self.encoder
        leaves, lengths = encoder.read(x, key_padding_mask)
        dropout = float(getattr(encoder.cell, "dropout", 0.0)) if self.training else 0.0
        roots, scores, merges = naive_beam_tree_recursion(
            leaves,
            lengths,
            encoder.cell,
            encoder.scorer,
            beam_size=encoder.beam_size,
            seed=draw_seed(x.device) if self.training else None,
            noisy=self.training and encoder.stochastic,
            dropout=dropout,
        )
        root = (scores.softmax(1).unsqueeze(-1) * roots).sum(1)  # (B, d)
        if not need_trees:
            return root
        return root, BeamTrees(merges, scores, scores.new_zeros(len(scores), dtype=torch.float64), lengths)


def measurable_names() -> tuple[str, ...]:
    return (*encoder_names(), *_VARIANTS)


def find_variant(name: str) -> Variant:
    if name in _VARIANTS:
        return _VARIANTS[name]
    if name not in encoder_names():
        raise BeamtreeError(f"there is no model {name!r} to measure{nearest(name, measurable_names())}")
    return Variant(name)


@cache
def takes(name: str, option: str) -> bool:
    """Whether a model has an option such as `slice_size` to vary; one without a slice has none."""
    variant = find_variant(name)
    if option == "slice_size" and variant.encoder.endswith("-noslice"):
        return False
    constructor = type(create_encoder(variant.encoder, 16, device="meta"))
    return option in inspect.signature(constructor).parameters


def create_measured(
    name: str,
    d_model: int,
    *,
    beam_size: int | None = None,
    slice_size: int | None = None,
    dropout: float = 0.0,
    device: torch.device | str | None = None,
) -> nn.Module:
    """The encoder to measure; options that the model does not have are left out."""
    variant = find_variant(name)
    options: dict[str, Any] = {"beam_size": beam_size, "slice_size": slice_size}
    options = {key: value for key, value in options.items() if value is not None and takes(name, key)}
    encoder = create_encoder(
        variant.encoder,
        variant.d_model or d_model,
        input_size=variant.input_size,
        dropout=dropout,
        device=device,
        **{**variant.options, **options},
    )
    return NaiveEncoder(cast(BeamTreeEncoder, encoder)) if name == NAIVE else encoder
