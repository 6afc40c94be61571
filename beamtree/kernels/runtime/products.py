"""Matrix products on a GPU: small ones by a kernel of ours, the others by the library (cuBLAS).

The library keeps 32 MiB of workspace for each thread that calls it (on an H100 or H200), several times what a
training step on one sequence needs otherwise.
"""

import torch
from torch import Tensor

SMALL = 2**30  # multiplications
FEW = 2**19  # numbers in a layer's input; for larger inputs the workspace does not matter
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def float32_precision() -> str:
    """How products of float32 are rounded, according to PyTorch's setting."""
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def precision_of(product_dtype: torch.dtype) -> str:
    """How products are rounded: to autocast's dtype, or for float32 as PyTorch's matmul precision says."""
    if product_dtype == torch.float32:
        return float32_precision()
    return "bf16" if product_dtype == torch.bfloat16 else "fp16"


def never_half(precision: str) -> str:
    """How a scorer's products are rounded, if the cell's are rounded to `precision`."""
    return float32_precision() if precision in HALF else precision


def is_small(x: Tensor, y: Tensor) -> bool:
    return x.is_cuda and x.numel() * y.shape[1] <= SMALL


def product(
    x: Tensor, y: Tensor, precision: str, *, bias: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """x (M, R) · y (R, N) + bias (N,) in float32, with the factors rounded to `precision`."""
    if is_small(x, y):
        from beamtree.kernels.runtime.math_kernels import matrix_product

        return matrix_product(_dense(x), _dense(y), precision, bias=bias, out=out)
    if precision in HALF:
        x, y = x.to(HALF[precision]), y.to(HALF[precision])
        found = (x @ y).float()
        found = found if bias is None else found + bias
        return found if out is None else out.copy_(found)
    return torch.mm(x, y, out=out) if bias is None else torch.addmm(bias, x, y, out=out)


def _dense(x: Tensor) -> Tensor:
    """x, copied unless one of its axes is dense."""
    return x if 1 in x.stride() else x.contiguous()
