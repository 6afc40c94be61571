"""What a tracer sees: is this call being compiled, is it being exported, and what a compiler leaves alone."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

BREAKS = "beamtree leaves this model's loop to Python: compile it without fullgraph=True"

# Older releases answer torch.compiler.is_exporting() with yes whenever Dynamo traces (PyTorch issue 176347).
_EXPORT_IS_TOLD_APART = torch.__version__ >= "2.13"

P = ParamSpec("P")
T = TypeVar("T")


def is_compiling() -> bool:
    """Whether `torch.compile` or `torch.export` is tracing this call."""
    return torch.compiler.is_compiling()


def is_exporting() -> bool:
    """Whether `torch.export` is tracing this call; `torch.compile`, which also trains, is not."""
    if _EXPORT_IS_TOLD_APART:
        return torch.compiler.is_exporting()
    return bool(torch.compiler._is_exporting_flag)


def untraced(function: Callable[P, T]) -> Callable[P, T]:
    """`torch.compiler.disable`, asked for only while compiling: importing what it needs takes a second.

    A loop over tokens or merges would be unrolled for each length if it were traced.
    """

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        if not is_compiling():
            return function(*args, **options)
        torch._dynamo.graph_break(msg=BREAKS)  # told to those who asked for fullgraph=True
        return torch.compiler.disable(function)(*args, **options)

    return call
