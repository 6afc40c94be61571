"""The CPU plays the GPU: a stand-in for CUDA graphs, so that what is captured and replayed can be checked."""

from contextlib import nullcontext
from typing import Any, ClassVar
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from beamtree.engine import choosing, search
from beamtree.engine.choosing import up_to_rounding
from beamtree.graphs import cell_graphs
from beamtree.pytorch import capturing, checks
from beamtree.zoo import beam_tree_grc, ordered_memory_step


class Recording(TorchDispatchMode):
    """Stands in for a CUDA graph: notes every operation, and does them again on the same memory."""

    made: ClassVar[list["Recording"]] = []

    def __init__(self) -> None:
        super().__init__()
        self.tape: list[tuple[Any, ...]] = []
        self.made.append(self)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("a step that is captured must not wait for a value")
        output = func(*args, **(kwargs or {}))
        self.tape.append((func, args, kwargs or {}, output))
        return output

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        self.__enter__()

    def capture_end(self) -> None:
        self.__exit__(None, None, None)

    def replay(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, output in self.tape:
                for old, new in zip(tree_leaves(output), tree_leaves(func(*args, **kwargs)), strict=True):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new.reshape(old.shape))  # its shape may have been changed in place


def play_gpu(monkeypatch: pytest.MonkeyPatch) -> list[Recording]:
    """The graphs made from now on."""
    Recording.made = []
    stream = MagicMock(cuda_stream=0)
    for name, stand_in in {
        "CUDAGraph": Recording,
        "graph_pool_handle": lambda: (0, 1),
        "synchronize": lambda: None,
        "Stream": lambda: stream,
        "current_stream": lambda *_: stream,
        "stream": nullcontext,
        "device": nullcontext,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(capturing, "may_replay", lambda tensor: capturing.are_wanted())
    monkeypatch.setattr(checks, "looks_at_values", lambda x: False)
    monkeypatch.setattr(ordered_memory_step, "_first_open_slot", lambda cp: 0)
    monkeypatch.setattr(cell_graphs, "PULLED_ROWS", (4, 16))
    for module in (choosing, search, beam_tree_grc):
        monkeypatch.setattr(module, "stable_topk", topk_without_looking)
    return Recording.made


def topk_without_looking(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As on a GPU."""
    index = up_to_rounding(values).argsort(dim=-1, descending=True, stable=True)[..., :k]
    return values.gather(-1, index), index
