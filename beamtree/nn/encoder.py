"""The sentence encoder EBT-GRC, (B, n, d) → (B, d): the roots of the K best trees, averaged by score."""

from typing import Any

import torch
from torch import Tensor, nn

from beamtree.engine.export import exported_forest, exported_root
from beamtree.engine.record import Beams
from beamtree.errors import BeamtreeError
from beamtree.nn.leaf import LeafTransform
from beamtree.parts.cell import GatedRecursiveCell
from beamtree.parts.scorer import SlicedScorer
from beamtree.pytorch.checks import ChecksSearch, warn_if_greedy, whole_number
from beamtree.pytorch.tracing import is_exporting
from beamtree.recursion import beam_tree_recursion
from beamtree.saving.pretrained import SavedBlock
from beamtree.trees.beam_trees import BeamTrees
from beamtree.trees.constraints import check_merges, check_pins
from beamtree.trees.forest import Forest


class BeamTreeEncoder(ChecksSearch, SavedBlock):
    """Finds the K best trees over a sequence and averages their roots, (B, n, input_size) -> (B, d_model).

    ```python
    encoder = BeamTreeEncoder(128)
    y = encoder(x, key_padding_mask=is_pad)  # (B, n, 128), (B, n) -> (B, 128)
    y, trees = encoder(x, key_padding_mask=is_pad, need_trees=True)
    ```

    Args:
        d_model: width of a node.
        input_size: width of the tokens, `d_model` if not given.
        beam_size: how many trees are kept (K); 1 is greedy search.
        slice_size: how many features the scorer sees; None, or more than there are, for all of them.
        scorer_hidden: the scorer's hidden size; if not given, 64 with a slice, else `d_model`.
        dropout: dropout rate on the cell's hidden layer, with one mask per node.
        stochastic: perturb both selections with Gumbel noise in training.
        merge_equal_trees: unite beams that reach the same tree by different orders of merging, so that all
            beams are different trees, each with the weight of all its orders; slower on a GPU.
        cell: a cell of your own, see `beamtree.Cell` and `beamtree.CellWithDropout`.
        scorer: a scorer of your own, see `beamtree.Scorer`.

    Raises:
        ValueError: if an option is out of range, or belongs to a built-in part that your own replaces.
    """

    def __init__(
        self,
        d_model: int,
        *,
        input_size: int | None = None,
        beam_size: int = 5,
        slice_size: int | None = 64,
        scorer_hidden: int | None = None,
        dropout: float = 0.0,
        stochastic: bool = True,
        merge_equal_trees: bool = False,
        cell: nn.Module | None = None,
        scorer: nn.Module | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        input_size = d_model if input_size is None else input_size
        whole_number("d_model", d_model)
        whole_number("input_size", input_size)
        for name, part in {"cell": cell, "scorer": scorer}.items():
            if part is not None and not isinstance(part, nn.Module):
                raise ValueError(f"{name} must be a module of your own or None, got {part!r}")
            width = getattr(part, "d_model", d_model)
            if isinstance(width, int) and width != d_model:
                raise ValueError(f"{name}.d_model is {width}, expected {d_model}")
        if cell is not None and dropout != 0.0:
            raise ValueError("dropout belongs to the built-in cell: set it in your own cell")
        for name, changed in (("scorer_hidden", scorer_hidden is not None), ("slice_size", slice_size != 64)):
            if scorer is not None and changed:
                raise ValueError(f"{name} belongs to the built-in scorer: leave it out with your own")
        self.d_model = d_model
        self.input_size = input_size
        self.beam_size = beam_size
        self.stochastic = stochastic
        self.merge_equal_trees = merge_equal_trees
        self.leaf = LeafTransform(input_size, d_model, device=device, dtype=dtype)
        if cell is None:
            cell = GatedRecursiveCell(d_model, dropout=dropout, device=device, dtype=dtype)
        if scorer is None:
            scorer = SlicedScorer(
                d_model, slice_size=slice_size, hidden_size=scorer_hidden, device=device, dtype=dtype
            )
        self.cell, self.scorer = cell, scorer
        self._warned = False

    def forward(
        self,
        x: Tensor,
        key_padding_mask: Tensor | None = None,
        *,
        need_trees: bool = False,
        merges: Tensor | None = None,
        pinned_spans: Tensor | list[list[tuple[int, int]]] | None = None,
    ) -> Tensor | tuple[Tensor, BeamTrees]:
        """Encode x as (B, d_model); with `need_trees` also return the trees found.

        Args:
            x: (B, n, input_size), padding on the right.
            key_padding_mask: (B, n), True at padding, as for `nn.MultiheadAttention`; without it every
                sequence has n tokens.
            need_trees: also return the trees, as `BeamTrees`.
            merges: (B, n−1), trees to follow instead of searching, in the format of `BeamTrees.merges`.
            pinned_spans: spans that every tree must contain: for each sequence a list of half-open
                (start, end), or all in one tensor (B, P, 2), filled up with −1.

        Raises:
            ValueError: if an argument has a wrong shape, dtype, device or value; the message says which.

        `torch.export` accepts the encoder in evaluation mode, without the last three options. Batch size and
        length may be dynamic; the length must be at least 2.
        """
        if is_exporting():
            self._refuse_equal_trees()
            given = (need_trees, merges, pinned_spans)
            return exported_root(self, x, key_padding_mask, *given, beam_size=self.beam_size)
        beams = self.beams(x, key_padding_mask, merges=merges, pinned_spans=pinned_spans)
        return (beams.root(), beams.trees()) if need_trees else beams.root()

    def beams(
        self,
        x: Tensor,
        key_padding_mask: Tensor | None = None,
        *,
        merges: Tensor | None = None,
        pinned_spans: Tensor | list[list[tuple[int, int]]] | None = None,
    ) -> Beams:
        """Return the surviving beams before they are averaged; arguments as for `forward`."""
        return self._grow(x, key_padding_mask, merges, pinned_spans)[1]

    def forest(
        self,
        x: Tensor,
        key_padding_mask: Tensor | None = None,
        *,
        merges: Tensor | None = None,
        pinned_spans: Tensor | list[list[tuple[int, int]]] | None = None,
    ) -> Forest:
        """Return the surviving trees with the vectors of all their nodes; arguments as for `forward`."""
        if is_exporting():
            self._refuse_equal_trees()
            given = (merges, pinned_spans)
            return exported_forest(self, x, key_padding_mask, *given, beam_size=self.beam_size)
        leaves, beams = self._grow(x, key_padding_mask, merges, pinned_spans, need_nodes=True)
        return Forest(leaves, beams.nodes, beams.vectors, beams.trees())

    def _grow(
        self,
        x: Tensor,
        key_padding_mask: Tensor | None,
        merges: Tensor | None,
        pinned_spans: Tensor | list[list[tuple[int, int]]] | None = None,
        need_nodes: bool = False,
    ) -> tuple[Tensor, Beams]:
        leaves, lengths = self.read(x, key_padding_mask)
        if merges is not None and pinned_spans is not None:
            raise ValueError("give merges or pinned_spans, not both: a given tree leaves nothing to pin")
        pins = None if pinned_spans is None else check_pins(pinned_spans, lengths)
        if merges is not None:
            check_merges(merges, lengths, n=x.shape[1])
        warn_if_greedy(self, stacklevel=7)
        return leaves, beam_tree_recursion(
            leaves,
            lengths,
            self.cell,
            self.scorer,
            beam_size=self.beam_size,
            noisy=self.training and self.stochastic,
            merges=merges,
            pins=pins,
            need_nodes=need_nodes,
            merge_equal_trees=self.merge_equal_trees,
        )

    def _refuse_equal_trees(self) -> None:
        if self.merge_equal_trees:
            raise ValueError("merge_equal_trees cannot be exported: set it to False first")

    def read(self, x: Tensor, key_padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the leaves (B, n, d) and the lengths (B,); the content of padded rows has no effect."""
        return self.leaf.read(x, key_padding_mask, once=True)

    def _options(self) -> dict[str, Any]:
        cell, scorer = self.cell, self.scorer
        if (
            type(cell) is not GatedRecursiveCell
            or type(scorer) is not SlicedScorer
            or cell.hidden_size != 4 * self.d_model
        ):
            raise BeamtreeError(
                "an encoder with a cell or scorer of your own cannot be saved as a folder: save its "
                "state_dict() instead"
            )
        return {
            "d_model": self.d_model,
            "input_size": self.input_size,
            "beam_size": self.beam_size,
            "slice_size": scorer.slice_size,
            "scorer_hidden": scorer.hidden.out_features,
            "dropout": cell.dropout,
            "stochastic": self.stochastic,
            "merge_equal_trees": self.merge_equal_trees,
        }

    def extra_repr(self) -> str:
        return f"d_model={self.d_model}, beam_size={self.beam_size}, stochastic={self.stochastic}"
