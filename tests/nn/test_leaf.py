"""The leaf transform: its formula by hand, and its linear map by small products.

The kernel that does all of it at once is tested in tests/kernels/test_leaf_kernels.py.
"""

import math
from statistics import fmean, pvariance

import pytest
import torch
from kernel_cases import DEVICE
from on_gpu import needs_gpu
from torch import nn

from beamtree.kernels.runtime import products
from beamtree.nn import leaf as leaves
from beamtree.nn.leaf import LeafTransform


def test_the_leaf_transform_is_a_normalised_linear_map() -> None:
    torch.manual_seed(0)
    leaf = LeafTransform(3, 5, dtype=torch.float64)
    x = torch.randn(3, dtype=torch.float64)
    linear = [
        sum(w * v for w, v in zip(row, x.tolist(), strict=True)) + bias
        for row, bias in zip(leaf.linear.weight.tolist(), leaf.linear.bias.tolist(), strict=True)
    ]
    mean, deviation = fmean(linear), math.sqrt(pvariance(linear) + 1e-5)
    assert leaf(x).tolist() == pytest.approx([(y - mean) / deviation for y in linear], abs=1e-12)


def test_a_linear_layer_of_products_has_gradients_of_any_order() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    y = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(leaves._Product.apply, (x, y))
    assert torch.autograd.gradgradcheck(leaves._Product.apply, (x, y))
    layer = nn.Linear(4, 2).double()
    torch.testing.assert_close(leaves.linear(x, layer), layer(x))


def test_on_a_cpu_no_layer_goes_through_the_kernel() -> None:
    assert not leaves.is_few(torch.randn(2, 5), torch.randn(4, 5))


def test_a_small_layer_and_its_gradients_go_through_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "is_small", lambda x, y: True)
    monkeypatch.setattr(leaves, "is_few", lambda x, weight: True)
    torch.set_float32_matmul_precision("highest")
    layer, x = nn.Linear(5, 4, device=DEVICE), torch.randn(2, 3, 5, device=DEVICE, requires_grad=True)
    inputs = [x, layer.weight, layer.bias]
    found = torch.autograd.grad(leaves.linear(x, layer).sum(), inputs)  # of a sum: strides of zero
    torch.testing.assert_close(found, torch.autograd.grad(layer(x).sum(), inputs))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("shape", [(1, 1750, 128), (3, 1, 20), (2, 5, 300)])
def test_a_linear_layer_on_a_gpu_is_pytorchs(shape: tuple[int, ...]) -> None:
    torch.set_float32_matmul_precision("highest")
    layer = nn.Linear(shape[-1], 24, device="cuda")
    x = torch.randn(shape, device="cuda", requires_grad=True)
    found, expected = leaves.linear(x, layer), layer(x)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    cotangent = torch.randn_like(found)
    inputs = [x, layer.weight, layer.bias]
    for mine, theirs in zip(
        torch.autograd.grad(found, inputs, cotangent),
        torch.autograd.grad(expected, inputs, cotangent),
        strict=True,
    ):
        assert (mine - theirs).norm() <= 1e-5 * theirs.norm()
