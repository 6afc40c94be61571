"""State-space layers, (B, n, d) → (B, n, d), whose recurrence treats each feature separately.

The diagonal layer follows S4D (Gu et al. 2022), with complex states:

    s_t = exp(Δa)·s_{t−1} + b̄·x_t      y_t = 2·Re Σ c·s_t + D·x_t      b̄ = (exp(Δa) − 1)/a

It is linear, so y is a convolution of x, computed by FFT. The selective layer is Mamba's (Gu and Dao 2023):

    s_t = exp(Δ_t·A)·s_{t−1} + Δ_t·b_t·u_t      y_t = c_t·s_t + D·u_t

Here step Δ, input b and readout c depend on the token, so y is not a convolution: the recurrence is a scan.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from beamtree.pytorch.checks import at_least_one, at_least_one_if_given, lengths_from, zero_at_padding
from beamtree.pytorch.precision import layer_norm_wide, without_autocast

STEPS = (1e-3, 1e-1)  # Δ is initialised log-uniformly between these
_WINDOW = 4  # tokens that the convolution before the scan sees


class DiagonalStateSpace(nn.Module):
    """The S4D convolution of a `StateSpaceLayer`, without norm, nonlinearity and residual connection.

    `bidirectional` adds a second convolution, over the tokens to the right.
    """

    def __init__(
        self,
        d_model: int,
        *,
        state_size: int = 16,
        bidirectional: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        at_least_one(state_size=state_size)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.bidirectional = bidirectional
        shape = 2 if bidirectional else 1, d_model, state_size
        self.log_step = nn.Parameter(torch.empty(shape[:2], **factory))
        self.log_decay = nn.Parameter(torch.empty(shape, **factory))
        self.frequency = nn.Parameter(torch.empty(shape, **factory))
        self.readout = nn.Parameter(torch.empty(*shape, 2, **factory))
        self.skip = nn.Parameter(torch.empty(d_model, **factory))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise all parameters; called by PyTorch's sharded training after `to_empty`."""
        self.log_step.uniform_(*map(math.log, STEPS))
        self.log_decay.fill_(math.log(0.5))
        number = torch.arange(self.frequency.shape[-1], device=self.frequency.device)
        self.frequency.copy_(math.pi * number.double())
        self.readout.normal_(std=math.sqrt(0.5))
        self.skip.normal_()

    def discretize(self) -> tuple[Tensor, Tensor]:
        """Return Δa, the log of the transition, and c·b̄, a state's share of the output.

        Both are complex, (directions, d, state_size).
        """
        wide = torch.promote_types(self.log_step.dtype, torch.float32)
        step = self.log_step.to(wide).exp().unsqueeze(-1)
        a = torch.complex(-self.log_decay.to(wide).exp(), self.frequency.to(wide))
        transition = step * a
        return transition, torch.view_as_complex(self.readout.to(wide)) * torch.expm1(transition) / a

    def kernel(self, n: int) -> Tensor:
        """Return the convolution kernel: what x adds to y after 0, 1, …, n−1 tokens, (directions, d, n)."""
        transition, added = self.discretize()
        after = torch.arange(n, device=added.device)
        return 2 * torch.einsum("kds,kdsn->kdn", added, (transition.unsqueeze(-1) * after).exp()).real

    def forward(self, x: Tensor) -> Tensor:
        """Convolve x (B, n, d), which must be zero at padding so that nothing leaks in from there."""
        n = x.shape[1]
        with without_autocast(x):
            kernel = self.kernel(n)
            x = x.to(kernel.dtype)
            if x.shape[0] == 0:  # FFTs refuse an empty batch; the sum keeps the kernel in the autograd graph
                return (x * self.skip + kernel.sum()).to(self.skip.dtype)
            # A circular convolution of length 2n: the end of the kernel reads the tokens to the right.
            # No two tokens are n apart, so the entry in the middle does not matter.
            leftwards = kernel[1].flip(-1) if self.bidirectional else torch.zeros_like(kernel[0])
            around = torch.cat((kernel[0], leftwards), -1)
            spectrum = torch.fft.rfft(x, 2 * n, dim=1) * torch.fft.rfft(around, dim=-1).T
            y = torch.fft.irfft(spectrum, 2 * n, dim=1)[:, :n] + x * self.skip
        return y.to(self.skip.dtype)

    def extra_repr(self) -> str:
        return f"state_size={self.frequency.shape[-1]}, bidirectional={self.bidirectional}"


class StateSpaceLayer(nn.Module):
    """A residual S4D block, x + GLU(W·GELU(state space(LayerNorm(x)))), (B, n, d_model) -> (B, n, d_model).

    ```python
    layer = StateSpaceLayer(128)
    y = layer(x, is_pad)  # (B, n, 128), (B, n) -> (B, n, 128), zero at padding
    ```

    Args:
        d_model: width of a token.
        state_size: number of complex states per feature.
        bidirectional: also read the tokens from the right.
        dropout: dropout rate on what the block adds to x.
    """

    def __init__(
        self,
        d_model: int,
        *,
        state_size: int = 16,
        bidirectional: bool = True,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.norm = nn.LayerNorm(d_model, device=device, dtype=dtype)
        self.space = DiagonalStateSpace(
            d_model, state_size=state_size, bidirectional=bidirectional, device=device, dtype=dtype
        )
        self.out = nn.Linear(d_model, 2 * d_model, device=device, dtype=dtype)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Apply the block to x (B, n, d_model); the mask (B, n) is True at padding, on the right."""
        lengths_from(x, key_padding_mask, input_size=self.d_model, weight=self.norm.weight)
        x = zero_at_padding(x, key_padding_mask)
        read = zero_at_padding(layer_norm_wide(x, self.norm), key_padding_mask)
        y = x + self.dropout(F.glu(self.out(F.gelu(self.space(read))), -1)).to(x.dtype)
        return zero_at_padding(y, key_padding_mask)


class SelectiveStateSpaceLayer(nn.Module):
    """A residual Mamba block, x + Mamba(LayerNorm(x)), (B, n, d_model) -> (B, n, d_model).

    Args:
        d_model: width of a token.
        inner_size: number of features inside the block, 2·d_model if not given.
        state_size: number of states per inner feature.
        backwards: read the tokens from right to left.
        dropout: dropout rate on what the block adds to x.
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
        at_least_one(state_size=state_size)
        at_least_one_if_given(inner_size=inner_size)
        self.d_model, self.inner_size, self.state_size = d_model, inner_size, state_size
        self.backwards = backwards
        self.rank = math.ceil(d_model / 16)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.norm = nn.LayerNorm(d_model, **factory)
        self.enter = nn.Linear(d_model, 2 * inner_size, bias=False, **factory)
        self.window = nn.Conv1d(inner_size, inner_size, _WINDOW, groups=inner_size, **factory)
        self.select = nn.Linear(inner_size, self.rank + 2 * state_size, bias=False, **factory)
        self.step = nn.Linear(self.rank, inner_size, **factory)
        self.log_decay = nn.Parameter(torch.empty(inner_size, state_size, **factory))
        self.skip = nn.Parameter(torch.empty(inner_size, **factory))
        self.leave = nn.Linear(inner_size, d_model, bias=False, **factory)
        self.dropout = nn.Dropout(dropout)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise the parameters that PyTorch's own layers do not initialise this way."""
        number = torch.arange(1, self.state_size + 1, device=self.log_decay.device)
        self.log_decay.copy_(number.double().log().expand_as(self.log_decay))
        self.skip.fill_(1.0)
        self.step.weight.uniform_(-(self.rank**-0.5), self.rank**-0.5)
        step = torch.empty_like(self.step.bias, dtype=torch.float64).uniform_(*map(math.log, STEPS)).exp()
        self.step.bias.copy_(step.expm1().log())  # the inverse of softplus

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Apply the block to x (B, n, d_model); the mask (B, n) is True at padding, on the right."""
        lengths_from(x, key_padding_mask, input_size=self.d_model, weight=self.norm.weight)
        x = zero_at_padding(x, key_padding_mask)
        u, gate = self.enter(layer_norm_wide(x, self.norm)).chunk(2, -1)  # (B, n, inner)
        u = self._turn(zero_at_padding(u, key_padding_mask))
        # Read backwards, padding comes first: zero it before and after the window, so that states stay zero.
        padding = None if key_padding_mask is None else self._turn(key_padding_mask)
        u = self.window(F.pad(u.transpose(1, 2), (_WINDOW - 1, 0))).transpose(1, 2)
        y = self._turn(self._read(zero_at_padding(F.silu(u), padding)))
        y = self.dropout(self.leave(y * F.silu(gate))).to(x.dtype)
        return zero_at_padding(x + y, key_padding_mask)

    def _turn(self, tokens: Tensor) -> Tensor:
        return tokens.flip(1) if self.backwards else tokens

    def _read(self, u: Tensor) -> Tensor:
        """Run the recurrence over all tokens and read out the states: (B, n, inner) -> (B, n, inner)."""
        rank, write, read = self.select(u).split((self.rank, self.state_size, self.state_size), -1)
        step = F.softplus(self.step(rank))  # (B, n, inner)
        with without_autocast(u):
            wide = torch.promote_types(self.skip.dtype, torch.float32)
            # Tokens first, so that the data of one step of the scan is contiguous in memory.
            by_token = [part.to(wide).transpose(0, 1).contiguous() for part in (u, step, write, read)]
            y: Tensor = ReadStates.apply(*by_token, self.log_decay.to(wide), self.skip.to(wide))
        return y.transpose(0, 1).to(self.skip.dtype)

    def extra_repr(self) -> str:
        return f"inner_size={self.inner_size}, state_size={self.state_size}, backwards={self.backwards}"


class ReadStates(torch.autograd.Function):
    """The recurrence from s = 0 with its readout, (n, B, inner) -> (n, B, inner).

    Only the inputs are kept for the backward pass: the states, (n, B, inner, states), would take much memory
    in every layer and are quick to recompute. Their gradient is the recurrence from the end to the start.
    """

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, step: Tensor, write: Tensor, read: Tensor, log_decay: Tensor, skip: Tensor
    ) -> Tensor:
        ctx.save_for_backward(u, step, write, read, log_decay, skip)
        _, states = _make_states(u, step, write, log_decay)
        return torch.einsum("nbis,nbs->nbi", states, read) + skip * u

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor, ...]:
        u, step, write, read, log_decay, skip = ctx.saved_tensors
        d_y = d_y.contiguous()
        decay, states = _make_states(u, step, write, log_decay)
        d_states = d_y.unsqueeze(-1) * read.unsqueeze(2)
        for t in range(len(u) - 2, -1, -1):
            d_states[t].addcmul_(decay[t + 1], d_states[t + 1])
        d_read = torch.einsum("nbis,nbi->nbs", states, d_y)
        d_write = torch.einsum("nbis,nbi->nbs", d_states, step * u)
        d_added = torch.einsum("nbis,nbs->nbi", d_states, write)  # of step·u
        d_exponent = decay[1:].mul_(d_states[1:]).mul_(states[:-1])  # the first state has no predecessor
        a = -log_decay.exp()
        d_step = d_added * u
        d_step[1:] += torch.einsum("nbis,is->nbi", d_exponent, a)
        d_log_decay = a * torch.einsum("nbis,nbi->is", d_exponent, step[1:])
        return d_added * step + d_y * skip, d_step, d_write, d_read, d_log_decay, (d_y * u).sum((0, 1))


def _make_states(u: Tensor, step: Tensor, write: Tensor, log_decay: Tensor) -> tuple[Tensor, Tensor]:
    """Return each token's decay factors and the states after each token: both (n, B, inner, states)."""
    decay = (step.unsqueeze(-1) * -log_decay.exp()).exp_()
    states = (step * u).unsqueeze(-1) * write.unsqueeze(2)
    for t in range(1, len(u)):
        states[t].addcmul_(decay[t], states[t - 1])
    return decay, states
