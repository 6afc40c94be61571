"""In which type and in which order numbers are computed: autocast, wide norms, blocks of rows."""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.pytorch.direct_reading import read_part

BLOCK = 8  # rows


def autocasts(x: Tensor) -> bool:
    """Whether products of x are made in autocast's type; the meta device knows no autocast."""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def product_dtype(x: Tensor) -> torch.dtype:
    """The type in which products of x are made."""
    return torch.get_autocast_dtype(x.device.type) if autocasts(x) else x.dtype


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Products in the types of their operands."""
    return torch.autocast(x.device.type, enabled=False) if autocasts(x) else nullcontext()


def layer_norm_wide(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Layer norm at least in float32; the result has the parameters' type."""
    weight, bias = read_part(norm)
    wide = torch.promote_types(weight.dtype, torch.float32)
    with without_autocast(x):
        y = F.layer_norm(x.to(wide), norm.normalized_shape, weight.to(wide), bias.to(wide), norm.eps)
    return y.to(weight.dtype)


def in_blocks(rows: Tensor) -> Tensor:
    """The rows (m, k), on a CPU with zeros below them up to a multiple of BLOCK.

    A product of some rows left over is rounded otherwise than one of a block, so that equal pairs would get
    scores that differ, and ties be broken by whatever stands beside them in the batch.
    """
    missing = -rows.shape[0] % BLOCK if rows.device.type == "cpu" else 0
    return F.pad(rows, (0, 0, 0, missing)) if missing else rows
