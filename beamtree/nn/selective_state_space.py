"""A selective state-space layer, that of Mamba (Gu and Dao 2023), in plain PyTorch: (B, n, d) → (B, n, d).

    s_t = exp(Δ_t·A)·s_{t−1} + Δ_t·b_t·u_t      y_t = c_t·s_t + D·u_t

Step Δ, input b and readout c depend on the token, so this is no convolution: the recurrence is a scan.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from beamtree.nn.state_space import STEPS
from beamtree.pytorch.checks import lengths_from, zero_at_padding
from beamtree.pytorch.precision import layer_norm_wide, without_autocast

_WINDOW = 4  # tokens that the convolution before the scan sees


class SelectiveStateSpaceLayer(nn.Module):
    """x + Mamba's block of LayerNorm(x). It reads from the left, or `backwards` from the right.

    `inner_size` is the width inside, 2·d if not given; each of these features has `state_size` states.
    """

    def __init__(
        self,
        d_model: int,
        *,
        inner_size: int | None = None,
        state_size: int = 16,
        backwards: bool = False,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        inner_size = 2 * d_model if inner_size is None else inner_size
        for name, size in {"inner_size": inner_size, "state_size": state_size}.items():
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        self.d_model, self.inner_size, self.state_size = d_model, inner_size, state_size
        self.backwards = backwards
        self.rank = math.ceil(d_model / 16)
        self.norm = nn.LayerNorm(d_model, device=device, dtype=dtype)
        self.enter = nn.Linear(d_model, 2 * inner_size, bias=False, device=device, dtype=dtype)
        self.window = nn.Conv1d(
            inner_size, inner_size, _WINDOW, groups=inner_size, device=device, dtype=dtype
        )
        self.select = nn.Linear(
            inner_size, self.rank + 2 * state_size, bias=False, device=device, dtype=dtype
        )
        self.step = nn.Linear(self.rank, inner_size, device=device, dtype=dtype)
        self.log_decay = nn.Parameter(torch.empty(inner_size, state_size, device=device, dtype=dtype))
        self.skip = nn.Parameter(torch.empty(inner_size, device=device, dtype=dtype))
        self.leave = nn.Linear(inner_size, d_model, bias=False, device=device, dtype=dtype)
        self.dropout = nn.Dropout(dropout)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw anew what is not as PyTorch's own layers are drawn."""
        number = torch.arange(1, self.state_size + 1, device=self.log_decay.device)
        self.log_decay.copy_(number.double().log().expand_as(self.log_decay))
        self.skip.fill_(1.0)
        self.step.weight.uniform_(-(self.rank**-0.5), self.rank**-0.5)
        step = torch.empty_like(self.step.bias, dtype=torch.float64).uniform_(*map(math.log, STEPS)).exp()
        self.step.bias.copy_(step.expm1().log())  # softplus makes the step of it

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        lengths_from(x, key_padding_mask, input_size=self.d_model, weight=self.norm.weight)
        x = zero_at_padding(x, key_padding_mask)
        u, gate = self.enter(layer_norm_wide(x, self.norm)).chunk(2, -1)  # (B, n, inner)
        u = self._turn(zero_at_padding(u, key_padding_mask))
        # From the right padding comes first: zero before and behind the window, so that states stay zero too.
        padding = None if key_padding_mask is None else self._turn(key_padding_mask)
        u = self.window(F.pad(u.transpose(1, 2), (_WINDOW - 1, 0))).transpose(1, 2)
        y = self._turn(self._read(zero_at_padding(F.silu(u), padding)))
        y = self.dropout(self.leave(y * F.silu(gate))).to(x.dtype)
        return zero_at_padding(x + y, key_padding_mask)

    def _turn(self, tokens: Tensor) -> Tensor:
        return tokens.flip(1) if self.backwards else tokens

    def _read(self, u: Tensor) -> Tensor:
        """The states of all tokens, read out: (B, n, inner) -> (B, n, inner)."""
        rank, write, read = self.select(u).split((self.rank, self.state_size, self.state_size), -1)
        step = F.softplus(self.step(rank))  # (B, n, inner)
        with without_autocast(u):
            parts = [
                part.to(torch.promote_types(self.skip.dtype, torch.float32))
                for part in (u, step, write, read)
            ]
            if torch.is_grad_enabled():
                from torch.utils.checkpoint import checkpoint

                # (B, n, inner, states) is much to keep of every layer, and quick to compute again.
                y: Tensor = checkpoint(self._scan, *parts, use_reentrant=False, preserve_rng_state=False)
            else:
                y = self._scan(*parts)
        return y.to(self.skip.dtype)

    def _scan(self, u: Tensor, step: Tensor, write: Tensor, read: Tensor) -> Tensor:
        decay = (step.unsqueeze(-1) * -self.log_decay.to(u.dtype).exp()).exp()  # (B, n, inner, states)
        states = scan(decay, (step * u).unsqueeze(-1) * write.unsqueeze(2))
        return torch.einsum("bnis,bns->bni", states, read) + self.skip.to(u.dtype) * u

    def extra_repr(self) -> str:
        return f"inner_size={self.inner_size}, state_size={self.state_size}, backwards={self.backwards}"


def scan(decay: Tensor, added: Tensor) -> Tensor:
    """s_t = decay_t·s_{t−1} + added_t for all t along dimension 1, from s = 0: about 2·√n steps."""
    found: Tensor = _Scan.apply(decay, added)
    return found


class _Scan(torch.autograd.Function):
    """The gradient is the same recurrence from the end to the beginning."""

    @staticmethod
    def forward(ctx: Any, decay: Tensor, added: Tensor) -> Tensor:
        states = _scan_in_blocks(decay, added)
        ctx.save_for_backward(decay, states)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_states: Tensor) -> tuple[Tensor, Tensor]:
        decay, states = ctx.saved_tensors
        later = F.pad(decay.flip(1)[:, :-1].movedim(1, -1), (1, 0)).movedim(-1, 1)
        d_added = _scan_in_blocks(later, d_states.flip(1)).flip(1)
        before = F.pad(states[:, :-1].movedim(1, -1), (1, 0)).movedim(-1, 1)
        return d_added * before, d_added


def _scan_in_blocks(decay: Tensor, added: Tensor) -> Tensor:
    """Inside all blocks of √n tokens side by side, then from block to block, then both together."""
    n = added.shape[1]
    size = max(1, math.isqrt(n))
    missing = -n % size
    if missing:
        decay, added = (F.pad(part.movedim(1, -1), (0, missing)).movedim(-1, 1) for part in (decay, added))
    decay, added = (part.unflatten(1, (-1, size)) for part in (decay, added))  # (B, blocks, size, …)
    states, passed = torch.empty_like(added), torch.empty_like(decay)
    states[:, :, 0], passed[:, :, 0] = added[:, :, 0], decay[:, :, 0]
    for t in range(1, size):
        torch.addcmul(added[:, :, t], decay[:, :, t], states[:, :, t - 1], out=states[:, :, t])
        torch.mul(passed[:, :, t - 1], decay[:, :, t], out=passed[:, :, t])
    for block in range(1, states.shape[1]):
        states[:, block].addcmul_(passed[:, block], states[:, block - 1, -1:])
    return states.flatten(1, 2)[:, :n]
