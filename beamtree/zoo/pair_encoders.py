"""Encoders of sentence pairs whose tokens attend to each other: GAU, EGT-GAU and EBT-GAU (paper, appendix
"sentence interaction models").

    r = attention over [c₁+s₁; Y₁+s₁; SEP; c₂+s₂; Y₂+s₂]      pair = Σ softmax(w·GELU(W r + b))_i r_i
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.graphs.whole_graphs import WholeGraphs, lengthen
from beamtree.nn.attention import GatedAttentionUnit, masked_softmax
from beamtree.nn.contextualizer import BeamTreeContextualizer
from beamtree.nn.heads import Perceptron
from beamtree.nn.leaf import LeafTransform
from beamtree.pytorch.checks import lengths_from, padding_of, zero_at_padding
from beamtree.pytorch.precision import without_autocast
from beamtree.pytorch.tracing import check_exported
from beamtree.trees.beam_trees import BeamTrees
from beamtree.zoo.by_name import create_encoder

TREE_PARTS = ("leaf", "cell", "scorer")


class PairEncoder(nn.Module):
    """Base class of GAU, EGT-GAU and EBT-GAU: attention over both sentences as one sequence, then pooling.

    Args:
        d_model: width of a token and of the result.
        random_segments: initialise the segment vectors from N(0, 1), as in the paper's text; the published
            code uses zeros.
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
        """Attend over both sentences with these units, then pool; on a GPU with CUDA graphs if possible."""
        first, second = map(self.graphs.padding, tokens)
        return self.graphs.run(
            partial(self._meet, units),
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

    def _checked(
        self, x1: Tensor, x2: Tensor, mask1: Tensor | None, mask2: Tensor | None
    ) -> list[tuple[Tensor, Tensor]]:
        """Check both sentences and return each with its padding mask."""
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
        # The first sentence's padding is in the middle; positions count only real tokens.
        positions = (~padding).cumsum(1) - 1
        for unit in units:
            z = unit(z, padding, positions=positions)
        weights = masked_softmax(self.pool(z).squeeze(-1), ~padding).to(z.dtype)
        with without_autocast(z):
            return torch.einsum("bi,bid->bd", weights, z)


class GatedAttentionPairEncoder(PairEncoder):
    """GAU: an encoder of sentence pairs without trees.

    Each sentence gets a learnt CLS vector. Then `layers` attention units, each with its own weights, are
    applied to both sentences.

    ```python
    encoder = create_encoder("gau", 128)
    y = encoder(x1, x2, is_pad1, is_pad2)  # (B, n1, 128), (B, n2, 128), masks -> (B, 128)
    ```
    """

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
        """Encode pairs of sentences x1 (B, n1, input_size) and x2 (B, n2, input_size) as (B, d_model).

        The masks (B, n1) and (B, n2) are True at padding, on the right.
        """
        (x1, mask1), (x2, mask2) = self._checked(x1, x2, key_padding_mask1, key_padding_mask2)
        tokens = self.leaf(zero_at_padding(x1, mask1)), self.leaf(zero_at_padding(x2, mask2))
        cls = self.cls.expand(x1.shape[0], -1)
        return self.interact(tokens, (cls, cls), (mask1, mask2), list(self.gau))


class TreePairEncoder(PairEncoder):
    """EBT-GAU and EGT-GAU: an encoder of sentence pairs whose tokens are first contextualised with trees.

    The root of a sentence's trees gives its CLS vector. Then one attention unit is applied `repeats` times.

    ```python
    encoder = create_encoder("ebt-gau", 128)
    y = encoder(x1, x2, is_pad1, is_pad2)  # (B, n1, 128), (B, n2, 128), masks -> (B, 128)
    ```

    Args:
        d_model: width of a token, a node and the result.
        source: the encoder that finds the trees, or its name for `create_encoder`.
        input_size: width of the input tokens, `d_model` if not given; for a named source only.
        beam_size: how many trees a named source keeps.
        dropout: dropout rate of a named source's cell.
        stochastic: perturb a named source's choices with Gumbel noise in training.
        attention_dropout: dropout rate of the attention, `dropout` if not given.
        refinements: how often the leaves attend to their ancestors.
        repeats: how often the attention unit is applied to the pair.
        attend_self: let a leaf attend to itself too, as in the paper's text.
        scalar_bias: one number per distance or height instead of a vector, as in the paper's text.
        random_segments: initialise the segment vectors from N(0, 1), as in the paper's text.
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
                "input_size, beam_size and stochastic belong to a named source: set them on your own"
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
        """Encode pairs of sentences x1 (B, n1, input_size) and x2 (B, n2, input_size) as (B, d_model).

        The masks (B, n1) and (B, n2) are True at padding, on the right. With `need_trees` also return the
        trees: those of all first sentences, followed by those of all second sentences.
        """
        check_exported(self, need_trees)
        (x1, mask1), (x2, mask2) = self._checked(x1, x2, key_padding_mask1, key_padding_mask2)
        B, n = x1.shape[0], torch.sym_max(x1.shape[1], x2.shape[1])
        # Both sentences go into one batch, so that there is only one search.
        x = torch.cat([F.pad(x, (0, 0, 0, n - x.shape[1])) for x in (x1, x2)])
        is_padding = torch.cat([F.pad(mask, (0, n - mask.shape[1]), value=True) for mask in (mask1, mask2)])
        found = self.contextualizer.contextualize(x, is_padding)
        tokens = found.tokens[:B, : x1.shape[1]], found.tokens[B:, : x2.shape[1]]
        cls = self.cls_mlp(found.root)
        pair = self.interact(tokens, (cls[:B], cls[B:]), (mask1, mask2), [self.gau] * self.repeats)
        return (pair, found.trees) if need_trees else pair


def _accept_flat_names(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Accept weights with `leaf.`, `cell.`, `scorer.` and `parent_gau.` at the top level, as published."""
    for name in list(state):
        if not name.startswith(prefix):
            continue
        part = name.removeprefix(prefix).split(".")[0]
        if part in TREE_PARTS or part == "parent_gau":
            place = "contextualizer.source." if part in TREE_PARTS else "contextualizer."
            state[prefix + place + name.removeprefix(prefix)] = state.pop(name)
