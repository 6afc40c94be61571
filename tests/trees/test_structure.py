"""A tree's structure from its merges, one launch for all trees on a GPU; beside the plain way."""

import pytest
import torch
from given_trees import random_merges
from kernel_cases import DEVICE
from torch import Tensor

from beamtree.trees import structure_kernels
from beamtree.trees.structure import find_structure


def mixed_merges(R: int, n: int) -> Tensor:
    """Random trees of lengths from 1 to n."""
    lengths = torch.randint(1, n + 1, (R,), generator=torch.Generator().manual_seed(n))
    return random_merges(lengths, n)


@pytest.mark.parametrize(("R", "n"), [(3, 1), (2, 2), (4, 3), (5, 9)])
def test_the_kernel_decodes_merges_as_the_plain_way_does(R: int, n: int) -> None:
    merges = mixed_merges(R, n)
    found = structure_kernels.find_structure(merges.to(DEVICE))
    for mine, theirs in zip(found, find_structure(merges), strict=True):
        assert torch.equal(mine.cpu(), theirs)


def test_a_list_longer_than_a_block_is_decoded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure_kernels, "WIDEST", 4)
    test_the_kernel_decodes_merges_as_the_plain_way_does(3, 11)


def test_the_operator_agrees_with_its_description() -> None:
    merges = mixed_merges(3, 5).to(DEVICE)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.beamtree.structure, (merges,), test_utils=tests)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
@pytest.mark.parametrize("n", [128, 300, 3000])
def test_devices_agree_at_full_size(n: int) -> None:
    merges = mixed_merges(20, n)
    for mine, theirs in zip(find_structure(merges.cuda()), find_structure(merges), strict=True):
        assert torch.equal(mine.cpu(), theirs)
