"""One kernel reads an input as the leaf transform does; without a GPU in Triton's interpreter."""

import copy

import pytest
import torch
from kernel_cases import DEVICE
from on_gpu import needs_gpu
from torch import Tensor
from torch.autograd import forward_ad

import beamtree
from beamtree.kernels import leaf_kernels
from beamtree.nn.leaf import LeafTransform


def make(lengths: list[int], width: int, d: int) -> tuple[LeafTransform, Tensor, Tensor]:
    """A transform, an input with NaN at its padding, and the mask."""
    torch.manual_seed(0)
    leaf = LeafTransform(width, d, device=DEVICE)
    with torch.no_grad():
        leaf.norm.weight.uniform_(0.5, 1.5)
        leaf.norm.bias.uniform_(-0.5, 0.5)
    is_padding = torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]
    x = torch.randn(len(lengths), max(lengths), width).masked_fill(is_padding.unsqueeze(-1), torch.nan)
    return leaf, x.to(DEVICE), is_padding.to(DEVICE)


def read_exactly(leaf: LeafTransform, x: Tensor, is_padding: Tensor) -> tuple[Tensor, Tensor]:
    exact = LeafTransform(leaf.linear.in_features, leaf.linear.out_features, dtype=torch.float64)
    exact.load_state_dict(leaf.state_dict())
    leaves, lengths = exact.read(x.cpu().double(), is_padding.cpu())
    return leaves.float().to(DEVICE), lengths.to(DEVICE)


@pytest.mark.parametrize(
    ("lengths", "width", "d"), [([3, 1, 2], 20, 16), ([5], 1, 20), ([1, 1], 70, 40), ([1030, 2], 2, 3)]
)
def test_leaves_and_lengths_are_the_leaf_transforms(lengths: list[int], width: int, d: int) -> None:
    torch.set_float32_matmul_precision("highest")
    leaf, x, is_padding = make(lengths, width, d)
    expected, counts = read_exactly(leaf, x, is_padding)
    assert counts.tolist() == lengths
    with torch.no_grad():
        leaves, found = leaf_kernels.read_leaves(x, is_padding, leaf.linear, leaf.norm)
        assert torch.equal(found, counts)
        torch.testing.assert_close(leaves, expected, atol=1e-5, rtol=1e-5)
        full, found = leaf_kernels.read_leaves(x.nan_to_num(0.0), None, leaf.linear, leaf.norm)
    assert found.tolist() == [max(lengths)] * len(lengths)
    assert torch.equal(full, leaves)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("x_is_given", [True, False])
def test_gradients_are_the_leaf_transforms(masked: bool, x_is_given: bool) -> None:
    torch.set_float32_matmul_precision("highest")
    leaf, x, is_padding = make([3, 1, 2], 20, 18)
    x = x if masked else x.nan_to_num(0.0)
    mask = is_padding if masked else None
    x.requires_grad_(not x_is_given)
    exact = copy.deepcopy(leaf).cpu().double()
    y = x.detach().cpu().double().requires_grad_(not x_is_given)
    leaves, lengths = leaf_kernels.read_leaves(x, mask, leaf.linear, leaf.norm)
    expected, counts = exact.read(y, None if mask is None else mask.cpu())
    assert torch.equal(lengths.cpu(), counts)
    assert not lengths.requires_grad
    cotangent = torch.randn_like(leaves)  # at padding too: what stands there is then the bias
    mine = torch.autograd.grad(leaves, [*leaf.parameters(), *([] if x_is_given else [x])], cotangent)
    theirs = torch.autograd.grad(
        expected, [*exact.parameters(), *([] if x_is_given else [y])], cotangent.cpu().double()
    )
    torch.testing.assert_close(leaves.detach().cpu(), expected.detach().float(), atol=1e-5, rtol=1e-5)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one.cpu(), other.float(), atol=1e-4, rtol=1e-4)


def test_a_second_derivative_is_refused() -> None:
    leaf, x, is_padding = make([2], 3, 16)
    leaves, _ = leaf_kernels.read_leaves(x, is_padding, leaf.linear, leaf.norm)
    (grad,) = torch.autograd.grad(leaves.square().sum(), leaf.linear.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_an_input_need_not_be_contiguous() -> None:
    leaf, x, is_padding = make([3, 2], 6, 16)
    strided = torch.stack((x, x), -1)[..., 0]
    for mask in (is_padding, is_padding.t().contiguous().t()):
        leaves, _ = leaf_kernels.read_leaves(strided, mask, leaf.linear, leaf.norm)
        expected, _ = read_exactly(leaf, x, is_padding)
        torch.testing.assert_close(leaves, expected, atol=1e-3, rtol=1e-3)


def test_a_cpu_reads_in_its_own_way() -> None:
    leaf = LeafTransform(4, 4)
    assert not leaf._one_kernel_reads(torch.zeros(1, 2, 4))


def test_what_is_read_at_once_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    leaf, x, is_padding = make([3, 2], 6, 16)
    monkeypatch.setattr(LeafTransform, "_one_kernel_reads", lambda self, x: True)
    leaves, lengths = leaf.read(x, is_padding, once=True)
    assert lengths.tolist() == [3, 2]
    torch.testing.assert_close(leaves, read_exactly(leaf, x, is_padding)[0], atol=1e-3, rtol=1e-3)
    with pytest.raises(ValueError, match="key_padding_mask must have shape"):
        leaf.read(x, is_padding[:, 1:], once=True)


@pytest.mark.gpu
@needs_gpu
def test_a_gpu_one_kernel_reads_only_where_nobody_looks_on() -> None:
    leaf, x, is_padding = make([9, 4], 128, 128)
    torch.set_float32_matmul_precision("highest")
    expected = read_exactly(leaf, x, is_padding)
    for context in (torch.enable_grad(), torch.inference_mode()):
        with context:
            assert leaf._one_kernel_reads(x)
            for mine, theirs in zip(leaf.read(x, is_padding, once=True), expected, strict=True):
                torch.testing.assert_close(mine.detach(), theirs.detach(), atol=1e-5, rtol=1e-5)
    with torch.inference_mode():
        with pytest.raises(ValueError, match="key_padding_mask must have shape"):
            leaf.read(x, is_padding[:, 1:])
        with torch.autocast("cuda", torch.bfloat16):
            assert not leaf._one_kernel_reads(x)
        beamtree.validate(True)
        try:
            assert not leaf._one_kernel_reads(x)
        finally:
            beamtree.validate(False)
        handle = leaf.register_forward_hook(lambda *_: None)
        assert not leaf._one_kernel_reads(x)
        handle.remove()
    with torch.no_grad(), forward_ad.dual_level():  # inference mode itself drops tangents
        assert not leaf._one_kernel_reads(forward_ad.make_dual(x, x))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(("lengths", "d"), [([9, 1, 4], 128), ([50] * 100 + [7], 128), ([40, 33], 200)])
def test_a_gpus_gradients_of_reading_are_the_exact_ones(lengths: list[int], d: int) -> None:
    """Few numbers are multiplied by our kernel, many by the library."""
    torch.set_float32_matmul_precision("highest")
    leaf, x, is_padding = make(lengths, d, d)
    x.requires_grad_()
    exact, y = copy.deepcopy(leaf).cpu().double(), x.detach().cpu().double().requires_grad_()
    leaves, _ = leaf.read(x, is_padding, once=True)
    expected, _ = exact.read(y, is_padding.cpu())
    cotangent = torch.randn_like(leaves)
    mine = torch.autograd.grad(leaves, [x, *leaf.parameters()], cotangent)
    theirs = torch.autograd.grad(expected, [y, *exact.parameters()], cotangent.cpu().double())
    for one, other in zip(mine, theirs, strict=True):
        assert (one.cpu() - other).norm() <= 1e-5 * other.norm()
