"""Neural networks that find a tree in a sequence by themselves.

Public names are imported on first use, so that the command line can answer before torch is loaded.
"""

import importlib.util
from typing import TYPE_CHECKING, Any

from beamtree.moved import MOVED, keep_old_names

if TYPE_CHECKING:
    from beamtree.classifier.classifier import Prediction
    from beamtree.classifier.ensemble import Ensemble
    from beamtree.classifier.model import TreeClassifier
    from beamtree.classifier.model_folder import load_model
    from beamtree.classifier.node_readings import NodeReading
    from beamtree.data.batching import Batch, EncodedExamples
    from beamtree.data.vocabulary import Vocabulary
    from beamtree.engine.record import Beams
    from beamtree.errors import BeamtreeError
    from beamtree.nn.attention import GatedAttentionUnit, ParentAttention
    from beamtree.nn.contextualizer import BeamTreeContextualizer, Contextualized
    from beamtree.nn.encoder import BeamTreeEncoder
    from beamtree.nn.heads import TaggerHead
    from beamtree.nn.stacks import HybridStack, SubwordsToWords, TreeTransformerLayer
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
    "Ensemble",
    "EntangledScorer",
    "Forest",
    "GatedAttentionUnit",
    "GatedRecursiveCell",
    "HybridStack",
    "NodeReading",
    "ParentAttention",
    "Prediction",
    "ScoredTree",
    "Scorer",
    "SlicedScorer",
    "StateSpaceLayer",
    "SubwordsToWords",
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

_PLACES = {  # the module that defines each public name
    "beamtree.classifier.classifier": ("Prediction",),
    "beamtree.classifier.ensemble": ("Ensemble",),
    "beamtree.classifier.model": ("TreeClassifier",),
    "beamtree.classifier.model_folder": ("load_model",),
    "beamtree.classifier.node_readings": ("NodeReading",),
    "beamtree.data.batching": ("Batch", "EncodedExamples"),
    "beamtree.data.vocabulary": ("Vocabulary",),
    "beamtree.engine.record": ("Beams",),
    "beamtree.errors": ("BeamtreeError",),
    "beamtree.nn.attention": ("GatedAttentionUnit", "ParentAttention"),
    "beamtree.nn.contextualizer": ("BeamTreeContextualizer", "Contextualized"),
    "beamtree.nn.encoder": ("BeamTreeEncoder",),
    "beamtree.nn.heads": ("TaggerHead",),
    "beamtree.nn.stacks": ("HybridStack", "SubwordsToWords", "TreeTransformerLayer"),
    "beamtree.nn.state_space": ("StateSpaceLayer",),
    "beamtree.parts.cell": ("GatedRecursiveCell",),
    "beamtree.parts.contract": ("Cell", "CellWithDropout", "Scorer"),
    "beamtree.parts.scorer": ("EntangledScorer", "SlicedScorer"),
    "beamtree.pytorch.capturing": ("cuda_graphs",),
    "beamtree.pytorch.checks": ("validate",),
    "beamtree.recursion": ("beam_tree_recursion",),
    "beamtree.trees.beam_trees": ("BeamTrees", "ScoredTree"),
    "beamtree.trees.forest": ("Forest",),
    "beamtree.zoo.by_name": ("create_encoder", "register_encoder"),
}
_MODULE_OF = {name: module for module, names in _PLACES.items() for name in names}

keep_old_names()


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        found = globals()[name] = getattr(importlib.import_module(_MODULE_OF[name]), name)
        return found
    place = f"beamtree.{name}"  # a subpackage that has not been imported yet, or an old module name
    if name in MOVED or (not name.startswith("_") and importlib.util.find_spec(place) is not None):
        return importlib.import_module(place)
    raise AttributeError(f"module 'beamtree' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
