"""The entry to beam-tree recursion: search once without an autograd graph, then differentiate the survivors.

    s_b = Σ_t log softmax(e_t)[chosen]      w = softmax(s)      root = Σ_b w_b root_b

Here e_t are the scores of beam b's pairs at step t. The built-in cell and scorer run in two registered
operators, which `torch.compile` treats as units; on a GPU the most common cases have kernels of their own. A
user's own cell or scorer, and `merge_equal_trees`, run in an autograd function; so do pinned spans on a GPU
(`_pins_in_graphs`).
"""

from typing import TypeGuard

from torch import Tensor, nn
from torch.nn.utils import parametrize

from beamtree.engine.operators import built_in_recursion
from beamtree.engine.randomness import draw_seed
from beamtree.engine.record import Beams, Options
from beamtree.graphs.own_cell import own_cell_recursion
from beamtree.parts.cell import GatedRecursiveCell
from beamtree.parts.contract import dropout_rate
from beamtree.parts.scorer import EntangledScorer, SlicedScorer
from beamtree.pytorch import capturing
from beamtree.pytorch.checks import whole_number
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

    Dropout masks are drawn if the cell is in training mode and has a rate `dropout`.

    Args:
        leaves: (B, n, d), finite everywhere, padding included.
        lengths: (B,), the number of leaves of each sequence.
        cell: makes parents from children; see `beamtree.Cell`.
        scorer: scores pairs of neighbours; see `beamtree.Scorer`.
        beam_size: how many trees are kept.
        noisy: perturb both selections with Gumbel noise.
        merges: (B, n−1), trees to follow instead of searching.
        pins: (B, P, 2), spans that every tree must contain.
        need_nodes: also return the inner nodes of each surviving beam.
        merge_equal_trees: unite beams that reach the same tree by different orders of merging; there are no
            kernels for this.

    Returns:
        The surviving beams; `.root()` is their average, `.trees()` their trees.
    """
    whole_number("beam_size", beam_size)
    dropout = dropout_rate(cell)
    seed = draw_seed(leaves.device) if noisy or dropout > 0.0 else None
    options = Options(beam_size, seed, noisy, dropout, merges, pins, need_nodes)
    if (
        not merge_equal_trees
        and type(cell) is GatedRecursiveCell
        and is_built_in(scorer)
        and not _pins_in_graphs(leaves, scorer, pins)
    ):
        found = built_in_recursion(leaves, lengths, cell, scorer, options)
    else:
        if parametrize.type_before_parametrizations(scorer) is EntangledScorer:
            raise ValueError(
                "scorer is an EntangledScorer, which reads the parents that the built-in cell makes: use it "
                "with a GatedRecursiveCell and without merge_equal_trees, or give a scorer of your own"
            )
        found = own_cell_recursion(leaves, lengths, cell, scorer, options, merge_equal_trees)
    vectors, relative, nodes, offset, merges_found = found
    return Beams(vectors, relative, nodes, offset, merges_found, lengths)


def is_built_in(scorer: nn.Module) -> TypeGuard[SlicedScorer | EntangledScorer]:
    """Return True if the engine knows the scorer's derivatives.

    A parametrization changes the type of the module that has the weights: of `EntangledScorer`, not of the
    cell and `SlicedScorer`, whose submodules have them.
    """
    return parametrize.type_before_parametrizations(scorer) in (SlicedScorer, EntangledScorer)


def _pins_in_graphs(leaves: Tensor, scorer: nn.Module, pins: Tensor | None) -> bool:
    """Return True for pinned spans on a GPU: they have no kernels, so the built-in cell is captured in CUDA
    graphs as a user's own cell would be."""
    return (
        pins is not None
        and type(scorer) is SlicedScorer
        and not is_compiling()
        and capturing.may_replay(leaves)
    )
