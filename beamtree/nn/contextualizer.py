"""Contextualising tokens with trees, (B, n, d) → (B, n, d): trees are found, every leaf attends to the nodes
above it in each tree, and the results are averaged by score (paper §4, "beyond sentence encoding").
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
    tokens: Tensor  # (B, n, d), zero at padding
    root: Tensor  # (B, d)
    trees: BeamTrees


class BeamTreeContextualizer(SavedBlock):
    """Contextualises every token with the nodes above it, (B, n, d_model) -> (B, n, d_model), in any stack.

    ```python
    block = BeamTreeContextualizer(128, residual=True)
    y = block(x, key_padding_mask=is_pad)  # (B, n, 128), (B, n) -> (B, n, 128), zero at padding
    ```

    Args:
        d_model: width of a token and of a node.
        input_size: width of the tokens that come in, `d_model` if not given.
        beam_size: of the `BeamTreeEncoder` that finds the trees, like the next three.
        slice_size: how many features its scorer sees.
        dropout: of its cell.
        stochastic: whether it perturbs its choices in training.
        source: what finds the trees instead: any encoder with `forest`, such as `create_encoder` makes for
            ebt-grc, bt-grc, egt-grc, gt-grc, balanced-grc and gold-grc.
        refinements: how often the leaves attend to their ancestors, with the same weights.
        residual: x + block(LayerNorm(x)) instead of block(x).
        attention_dropout: on what attention adds; `dropout` if not given.
        attend_self: a leaf attends to itself too, as in the paper's text; see `ParentAttention`.
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
        """x (B, n, input_size) as (B, n, d_model), zero at padding; with `need_trees` also the trees found.

        `key_padding_mask` (B, n) is True at padding, on the right; `merges` (B, n−1) are trees to follow, for
        sources that can.
        """
        check_exported(self, need_trees)
        found = self.contextualize(x, key_padding_mask, merges=merges)
        return (found.tokens, found.trees) if need_trees else found.tokens

    def contextualize(
        self, x: Tensor, key_padding_mask: Tensor | None = None, *, merges: Tensor | None = None
    ) -> Contextualized:
        """The tokens, the root and the trees."""
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
        # Lone leaves meet neither cell nor scorer; an empty sum of the root keeps these in the graph.
        tokens = tokens + root[:, :0].sum()
        if self.norm is not None:
            tokens = x + tokens
        return Contextualized(zero_at_padding(tokens, key_padding_mask), root, forest.trees)

    def _attend(self, forest: Forest) -> Tensor:  # (B, n, d)
        """The leaves contextualised with their trees; on a GPU by CUDA graphs where possible."""
        leaves, trees = forest.leaves, forest.trees
        if not self.graphs.may_replay(leaves):
            return self._average(forest)
        more = self.graphs.padding(leaves)
        longer = lengthen(leaves, more), lengthen(forest.nodes, more, 2)
        scored = lengthen(trees.merges, more, 2, -1), trees.relative_scores, trees.offset, trees.lengths
        (tokens,) = self.graphs.run(
            lambda *_: (self._average(forest),),
            (*longer, *scored),
            (self.parent_gau,),
            (self.refinements,),
            static=lambda leaves, nodes, *of_trees: (
                self._average(Forest(leaves, nodes, leaves[:, :0], BeamTrees(*of_trees))),
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
    """With one more token of padding, as `torch.export` would specialise n − 1 nodes to n > 2."""
    merges = None if merges is None else F.pad(merges, (0, 1), value=-1)
    return F.pad(x, (0, 0, 0, 1)), F.pad(padding_of(x, is_padding), (0, 1), value=True), merges
