"""Beam-tree recursion, the whole idea: search once without a graph, then differentiate the survivors.

    S_b = Σ_t log softmax(e)_chosen      w = softmax(S)      root = Σ_b w_b root_b

The built-in cell and scorer go through two registered operators, so that `torch.compile` sees them as units;
a user's own go through an autograd function. On a GPU the commonest case has kernels of its own.
"""

from torch import Tensor, nn

from beamtree.engine.operators import registered_recursion
from beamtree.engine.own_cell import own_cell_recursion
from beamtree.engine.record import Beams, Options
from beamtree.graphs.cell_graphs import find_graphs
from beamtree.kernels.runtime.random_bits import draw_seed
from beamtree.parts.cell import GatedRecursiveCell
from beamtree.parts.contract import dropout_rate
from beamtree.parts.scorer import EntangledScorer, SlicedScorer
from beamtree.pytorch import capturing
from beamtree.pytorch.tracing import is_compiling


def beam_tree_recursion(
    leaves: Tensor,  # (B, n, d), finite everywhere, padding included
    lengths: Tensor,  # (B,)
    cell: nn.Module,
    scorer: nn.Module,
    *,
    beam_size: int = 5,
    noisy: bool = False,
    merges: Tensor | None = None,
    pins: Tensor | None = None,
    need_nodes: bool = False,
    merge_equal_trees: bool = False,
) -> Beams:
    """Merge neighbours until one node is left, keeping the `beam_size` best trees.

    `noisy` perturbs both selections with Gumbel noise. `merges` (B, n−1) follows a given tree; `pins`
    (B, P, 2) are spans every tree contains. Dropout masks are drawn where the cell is in training and has a
    rate `dropout`. `need_nodes` also hands out the inner nodes of each surviving beam. `merge_equal_trees`
    unites beams that reach the same tree by different orders; this has no kernels of its own.
    """
    dropout = dropout_rate(cell)
    seed = draw_seed(leaves.device) if noisy or dropout > 0.0 else None
    options = Options(beam_size, seed, noisy, dropout, merges, pins, need_nodes)
    if (
        not merge_equal_trees
        and type(cell) is GatedRecursiveCell
        and (type(scorer) is SlicedScorer or type(scorer) is EntangledScorer)
        and not _faster_as_graphs(leaves, scorer, pins)
    ):
        found = registered_recursion(leaves, lengths, cell, scorer, options)
    else:
        found = own_cell_recursion(leaves, lengths, cell, scorer, options, merge_equal_trees, find_graphs)
    vectors, relative, nodes, offset, followed = found
    return Beams(vectors, relative, nodes, offset, followed, lengths)


def _faster_as_graphs(leaves: Tensor, scorer: nn.Module, pins: Tensor | None) -> bool:
    """Pinned spans have no kernels of their own; but the built-in cell is captured as a user's would be."""
    return (
        pins is not None
        and type(scorer) is SlicedScorer
        and not is_compiling()
        and capturing.may_replay(leaves)
    )
