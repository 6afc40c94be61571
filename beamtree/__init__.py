"""Neural networks that find a tree in a sequence by themselves."""

import importlib
from typing import TYPE_CHECKING, Any

from beamtree.engine.record import Beams
from beamtree.errors import BeamtreeError
from beamtree.moved import MOVED, keep_old_names
from beamtree.nn.attention import GatedAttentionUnit, ParentAttention
from beamtree.nn.contextualizer import BeamTreeContextualizer, Contextualized
from beamtree.nn.encoder import BeamTreeEncoder
from beamtree.nn.heads import TaggerHead
from beamtree.nn.stacks import HybridStack, TreeTransformerLayer
from beamtree.nn.state_space import StateSpaceLayer
from beamtree.parts.cell import GatedRecursiveCell
from beamtree.parts.contract import Cell, CellWithDropout, Scorer
from beamtree.parts.scorer import EntangledScorer, SlicedScorer
from beamtree.pytorch.capturing import cuda_graphs
from beamtree.pytorch.checks import validate
from beamtree.recursion import beam_tree_recursion
from beamtree.trees.beam_trees import BeamTrees, ScoredTree
from beamtree.trees.forest import Forest
from beamtree.zoo.by_name import create_encoder, register_encoder

if TYPE_CHECKING:
    from beamtree.classifier.model import Prediction, TreeClassifier
    from beamtree.classifier.model_folder import load_model
    from beamtree.data.batching import Batch, EncodedExamples
    from beamtree.data.vocabulary import Vocabulary

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "BeamTreeContextualizer",
    "BeamTreeEncoder",
    "BeamTrees",
    "Beams",
    "BeamtreeError",
    "Cell",
    "CellWithDropout",
    "Contextualized",
    "EncodedExamples",
    "EntangledScorer",
    "Forest",
    "GatedAttentionUnit",
    "GatedRecursiveCell",
    "HybridStack",
    "ParentAttention",
    "Prediction",
    "ScoredTree",
    "Scorer",
    "SlicedScorer",
    "StateSpaceLayer",
    "TaggerHead",
    "TreeClassifier",
    "TreeTransformerLayer",
    "Vocabulary",
    "beam_tree_recursion",
    "create_encoder",
    "cuda_graphs",
    "load_model",
    "register_encoder",
    "validate",
]


keep_old_names()

_LATER = {  # classifiers need more than torch, so they are imported when they are asked for
    "Batch": "beamtree.data.batching",
    "EncodedExamples": "beamtree.data.batching",
    "Prediction": "beamtree.classifier.model",
    "TreeClassifier": "beamtree.classifier.model",
    "Vocabulary": "beamtree.data.vocabulary",
    "load_model": "beamtree.classifier.model_folder",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    if name in MOVED:
        return importlib.import_module(f"beamtree.{name}")
    raise AttributeError(f"module 'beamtree' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
