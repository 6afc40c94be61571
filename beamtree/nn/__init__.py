"""The layers that users build with."""

from beamtree.nn.attention import GatedAttentionUnit, ParentAttention
from beamtree.nn.contextualizer import BeamTreeContextualizer, Contextualized
from beamtree.nn.encoder import BeamTreeEncoder
from beamtree.nn.hybrid import HybridStack
from beamtree.nn.state_space import StateSpaceLayer
from beamtree.nn.tagger import TaggerHead
from beamtree.nn.transformer_layer import TreeTransformerLayer

__all__ = [
    "BeamTreeContextualizer",
    "BeamTreeEncoder",
    "Contextualized",
    "GatedAttentionUnit",
    "HybridStack",
    "ParentAttention",
    "StateSpaceLayer",
    "TaggerHead",
    "TreeTransformerLayer",
]
