"""Small matrix products by a kernel of ours."""

import pytest
import torch
from kernel_cases import DEVICE
from torch import Tensor

from beamtree.kernels.runtime import products
from beamtree.kernels.runtime.math_kernels import matrix_product
from beamtree.pytorch.launch import has_kernels


def draw(rows: int, columns: int, *, across: bool) -> Tensor:
    generator = torch.Generator().manual_seed(rows + 100 * columns)
    if across:
        return torch.randn(columns, rows, generator=generator).to(DEVICE).t()
    return torch.randn(rows, columns, generator=generator).to(DEVICE)


@pytest.mark.parametrize("across", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize(("M", "R", "N"), [(3, 70, 5), (40, 1, 33), (1, 5, 1), (34, 800, 3)])
def test_the_kernel_multiplies_whichever_axis_is_dense(
    M: int, R: int, N: int, across: tuple[bool, bool]
) -> None:
    a, b = draw(M, R, across=across[0]), draw(R, N, across=across[1])
    exact = a.double() @ b.double()
    torch.testing.assert_close(matrix_product(a, b, "tf32x3"), exact.float(), atol=1e-5, rtol=1e-5)
    bias, out = torch.randn(N, device=DEVICE), torch.zeros(M, N + 4, device=DEVICE)
    matrix_product(a, b, "tf32x3", bias=bias, out=out[:, :N])
    torch.testing.assert_close(out[:, :N], (exact + bias).float(), atol=1e-5, rtol=1e-5)
    assert not out[:, N:].any()


@pytest.mark.parametrize("precision", ["bf16", "fp16", "tf32x3"])
def test_a_product_rounds_its_factors_and_adds_a_bias(precision: str) -> None:
    a, b, bias = draw(4, 6, across=False), draw(6, 5, across=False), torch.randn(5, device=DEVICE)
    found = products.product(a, b, precision, bias=bias)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, a @ b + bias, atol=0.05, rtol=0.05)
    torch.testing.assert_close(products.product(a, b, precision), found - bias, atol=1e-6, rtol=1e-5)


def test_kernels_are_for_gpus_only() -> None:
    assert not has_kernels(torch.device("cpu"))
    assert not products.is_small(torch.randn(2, 5), torch.randn(5, 4))
