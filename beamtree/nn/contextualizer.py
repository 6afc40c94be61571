"""Contextualises tokens with trees, (B, n, d) → (B, n, d) (paper §4, "beyond sentence encoding").

The K best trees are found, every leaf attends to the nodes above it in each tree, and the results are
averaged by score.
"""

from typing import Any, NamedTuple, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.errors import BeamtreeError
from beamtree.graphs.whole_graphs import WholeGraphs, lengthen
from beamtree.nn.attention import ParentAttention
from beamtree.nn.encoder import BeamTreeEncoder
from beamtree.pytorch.checks import at_least_one, lengths_from, padding_of, zero_at_padding
from beamtree.pytorch.precision import layer_norm_wide
from beamtree.pytorch.tracing import check_exported, is_exporting
from beamtree.saving.pretrained import SavedBlock
from beamtree.trees.beam_trees import BeamTrees
from beamtree.trees.forest import Forest, TreeSource


class Contextualized(NamedTuple):
    """The result of `BeamTreeContextualizer.contextualize`.

    Fields:
        tokens: (B, n, d), the contextualised tokens, zero at padding.
        root: (B, d), the sentence vector: the roots of the trees, averaged by score.
        trees: the trees found.
    """

    tokens: Tensor  # (B, n, d), zero at padding
    root: Tensor  # (B, d)
    trees: BeamTrees


class BeamTreeContextualizer(SavedBlock):
    """Contextualises every token with the tree nodes above it, (B, n, input_size) -> (B, n, d_model).

    ```python
    block = BeamTreeContextualizer(128, residual=True)
    y = block(x, key_padding_mask=is_pad)  # (B, n, 128), (B, n) -> (B, n, 128), zero at padding
    ```

    Trees are found by a `BeamTreeEncoder`, which the first options configure, or by a `source` of your own.

    Args:
        d_model: width of a contextualised token and of a node.
        input_size: width of the input tokens, `d_model` if not given.
        beam_size: how many trees the encoder keeps.
        slice_size: how many features the encoder's scorer sees; None, or more than it has, for all.
        dropout: dropout rate of the encoder's cell.
        stochastic: perturb the encoder's choices with Gumbel noise in training.
        source: an encoder that finds the trees instead. It needs a method `forest`, as the encoders have that
            `create_encoder` makes for ebt-grc, bt-grc, egt-grc, gt-grc, balanced-grc and gold-grc.
        refinements: how often the leaves attend to their ancestors, each time with the same weights.
        residual: compute x + block(LayerNorm(x)) instead of block(x).
        attention_dropout: dropout rate on what attention adds; `dropout` if not given.
        attend_self: let a leaf attend to itself too, as in the paper's text; see `ParentAttention`.
        scalar_bias: one number per height instead of a vector, as in the paper's text.
    """

    source: TreeSource

    def __init__(
        self,
        d_model: int,
        *,
        input_size: int | None = None,
        beam_size: int = 5,
        slice_size: int | None = 64,
        dropout: float = 0.0,
        stochastic: bool = True,
        source: nn.Module | None = None,
        refinements: int = 2,
        residual: bool = False,
        attention_dropout: float | None = None,
        attend_self: bool = False,
        scalar_bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        if source is None:
            source = BeamTreeEncoder(
                d_model,
                input_size=input_size,
                beam_size=beam_size,
                slice_size=slice_size,
                dropout=dropout,
                stochastic=stochastic,
                **factory,
            )
        elif (input_size, beam_size, slice_size, stochastic) != (None, 5, 64, True):
            raise ValueError(
                "input_size, beam_size, slice_size and stochastic belong to the default source: set them on "
                "your own"
            )
        if not hasattr(source, "forest"):
            raise ValueError(f"source must be an encoder with inner nodes, {type(source).__name__} has none")
        if source.d_model != d_model:
            raise ValueError(f"source.d_model is {source.d_model}, expected {d_model}")
        if residual and source.input_size != d_model:
            raise ValueError(f"residual needs tokens of width d_model = {d_model}, got {source.input_size}")
        at_least_one(refinements=refinements)
        self.d_model, self.refinements, self.residual = d_model, refinements, residual
        self.source = cast(TreeSource, source)
        self.parent_gau = ParentAttention(
            d_model,
            attend_self=attend_self,
            scalar_bias=scalar_bias,
            dropout=dropout if attention_dropout is None else attention_dropout,
            **factory,
        )
        self.norm = nn.LayerNorm(d_model, **factory) if residual else None
        self.graphs = WholeGraphs()

    def forward(
        self,
        x: Tensor,
        key_padding_mask: Tensor | None = None,
        *,
        need_trees: bool = False,
        merges: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, BeamTrees]:
        """Contextualise x as (B, n, d_model), zero at padding; with `need_trees` also return the trees found.

        Args:
            x: (B, n, input_size), padding on the right.
            key_padding_mask: (B, n), True at padding.
            need_trees: also return the trees.
            merges: (B, n−1), trees to follow instead of searching, if the source can follow trees.
        """
        check_exported(self, need_trees)
        found = self.contextualize(x, key_padding_mask, merges=merges)
        return (found.tokens, found.trees) if need_trees else found.tokens

    def contextualize(
        self, x: Tensor, key_padding_mask: Tensor | None = None, *, merges: Tensor | None = None
    ) -> Contextualized:
        """Contextualise x like `forward`, and return the tokens, the sentence vector and the trees."""
        read = x
        if self.norm is not None:
            lengths_from(x, key_padding_mask, input_size=self.d_model, weight=self.norm.weight)
            x = zero_at_padding(x, key_padding_mask)
            read = layer_norm_wide(x, self.norm)
        is_padding = key_padding_mask
        if is_exporting():
            read, is_padding, merges = _one_longer(read, is_padding, merges)
        forest = self.source.forest(read, is_padding, merges=merges)
        tokens, root = self._attend(forest)[:, : x.shape[1]], forest.average(forest.roots)
        # If n = 1, tokens do not depend on cell and scorer; an empty sum of the root keeps both in the graph.
        tokens = tokens + root[:, :0].sum()
        if self.norm is not None:
            tokens = x + tokens
        return Contextualized(zero_at_padding(tokens, key_padding_mask), root, forest.trees)

    def _attend(self, forest: Forest) -> Tensor:  # (B, n, d)
        """Contextualise the leaves with their trees; on a GPU with CUDA graphs where possible."""
        leaves, trees = forest.leaves, forest.trees
        if not self.graphs.may_replay(leaves):
            return self._average(forest)
        more = self.graphs.padding(leaves)
        longer = lengthen(leaves, more), lengthen(forest.nodes, more, 2)
        scored = lengthen(trees.merges, more, 2, -1), trees.relative_scores, trees.offset, trees.lengths
        tokens = self.graphs.run(
            lambda *_: self._average(forest),
            (*longer, *scored),
            (self.parent_gau,),
            (self.refinements,),
            static=lambda leaves, nodes, *of_trees: self._average(
                Forest(leaves, nodes, leaves[:, :0], BeamTrees(*of_trees))
            ),
        )
        return tokens[:, : leaves.shape[1]]

    def _average(self, forest: Forest) -> Tensor:
        by_tree = self.parent_gau(forest.leaves, forest.nodes, forest.trees, refinements=self.refinements)
        return forest.average(by_tree)

    def _options(self) -> dict[str, Any]:
        if not isinstance(self.source, BeamTreeEncoder):
            raise BeamtreeError(
                f"a contextualizer over a {type(self.source).__name__} cannot be saved as a folder, only one "
                "over a BeamTreeEncoder: save its state_dict() instead"
            )
        return {
            "d_model": self.d_model,
            "source": self.source._options(),
            "refinements": self.refinements,
            "residual": self.residual,
            "attention_dropout": self.parent_gau.dropout.p,
            "attend_self": self.parent_gau.attend_self,
            "scalar_bias": self.parent_gau.scalar_bias,
        }

    @classmethod
    def _make(cls, options: dict[str, Any], dtype: torch.dtype) -> Self:
        source = BeamTreeEncoder(**options["source"], dtype=dtype)
        return cls(**options | {"source": source}, dtype=dtype)

    def extra_repr(self) -> str:
        return f"d_model={self.d_model}, refinements={self.refinements}, residual={self.residual}"


def _one_longer(
    x: Tensor, is_padding: Tensor | None, merges: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Append one token of padding; without it `torch.export` would specialise n − 1 nodes to n > 2."""
    merges = None if merges is None else F.pad(merges, (0, 1), value=-1)
    return F.pad(x, (0, 0, 0, 1)), F.pad(padding_of(x, is_padding), (0, 1), value=True), merges
