"""Small matrix products by a kernel of ours, and a linear layer made of them."""

import pytest
import torch
from kernel_cases import DEVICE
from on_gpu import needs_gpu
from torch import Tensor, nn

from beamtree.kernels.runtime import products
from beamtree.kernels.runtime.math_kernels import matrix_product
from beamtree.pytorch.registry import has_kernels


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


def test_a_linear_layer_of_products_has_gradients_of_any_order() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    y = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(products._Product.apply, (x, y))
    assert torch.autograd.gradgradcheck(products._Product.apply, (x, y))
    layer = nn.Linear(4, 2).double()
    torch.testing.assert_close(products.linear(x, layer), layer(x))


def test_kernels_are_for_gpus_only() -> None:
    assert not has_kernels(torch.device("cpu"))
    layer, x = nn.Linear(5, 4), torch.randn(2, 5)
    assert not products.is_few(x, layer.weight)
    assert not products.is_small(x, layer.weight.t())


def test_a_small_layer_and_its_gradients_go_through_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "is_small", lambda x, y: True)
    monkeypatch.setattr(products, "is_few", lambda x, weight: True)
    torch.set_float32_matmul_precision("highest")
    layer, x = nn.Linear(5, 4, device=DEVICE), torch.randn(2, 3, 5, device=DEVICE, requires_grad=True)
    inputs = [x, layer.weight, layer.bias]
    found = torch.autograd.grad(products.linear(x, layer).sum(), inputs)  # of a sum: strides of zero
    for mine, theirs in zip(found, torch.autograd.grad(layer(x).sum(), inputs), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("shape", [(1, 1750, 128), (3, 1, 20), (2, 5, 300)])
def test_a_linear_layer_on_a_gpu_is_pytorchs(shape: tuple[int, ...]) -> None:
    torch.set_float32_matmul_precision("highest")
    layer = nn.Linear(shape[-1], 24, device="cuda")
    x = torch.randn(shape, device="cuda", requires_grad=True)
    found, expected = products.linear(x, layer), layer(x)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    cotangent = torch.randn_like(found)
    inputs = [x, layer.weight, layer.bias]
    for mine, theirs in zip(
        torch.autograd.grad(found, inputs, cotangent),
        torch.autograd.grad(expected, inputs, cotangent),
        strict=True,
    ):
        assert (mine - theirs).norm() <= 1e-5 * theirs.norm()
