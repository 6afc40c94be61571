"""Products whose rows do not depend on their neighbours."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from beamtree.pytorch import precision


@pytest.mark.parametrize("wanted", [8, 16, 32, 64])
def test_the_block_is_the_smallest_in_whose_multiples_a_library_rounds_all_rows_alike(wanted: int) -> None:
    def product(rows: Tensor, weight: Tensor) -> Tensor:
        exact = F.linear(rows.double(), weight.double()).float()
        left_over = rows.shape[0] % wanted
        exact[rows.shape[0] - left_over :] += 2.0**-20  # as a kernel for fewer rows would
        return exact

    assert precision.smallest_block(product) == wanted


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_on_this_machine_a_rows_product_does_not_depend_on_the_rows_beside_it(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for k, h in ((64, 64), (128, 256), (200, 800), (256, 512), (600, 300), (64, 1)):
        row, weight, bias = (
            torch.randn(1, k, dtype=dtype),
            torch.randn(h, k, dtype=dtype),
            torch.randn(h, dtype=dtype),
        )
        alone = F.linear(precision.in_blocks(row), weight, bias)[0]
        for m in (2, 3, 5, 9, 16, 17, 31, 45, 100, 257):
            rows = torch.randn(m, k, dtype=dtype)
            for place in {0, m // 2, m - 1}:
                rows[place] = row
                assert torch.equal(F.linear(precision.in_blocks(rows), weight, bias)[place], alone)
