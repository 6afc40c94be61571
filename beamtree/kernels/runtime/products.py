"""Matrix products on a GPU: small ones by a kernel of ours, the others by the library.

The library holds 32 MiB of workspace for each thread that calls it (on an H100 or H200), several times what a
training step on one sequence needs otherwise.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.pytorch.derivatives import carries_tangents
from beamtree.pytorch.direct_reading import read_part
from beamtree.pytorch.precision import autocasts, in_blocks
from beamtree.pytorch.registry import has_kernels
from beamtree.pytorch.tracing import is_compiling

SMALL = 2**30  # multiplications
FEW = 2**19  # numbers that a layer reads: beyond, the workspace does not matter
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def float32_precision() -> str:
    """How products of float32 are rounded, by PyTorch's setting."""
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def is_small(x: Tensor, y: Tensor) -> bool:
    return x.is_cuda and x.numel() * y.shape[1] <= SMALL


def product(
    x: Tensor, y: Tensor, precision: str, *, bias: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """x (M, R) · y (R, N) + bias (N,), in float32; `precision` rounds the factors."""
    if is_small(x, y):
        from beamtree.kernels.runtime.math_kernels import matrix_product

        return matrix_product(_dense(x), _dense(y), precision, bias=bias, out=out)
    if precision in HALF:
        x, y = x.to(HALF[precision]), y.to(HALF[precision])
        found = (x @ y).float()
        found = found if bias is None else found + bias
        return found if out is None else out.copy_(found)
    return torch.mm(x, y, out=out) if bias is None else torch.addmm(bias, x, y, out=out)


def linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """`layer(x)`, whose gradients of any order are such products too."""
    weight, bias = read_part(layer)
    rows, shape = x.reshape(-1, x.shape[-1]), (*x.shape[:-1], weight.shape[0])
    if is_few(x, weight):
        y: Tensor = _Product.apply(rows, weight.t())
        return y.view(shape) + bias
    if x.device.type == "cpu" and not is_compiling():
        return F.linear(in_blocks(rows), weight, bias)[: rows.shape[0]].view(shape)
    return F.linear(x, weight, bias)


def is_few(x: Tensor, weight: Tensor) -> bool:
    return (
        x.is_cuda
        and torch.is_grad_enabled()
        and x.numel() <= FEW
        and x.dtype == weight.dtype == torch.float32
        and not is_compiling()
        and not autocasts(x)
        and not carries_tangents(x, weight)
        and has_kernels(x.device)
    )


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        with torch.cuda.device_of(x):
            return product(x, y, float32_precision())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, y = ctx.saved_tensors
        to_x = _Product.apply(grad, y.t()) if ctx.needs_input_grad[0] else None
        return to_x, _Product.apply(x.t(), grad) if ctx.needs_input_grad[1] else None


def _dense(x: Tensor) -> Tensor:
    """One axis must be dense."""
    return x if 1 in x.stride() else x.contiguous()
