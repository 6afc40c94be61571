"""Launching kernels: Triton's own way works out anew at each call what it compiled before, some 50 µs of host
time; a compiled kernel can be launched directly, in a few.
"""

from typing import Any

import torch

NUMBERS = int, float

_compiled: dict[tuple[Any, ...], Any] = {}


def blocks(count: int, size: int) -> int:
    """How many blocks of a size a count fills; Triton's own function takes microseconds."""
    return -(-count // size)


def power_of_two(number: int) -> int:
    """The least power of two that is not less."""
    return 1 << (number - 1).bit_length() if number > 1 else 1


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """`kernel[grid](*arguments, **options)`; arguments are tensors, then numbers, and options the kernel's
    constants, in order, then Triton's.

    A kernel compiled once serves every call with the same options and types of tensors: integers among the
    numbers must not be specialised (`do_not_specialize`), and tensors start at multiples of 16 bytes, or
    take the slow way.
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
    # As Triton's own `compiled[grid](…)`, less its hooks for profilers, which are Python calls. Of an address
    # it asks nothing more; a tensor costs a question to the driver.
    compiled.run(
        *(*grid, 1, 1)[:3], torch._C._cuda_getCurrentRawStream(device.index),
        compiled.function, compiled.packed_metadata, None, None, None,
        *addresses, *arguments[len(addresses) :], *constants,
    )  # fmt: skip
