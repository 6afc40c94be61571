"""Layers to build models with: encoders, attention, stacks, state-space layers and heads."""

from beamtree.nn.attention import GatedAttentionUnit, ParentAttention
from beamtree.nn.contextualizer import BeamTreeContextualizer, Contextualized
from beamtree.nn.encoder import BeamTreeEncoder
from beamtree.nn.heads import TaggerHead
from beamtree.nn.stacks import HybridStack, SubwordsToWords, TreeTransformerLayer
from beamtree.nn.state_space import StateSpaceLayer

__all__ = [
    "BeamTreeContextualizer",
    "BeamTreeEncoder",
    "Contextualized",
    "GatedAttentionUnit",
    "HybridStack",
    "ParentAttention",
    "StateSpaceLayer",
    "SubwordsToWords",
    "TaggerHead",
    "TreeTransformerLayer",
]
