"""What a compiler leaves as it is: traced, a loop over tokens or merges would be unrolled for each length."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def untraced(function: Callable[P, T]) -> Callable[P, T]:
    """`torch.compiler.disable`, asked for only while compiling: importing what it needs takes a second."""

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        run = torch.compiler.disable(function) if torch.compiler.is_compiling() else function
        return run(*args, **options)

    return call
