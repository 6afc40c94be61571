"""Neural networks that find a tree in a sequence by themselves."""

from beamtree.cell import GatedRecursiveCell
from beamtree.checks import validate
from beamtree.encoder import BeamTreeEncoder
from beamtree.errors import BeamtreeError
from beamtree.recursion import beam_tree_recursion
from beamtree.scorer import EntangledScorer, SlicedScorer
from beamtree.tree import BeamTrees
from beamtree.zoo import create_encoder

__version__ = "0.1.0"

__all__ = [
    "BeamTreeEncoder",
    "BeamTrees",
    "BeamtreeError",
    "EntangledScorer",
    "GatedRecursiveCell",
    "SlicedScorer",
    "beam_tree_recursion",
    "create_encoder",
    "validate",
]
