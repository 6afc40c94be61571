"""Launches kernels: where they run at all, the sizes and buffers of a launch, and the launch itself.

Triton's own launcher spends some 50 µs of host time per call on finding the compiled kernel again; ours takes
a few.
"""

from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from math import prod
from typing import Any

import torch
from torch import Tensor

HAS_TRITON = find_spec("triton") is not None
NUMBERS = int, float
PROGRAMS = 528  # for kernels that loop over their tasks: four for each of an H200's processors

_compiled: dict[tuple[Any, ...], Any] = {}


@cache
def has_kernels(device: torch.device) -> bool:
    """Return True if our kernels run on this device."""
    if not HAS_TRITON or device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def blocks(count: int, size: int) -> int:
    """How many blocks of a size hold `count` items. Triton's own `cdiv` takes microseconds."""
    return -(-count // size)


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << (number - 1).bit_length() if number > 1 else 1


def aligned(x: Tensor) -> Tensor:
    """A contiguous tensor that starts at a multiple of 16 bytes: kernels read 16 bytes at a time."""
    x = x.contiguous()
    return x.clone() if x.data_ptr() % 16 else x


def pieces(make: Callable[..., Tensor], device: torch.device, *shapes: tuple[int, ...]) -> Iterator[Tensor]:
    """Tensors in one allocation. Each starts at a multiple of 16 bytes, because Triton compiles kernels once
    more for another alignment."""
    sizes = [(prod(shape) + 3) // 4 * 4 for shape in shapes]
    whole, start = make(sum(sizes), device=device), 0
    for shape, size in zip(shapes, sizes, strict=True):
        yield whole.as_strided(shape, (*shape[1:], 1), start)
        start += size


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """`kernel[grid](*arguments, **options)`.

    `arguments` are tensors, then numbers; `options` the kernel's constants, then Triton's options, in the
    same order at every call. A kernel compiled once serves every call with the same options and dtypes. So
    integers must not be specialised (`do_not_specialize`), and a call with a tensor that does not start at a
    multiple of 16 bytes goes through Triton's launcher.
    """
    device = arguments[0].device
    key, addresses, together = [id(kernel), device.index, *options.values()], [], 0
    for x in arguments:
        if type(x) in NUMBERS:
            break
        key.append(x.dtype)
        address = x.data_ptr()
        together |= address
        addresses.append(address)
    if device.type != "cuda" or together % 16:
        kernel[grid](*arguments, **options)
        return
    name = tuple(key)
    known = _compiled.get(name)
    if known is None:
        constants = [options[name] for name in kernel.arg_names[len(arguments) :]]
        _compiled[name] = kernel[grid](*arguments, **options), constants
        return
    compiled, constants = known
    # As Triton's own `compiled[grid](…)`, but without its hooks for profilers, which are Python calls.
    # Tensors are passed as addresses: for each tensor object the launcher would query the driver.
    compiled.run(
        *(*grid, 1, 1)[:3], torch._C._cuda_getCurrentRawStream(device.index),
        compiled.function, compiled.packed_metadata, None, None, None,
        *addresses, *arguments[len(addresses) :], *constants,
    )  # fmt: skip
