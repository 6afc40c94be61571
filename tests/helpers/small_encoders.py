"""Small encoders, padded batches for them, trees to follow and gradients to compare."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from beamtree import BeamTreeEncoder

Module = TypeVar("Module", bound=nn.Module)


def sharp_encoder(d: int, scale: float, **options: Any) -> BeamTreeEncoder:
    """In double precision, and with scores so far apart that choices matter."""
    torch.manual_seed(0)
    encoder = BeamTreeEncoder(d, **{"slice_size": 4, "dtype": torch.float64} | options)
    with torch.no_grad():
        encoder.scorer.out.weight *= scale
    return encoder


def stirred(module: Module) -> Module:
    """As after some training: no gain of a norm is one, no bias is zero."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return module


class ThroughTheCell(nn.Module):
    """The entangled score as a function of the two children, which is what the plain algorithm takes."""

    def __init__(self, cell: nn.Module, scorer: nn.Module) -> None:
        super().__init__()
        self.cell, self.scorer = cell, scorer

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.scorer(self.cell(left, right))


def padding(lengths: Sequence[int]) -> Tensor:
    """(B, n), True at padding."""
    return torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]


def random_tokens(lengths: Sequence[int], d: int, *, seed: int = 2) -> tuple[Tensor, Tensor]:
    """Tokens (B, n, d) in double precision, random at padding too, and the padding mask."""
    torch.manual_seed(seed)
    return torch.randn(len(lengths), max(lengths), d, dtype=torch.float64), padding(lengths)


def zero_padded_tokens(lengths: Sequence[int], d: int) -> tuple[Tensor, Tensor]:
    x, is_padding = random_tokens(lengths, d)
    return x.masked_fill(is_padding.unsqueeze(-1), 0.0), is_padding


def trees_to_follow(encoder: nn.Module, x: Tensor, is_padding: Tensor | None) -> dict[str, Tensor]:
    """The option `merges` for an encoder that follows given trees: right-branching ones."""
    if not getattr(encoder, "needs_merges", False):
        return {}
    B, n, _ = x.shape
    lengths = torch.full((B,), n, device=x.device) if is_padding is None else n - is_padding.sum(1)
    return {"merges": (lengths[:, None] - 2 - torch.arange(n - 1, device=x.device)).clamp(min=-1)}


def gradients(output: Tensor, x: Tensor, encoder: nn.Module) -> list[Tensor]:
    """Of the tokens and of each parameter, from a weighted sum of the output; zero where there is none."""
    weight = torch.linspace(-1, 1, output.numel(), dtype=output.dtype, device=output.device).view_as(output)
    inputs = [x, *encoder.parameters()]
    return list(torch.autograd.grad((output * weight).sum(), inputs, materialize_grads=True))


def assert_same(ours: Sequence[Tensor], theirs: Sequence[Tensor], tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)
