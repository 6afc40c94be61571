"""How numbers are rounded: autocast, layer norms in at least float32, matrix products in blocks of rows."""

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.pytorch.direct_reading import read_part


def autocasts(x: Tensor) -> bool:
    """Return True if autocast applies to products of x: never in float64 or on the meta device."""
    return not x.is_meta and x.dtype != torch.float64 and torch.is_autocast_enabled(x.device.type)


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which products of x are computed."""
    return torch.get_autocast_dtype(x.device.type) if autocasts(x) else x.dtype


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """A context in which products have the dtype of their operands."""
    return torch.autocast(x.device.type, enabled=False) if autocasts(x) else nullcontext()


def layer_norm_wide(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Layer norm in at least float32; the result has the dtype of the parameters."""
    weight, bias = read_part(norm)
    wide = torch.promote_types(weight.dtype, torch.float32)
    with without_autocast(x):
        y = F.layer_norm(x.to(wide), norm.normalized_shape, weight.to(wide), bias.to(wide), norm.eps)
    return y.to(weight.dtype)


def in_blocks(rows: Tensor) -> Tensor:
    """The rows (m, k), on a CPU padded with rows of zeros to a multiple of `block_rows()`.

    The matrix library rounds rows left over after full blocks differently. Equal pairs would then get
    different scores, and ties would be broken by whatever else is in the batch. In float64 some libraries
    also round by the number of blocks; there `up_to_rounding` alone makes ties of such scores.
    """
    missing = -rows.shape[0] % block_rows() if rows.device.type == "cpu" else 0
    return F.pad(rows, (0, 0, 0, missing)) if missing else rows


@cache
def block_rows() -> int:
    """A number of rows in multiples of which this machine's matrix library rounds all rows in the same way.

    Found by trying, once: 8 on an AMD EPYC, 16 on an Intel Xeon, both with MKL.
    """
    with torch.inference_mode(), torch.autocast("cpu", enabled=False):
        return smallest_block(lambda rows, weight: F.linear(rows, weight if len(weight) > 1 else weight[0]))


def smallest_block(product: Callable[[Tensor, Tensor], Tensor]) -> int:
    """The smallest of 8, 16, 32 and 64 rows in multiples of which equal rows have equal products."""
    return next((block for block in (8, 16, 32) if _rounds_alike(product, block)), 64)


def _rounds_alike(product: Callable[[Tensor, Tensor], Tensor], block: int) -> bool:
    for (h, k), dtype in itertools.product(
        ((1, 64), (64, 128), (512, 256), (512, 512)), (torch.float32, torch.float64)
    ):
        numbers = torch.arange((h + 1) * k, dtype=dtype).mul(12.9898).sin().view(h + 1, k)
        row, weight = numbers[:1], numbers[1:]
        products = [product(row.repeat(block * blocks, 1), weight) for blocks in (1, 2, 3, 5, 7, 20)]
        if not all((rows == products[0][0]).all() for rows in products):
            return False
    return True
