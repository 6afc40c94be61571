"""Encoders of sentence pairs whose tokens attend to each other: GAU, EGT-GAU, EBT-GAU (paper, appendix
"sentence interaction models").

    r = attention over [c₁+s₁; Y₁+s₁; SEP; c₂+s₂; Y₂+s₂]      pair = Σ softmax(w·GELU(W r + b))_i r_i
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.graphs.whole_graphs import WholeGraphs, lengthen
from beamtree.nn.attention import GatedAttentionUnit, masked_softmax
from beamtree.nn.contextualizer import BeamTreeContextualizer
from beamtree.nn.heads import Perceptron
from beamtree.parts.leaf import LeafTransform
from beamtree.pytorch.checks import lengths_from, padding_of, zero_at_padding
from beamtree.pytorch.precision import without_autocast
from beamtree.pytorch.tracing import check_exported
from beamtree.trees.beam_trees import BeamTrees
from beamtree.zoo.by_name import create_encoder

TREE_PARTS = ("leaf", "cell", "scorer")


class PairEncoder(nn.Module):
    """What the three share: one sequence of both sentences, attention over it, and pooling.

    `random_segments` draws the segment vectors from N(0, 1), as in the paper's text; the published code has
    zeros.
    """

    input_size: int

    def __init__(
        self,
        d_model: int,
        *,
        random_segments: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.d_model = d_model
        draw = torch.randn if random_segments else torch.zeros
        self.sep = nn.Parameter(torch.randn(d_model, **factory))
        self.seg1 = nn.Parameter(draw(d_model, **factory))
        self.seg2 = nn.Parameter(draw(d_model, **factory))
        self.pool = Perceptron(d_model, d_model, 1, **factory)
        self.graphs = WholeGraphs()

    def interact(
        self,
        tokens: tuple[Tensor, Tensor],  # (B, n1, d), (B, n2, d)
        cls: tuple[Tensor, Tensor],  # (B, d) each
        is_padding: tuple[Tensor, Tensor],
        units: Sequence[nn.Module],
    ) -> Tensor:  # (B, d)
        """Attention over both sentences, then pooling; on a GPU by CUDA graphs where possible."""
        first, second = map(self.graphs.padding, tokens)
        (pair,) = self.graphs.run(
            lambda *given: (self._meet(units, *given),),
            (
                lengthen(tokens[0], first),
                lengthen(tokens[1], second),
                *cls,
                lengthen(is_padding[0], first, value=True),
                lengthen(is_padding[1], second, value=True),
                self.sep,
                self.seg1,
                self.seg2,
            ),
            (self.pool, *dict.fromkeys(units)),
        )
        return pair

    def _checked(
        self, x1: Tensor, x2: Tensor, mask1: Tensor | None, mask2: Tensor | None
    ) -> list[tuple[Tensor, Tensor]]:
        """Both sentences with their masks."""
        checked = []
        for number, (x, mask) in enumerate(((x1, mask1), (x2, mask2)), 1):
            try:
                lengths_from(x, mask, input_size=self.input_size, weight=self.sep)
            except ValueError as error:
                raise ValueError(f"in x{number} or key_padding_mask{number}: {error}") from error
            checked.append((x, padding_of(x, mask)))
        if x1.shape[0] != x2.shape[0]:
            raise ValueError(
                f"x1 and x2 must hold the same number of sentences, got {x1.shape[0]} and {x2.shape[0]}"
            )
        return checked

    def _meet(
        self,
        units: Iterable[nn.Module],
        tokens1: Tensor,
        tokens2: Tensor,
        cls1: Tensor,
        cls2: Tensor,
        is_padding1: Tensor,
        is_padding2: Tensor,
        sep: Tensor,
        seg1: Tensor,
        seg2: Tensor,
    ) -> Tensor:  # (B, d)
        z = torch.cat(
            (
                torch.cat((cls1.unsqueeze(1), tokens1), 1) + seg1,
                sep.expand(cls1.shape[0], 1, -1),
                torch.cat((cls2.unsqueeze(1), tokens2), 1) + seg2,
            ),
            1,
        )  # (B, n1 + n2 + 3, d)
        padding = torch.cat((F.pad(is_padding1, (1, 1)), F.pad(is_padding2, (1, 0))), 1)
        # The first sentence's padding lies in the middle; positions count real tokens only.
        positions = (~padding).cumsum(1) - 1
        for unit in units:
            z = unit(z, padding, positions=positions)
        weights = masked_softmax(self.pool(z).squeeze(-1), ~padding).to(z.dtype)
        with without_autocast(z):
            return torch.einsum("bi,bid->bd", weights, z)


class GatedAttentionPairEncoder(PairEncoder):
    """GAU: no trees; the tokens as they are, a trained CLS vector, `layers` units with their own weights."""

    builds_trees = False

    def __init__(
        self,
        d_model: int,
        *,
        input_size: int | None = None,
        layers: int = 5,
        dropout: float = 0.0,
        scalar_bias: bool = False,
        random_segments: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d_model, random_segments=random_segments, device=device, dtype=dtype)
        self.input_size = d_model if input_size is None else input_size
        self.leaf = LeafTransform(self.input_size, d_model, device=device, dtype=dtype)
        self.cls = nn.Parameter(torch.randn(d_model, device=device, dtype=dtype))
        self.gau = nn.ModuleList(
            GatedAttentionUnit(d_model, dropout=dropout, scalar_bias=scalar_bias, device=device, dtype=dtype)
            for _ in range(layers)
        )

    def forward(
        self,
        x1: Tensor,
        x2: Tensor,
        key_padding_mask1: Tensor | None = None,
        key_padding_mask2: Tensor | None = None,
    ) -> Tensor:
        (x1, mask1), (x2, mask2) = self._checked(x1, x2, key_padding_mask1, key_padding_mask2)
        tokens = self.leaf(zero_at_padding(x1, mask1)), self.leaf(zero_at_padding(x2, mask2))
        cls = self.cls.expand(x1.shape[0], -1)
        return self.interact(tokens, (cls, cls), (mask1, mask2), list(self.gau))


class TreePairEncoder(PairEncoder):
    """EBT-GAU, EGT-GAU: tokens are first contextualised by the trees of the encoder named or given as
    `source`, its root gives each sentence's CLS vector, and one unit is applied `repeats` times.

    `attention_dropout` is `dropout`, the cell's, if not given.
    """

    def __init__(
        self,
        d_model: int,
        *,
        source: str | nn.Module = "ebt-grc",
        input_size: int | None = None,
        beam_size: int | None = None,
        dropout: float = 0.0,
        stochastic: bool = True,
        attention_dropout: float | None = None,
        refinements: int = 2,
        repeats: int = 3,
        attend_self: bool = False,
        scalar_bias: bool = False,
        random_segments: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d_model, random_segments=random_segments, device=device, dtype=dtype)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        if isinstance(source, str):
            options: dict[str, Any] = {"dropout": dropout, "stochastic": stochastic, **factory}
            if beam_size is not None:
                options["beam_size"] = beam_size
            source = create_encoder(source, d_model, input_size=input_size, **options)
        elif (input_size, beam_size, stochastic) != (None, None, True):
            raise ValueError(
                "input_size, beam_size and stochastic belong to a named source: set them on yours"
            )
        attention_dropout = dropout if attention_dropout is None else attention_dropout
        self.repeats = repeats
        self.contextualizer = BeamTreeContextualizer(
            d_model,
            source=source,
            refinements=refinements,
            attention_dropout=attention_dropout,
            attend_self=attend_self,
            scalar_bias=scalar_bias,
            **factory,
        )
        self.input_size = self.contextualizer.source.input_size
        self.cls_mlp = Perceptron(d_model, d_model, d_model, **factory)
        self.gau = GatedAttentionUnit(d_model, dropout=attention_dropout, scalar_bias=scalar_bias, **factory)
        self.register_load_state_dict_pre_hook(_accept_flat_names)

    def forward(
        self,
        x1: Tensor,
        x2: Tensor,
        key_padding_mask1: Tensor | None = None,
        key_padding_mask2: Tensor | None = None,
        *,
        need_trees: bool = False,
    ) -> Tensor | tuple[Tensor, BeamTrees]:
        """The pairs' vectors; with `need_trees` the trees too, of all first sentences, then of all second."""
        check_exported(self, need_trees)
        (x1, mask1), (x2, mask2) = self._checked(x1, x2, key_padding_mask1, key_padding_mask2)
        B, n = x1.shape[0], torch.sym_max(x1.shape[1], x2.shape[1])
        # Both sentences in one batch, so that one search serves both.
        x = torch.cat([F.pad(x, (0, 0, 0, n - x.shape[1])) for x in (x1, x2)])
        is_padding = torch.cat([F.pad(mask, (0, n - mask.shape[1]), value=True) for mask in (mask1, mask2)])
        found = self.contextualizer.contextualize(x, is_padding)
        tokens = found.tokens[:B, : x1.shape[1]], found.tokens[B:, : x2.shape[1]]
        cls = self.cls_mlp(found.root)
        pair = self.interact(tokens, (cls[:B], cls[B:]), (mask1, mask2), [self.gau] * self.repeats)
        return (pair, found.trees) if need_trees else pair


def _accept_flat_names(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """`leaf.`, `cell.`, `scorer.` and `parent_gau.` may be at the top level, as in published weights."""
    for name in list(state):
        if not name.startswith(prefix):
            continue
        part = name.removeprefix(prefix).split(".")[0]
        if part in TREE_PARTS or part == "parent_gau":
            place = "contextualizer.source." if part in TREE_PARTS else "contextualizer."
            state[prefix + place + name.removeprefix(prefix)] = state.pop(name)
