"""Products whose rows do not depend on their neighbours."""

import pytest
import torch
import torch.nn.functional as F
from every_block import BLOCKS, D, call
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


@pytest.mark.parametrize(("dtype", "apart"), [(torch.float32, 0.0), (torch.float64, 1e-12)])
def test_on_this_machine_a_rows_product_does_not_depend_on_the_rows_beside_it(
    dtype: torch.dtype, apart: float
) -> None:
    """Some libraries sum long rows in float64 in another order where there are many: `up_to_rounding` hides
    that, with multiples of 4e-9."""
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
                product = F.linear(precision.in_blocks(rows), weight, bias)[place]
                assert (product - alone).abs().max() <= apart


@pytest.mark.parametrize("name", BLOCKS)
def test_autocast_leaves_double_precision_alone_as_pytorch_does(name: str) -> None:
    torch.manual_seed(0)
    block, x = BLOCKS[name](dtype=torch.float64).eval(), torch.randn(2, 5, D, dtype=torch.float64)
    expected = call(block, x)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(call(block, x), expected, rtol=0, atol=1e-12)


def test_double_tokens_are_refused_by_single_weights_even_under_autocast() -> None:
    x = torch.randn(2, 5, D)
    with torch.autocast("cpu", torch.bfloat16):
        for x_dtype, dtype in ((torch.float64, torch.float32), (torch.float32, torch.float64)):
            with pytest.raises(
                ValueError, match=f"x must have the parameters' dtype {dtype}, got {x_dtype}: convert one$"
            ):
                call(BLOCKS["ebt-grc"](dtype=dtype), x.to(x_dtype))
