"""Neural networks that find a tree in a sequence by themselves."""

from typing import TYPE_CHECKING, Any

from beamtree.attention import GatedAttentionUnit, ParentAttention
from beamtree.cell import GatedRecursiveCell
from beamtree.checks import validate
from beamtree.contextualizer import BeamTreeContextualizer
from beamtree.encoder import BeamTreeEncoder
from beamtree.errors import BeamtreeError
from beamtree.hybrid import HybridStack
from beamtree.recursion import beam_tree_recursion
from beamtree.scorer import EntangledScorer, SlicedScorer
from beamtree.state_space import StateSpaceLayer
from beamtree.tagger import TaggerHead
from beamtree.transformer_layer import TreeTransformerLayer
from beamtree.tree import BeamTrees
from beamtree.zoo import create_encoder, register_encoder

if TYPE_CHECKING:
    from beamtree.model import load_model

__version__ = "0.1.0"

__all__ = [
    "BeamTreeContextualizer",
    "BeamTreeEncoder",
    "BeamTrees",
    "BeamtreeError",
    "EntangledScorer",
    "GatedAttentionUnit",
    "GatedRecursiveCell",
    "HybridStack",
    "ParentAttention",
    "SlicedScorer",
    "StateSpaceLayer",
    "TaggerHead",
    "TreeTransformerLayer",
    "beam_tree_recursion",
    "create_encoder",
    "load_model",
    "register_encoder",
    "validate",
]


def __getattr__(name: str) -> Any:
    """Model folders need more than torch, so what reads them is imported when it is asked for."""
    if name == "load_model":
        from beamtree.model import load_model

        return load_model
    raise AttributeError(f"module 'beamtree' has no attribute {name!r}")
