"""Keeps the old names of modules that have moved, so that old pickles and imports still load."""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

MOVED = {
    **{name: f"parts.{name}" for name in ("cell", "scorer")},
    **dict.fromkeys(("leaf", "parts.leaf"), "nn.leaf"),
    **{
        name: f"nn.{name}"
        for name in ("attention", "contextualizer", "embedding", "encoder", "heads", "state_space")
    },
    "hybrid": "nn.stacks",
    "tagger": "nn.heads",
    "transformer_layer": "nn.stacks",
    "brackets": "trees.brackets",
    "forest": "trees.forest",
    "tree": "trees.beam_trees",
    **dict.fromkeys(("training.agreement", "trees.agreement"), "trees.brackets"),
    "checks": "pytorch.checks",
    "interaction": "zoo.pair_encoders",
    "nn.contextual_embedding": "nn.embedding",
    "nn.selective_state_space": "nn.state_space",
    "nn.subwords": "nn.stacks",
    "zoo.equal_sizes": "zoo.by_name",
    "zoo.rotary_transformer": "zoo.transformers",
    "zoo.state_space_models": "zoo.sequence_models",
    "rivals": "zoo",  # rivals.X is zoo.X, except for the following
    **{f"rivals.{name}": "zoo.beam_tree_grc" for name in ("beam_step", "entangled")},
    "rivals.given_tree": "zoo.fixed_trees",
    **{f"rivals.{name}": "zoo.straight_through" for name in ("gumbel_static", "gumbel_sweep", "judges")},
    "rivals.gumbel_tree_plain": "zoo.gumbel_tree",
    "rivals.running_sum": "zoo.tree_encoder",
    "rivals.naive": "engine.naive",
    **{f"rivals.{name}": f"graphs.{name}" for name in ("step_graphs", "whole_graphs")},
    "demo": "cli.demo",
    "model": "classifier.model_folder",
    "portable": "classifier.exports",
    "data.listops_language": "data.listops.language",
    "data.listops_sampler": "data.listops.draws",
    "data.listops_tags": "data.listops.language",
    "data.logic_language": "data.logic",
    "explorer.record": "explorer.answer",
    "processes": "training.processes",
}


def _present_name(old: str) -> str | None:
    package, _, name = old.partition(".")
    if package != "beamtree":
        return None
    return MOVED.get(name, f"zoo.{name[7:]}" if name.startswith("rivals.") else None)


class _OldNames(MetaPathFinder, Loader):
    """Resolves an old module name to the module under its new name, without loading a second copy."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if _present_name(fullname) is None else ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(f"beamtree.{_present_name(spec.name)}")
        spec.loader_state = module.__spec__  # the import system will replace it; exec_module puts it back
        return module

    def get_code(self, fullname: str) -> Any:
        """Return the module's code, for `python -m beamtree.OLD_NAME`."""
        present: Any = find_spec(f"beamtree.{_present_name(fullname)}")
        return present.loader.get_code(present.name)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def keep_old_names() -> None:
    """Install the import hook for old module names, unless it is already installed."""
    if not any(isinstance(finder, _OldNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, _OldNames())
