"""A diagonal state-space layer in the manner of S4D (Gu et al. 2022), (B, n, d) → (B, n, d).

    s_t = exp(Δa)·s_{t−1} + b̄·x_t      y_t = 2·Re Σ c·s_t + D·x_t      b̄ = (exp(Δa) − 1)/a

for every feature on its own, with complex states. As it is linear, y is a convolution of x, done by FFT.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.pytorch.checks import lengths_from, zero_at_padding
from beamtree.pytorch.precision import layer_norm_wide, without_autocast

STEPS = (1e-3, 1e-1)  # Δ is drawn log-uniformly between them


class DiagonalStateSpace(nn.Module):
    """The convolution alone. `bidirectional` adds a second one over what lies to the right."""

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
        if state_size < 1:
            raise ValueError(f"state_size must be at least 1, got {state_size}")
        self.bidirectional = bidirectional
        directions = 2 if bidirectional else 1
        shape = directions, d_model, state_size
        self.log_step = nn.Parameter(torch.empty(shape[:2], device=device, dtype=dtype))
        self.log_decay = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.frequency = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.readout = nn.Parameter(torch.empty(*shape, 2, device=device, dtype=dtype))
        self.skip = nn.Parameter(torch.empty(d_model, device=device, dtype=dtype))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all of it anew, as `to_empty` and sharded training ask for."""
        self.log_step.uniform_(*map(math.log, STEPS))
        self.log_decay.fill_(math.log(0.5))
        number = torch.arange(self.frequency.shape[-1], device=self.frequency.device)
        self.frequency.copy_(math.pi * number.double())
        self.readout.normal_(std=math.sqrt(0.5))
        self.skip.normal_()

    def discretize(self) -> tuple[Tensor, Tensor]:
        """log of the transition Δa and what a state adds to the output, c·b̄: complex (directions, d, N)."""
        wide = torch.promote_types(self.log_step.dtype, torch.float32)
        step = self.log_step.to(wide).exp().unsqueeze(-1)
        a = torch.complex(-self.log_decay.to(wide).exp(), self.frequency.to(wide))
        transition = step * a
        return transition, torch.view_as_complex(self.readout.to(wide)) * torch.expm1(transition) / a

    def kernel(self, n: int) -> Tensor:
        """What x has added to y after 0, 1, …, n−1 tokens: (directions, d, n)."""
        transition, added = self.discretize()
        after = torch.arange(n, device=added.device)
        return 2 * torch.einsum("kds,kdsn->kdn", added, (transition.unsqueeze(-1) * after).exp()).real

    def forward(self, x: Tensor) -> Tensor:
        """x (B, n, d) must be zero at padding: nothing leaks from there then, in either direction."""
        n = x.shape[1]
        with without_autocast(x):
            kernel = self.kernel(n)
            x = x.to(kernel.dtype)
            if x.shape[0] == 0:  # the Fourier transform refuses it; the kernel stays in the graph
                return (x * self.skip + kernel.sum()).to(self.skip.dtype)
            # Circular of length 2n: what lies to the right of a token comes in from the kernel's end.
            # No two tokens are n apart, so the last of what is left does not matter.
            leftwards = kernel[1].flip(-1) if self.bidirectional else torch.zeros_like(kernel[0])
            around = torch.cat((kernel[0], leftwards), -1)
            spectrum = torch.fft.rfft(x, 2 * n, dim=1) * torch.fft.rfft(around, dim=-1).T
            y = torch.fft.irfft(spectrum, 2 * n, dim=1)[:, :n] + x * self.skip
        return y.to(self.skip.dtype)

    def extra_repr(self) -> str:
        return f"state_size={self.frequency.shape[-1]}, bidirectional={self.bidirectional}"


class StateSpaceLayer(nn.Module):
    """x + GLU(W·GELU(state space(LayerNorm(x)))), a block that stacks with others."""

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
        lengths_from(x, key_padding_mask, input_size=self.d_model, weight=self.norm.weight)
        x = zero_at_padding(x, key_padding_mask)
        read = zero_at_padding(layer_norm_wide(x, self.norm), key_padding_mask)
        y = x + self.dropout(F.glu(self.out(F.gelu(self.space(read))), -1)).to(x.dtype)
        return zero_at_padding(y, key_padding_mask)
