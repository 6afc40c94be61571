"""What a compiler leaves as it is: traced, a loop over tokens or merges would be unrolled for each length."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

BREAKS = "beamtree leaves this model's loop to Python: compile it without fullgraph=True"

P = ParamSpec("P")
T = TypeVar("T")


def untraced(function: Callable[P, T]) -> Callable[P, T]:
    """`torch.compiler.disable`, asked for only while compiling: importing what it needs takes a second."""

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        if not torch.compiler.is_compiling():
            return function(*args, **options)
        torch._dynamo.graph_break(msg=BREAKS)  # told to those who asked for fullgraph=True
        return torch.compiler.disable(function)(*args, **options)

    return call
