"""One kernel reads an input as the leaf transform does; without a GPU in Triton's interpreter."""

import os

import pytest
import torch
from on_gpu import needs_gpu
from torch import Tensor

import beamtree
from beamtree.leaf import LeafTransform

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("Triton's interpreter must be chosen before Triton is imported", allow_module_level=True)

from beamtree.ops import leaf_kernels  # noqa: E402


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
    leaves, found = leaf_kernels.read_leaves(x, is_padding, leaf.linear, leaf.norm)
    assert torch.equal(found, counts)
    torch.testing.assert_close(leaves, expected, atol=1e-5, rtol=1e-5)
    full, found = leaf_kernels.read_leaves(x.nan_to_num(0.0), None, leaf.linear, leaf.norm)
    assert found.tolist() == [max(lengths)] * len(lengths)
    assert torch.equal(full, leaves)


def test_an_input_need_not_be_contiguous() -> None:
    leaf, x, is_padding = make([3, 2], 6, 16)
    strided = torch.stack((x, x), -1)[..., 0]
    for mask in (is_padding, is_padding.t().contiguous().t()):
        leaves, _ = leaf_kernels.read_leaves(strided, mask, leaf.linear, leaf.norm)
        torch.testing.assert_close(leaves, read_exactly(leaf, x, is_padding)[0], atol=1e-3, rtol=1e-3)


def test_a_cpu_reads_in_its_own_way() -> None:
    leaf = LeafTransform(4, 4)
    assert not leaf._reads_at_once(torch.zeros(1, 2, 4))


@pytest.mark.gpu
@needs_gpu
def test_a_gpu_reads_at_once_only_where_nobody_looks_on() -> None:
    leaf, x, is_padding = make([9, 4], 128, 128)
    expected = [y.detach() for y in leaf.read(x, is_padding)]
    assert not leaf._reads_at_once(x)
    with torch.inference_mode():
        assert leaf._reads_at_once(x)
        for mine, theirs in zip(leaf.read(x, is_padding), expected, strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
        with pytest.raises(ValueError, match="key_padding_mask must have shape"):
            leaf.read(x, is_padding[:, 1:])
        with torch.autocast("cuda", torch.bfloat16):
            assert not leaf._reads_at_once(x)
        beamtree.validate(True)
        try:
            assert not leaf._reads_at_once(x)
        finally:
            beamtree.validate(False)
        handle = leaf.register_forward_hook(lambda *_: None)
        assert not leaf._reads_at_once(x)
        handle.remove()
