"""Ranger: rectified Adam with decoupled weight decay, and Lookahead around it.

For the t-th update of a tensor with gradient g and slow weights φ:

    m ← β₁ m + (1−β₁) g ;  v ← β₂ v + (1−β₂) g² ;  θ ← θ (1 − lr·wd)
    ρ∞ = 2/(1−β₂) − 1 ;  ρ = ρ∞ − 2 t β₂ᵗ / (1−β₂ᵗ)
    ρ ≥ 5:      θ ← θ − lr · r · m / (√v + ε),
                r = √[(1−β₂ᵗ) · (ρ−4)/(ρ∞−4) · (ρ−2)/ρ · ρ∞/(ρ∞−2)] / (1−β₁ᵗ)
    otherwise:  θ ← θ − lr · m / (1−β₁ᵗ)
    every 5th optimiser step:  θ ← α θ + (1−α) φ ;  φ ← θ
"""

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT


class Ranger(Optimizer):
    """The optimiser of all the paper's tables.

    `lookahead_alpha` is the weight of the fast weights. Weight decay applies to all parameters, but one
    without a gradient is not touched at all: no decay, no Lookahead, no count. A step launches a handful of
    fused kernels and never waits for the device. `state_dict` holds everything, including the slow weights.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        rectify_from: float = 5.0,
        lookahead_steps: int = 5,
        lookahead_alpha: float = 0.8,
    ) -> None:
        _refuse_unless(lr >= 0, "lr", lr, "at least 0")
        _refuse_unless(all(0 <= beta < 1 for beta in betas), "betas", betas, "two numbers in [0, 1)")
        _refuse_unless(eps >= 0, "eps", eps, "at least 0")
        _refuse_unless(weight_decay >= 0, "weight_decay", weight_decay, "at least 0")
        _refuse_unless(rectify_from > 4, "rectify_from", rectify_from, "above 4, where r exists")
        _refuse_unless(lookahead_steps >= 1, "lookahead_steps", lookahead_steps, "at least 1")
        _refuse_unless(0 < lookahead_alpha <= 1, "lookahead_alpha", lookahead_alpha, "in (0, 1]")
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "rectify_from": rectify_from,
            "lookahead_steps": lookahead_steps,
            "lookahead_alpha": lookahead_alpha,
            "steps_taken": 0,
        }
        super().__init__(params, defaults)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            group["steps_taken"] += 1
            for (t, *_), params in self._by_update_count(group["params"]).items():
                self._update(group, params, t)
        return loss

    def _by_update_count(
        self, params: list[Tensor]
    ) -> dict[tuple[int, torch.device, torch.dtype], list[Tensor]]:
        # Tensors with the same count, device and dtype share scalars and so kernel launches.
        alike = defaultdict(list)
        for p in params:
            if p.grad is None:
                continue
            if p.grad.is_sparse:
                raise ValueError("Ranger takes dense gradients only: build the embedding with sparse=False")
            state = self.state[p]
            if not state:
                state["updates"] = 0
                state["momentum"] = torch.zeros_like(p)
                state["square"] = torch.zeros_like(p)
                state["slow"] = p.detach().clone()
            state["updates"] += 1
            alike[state["updates"], p.device, p.dtype].append(p)
        return alike

    def _update(self, group: dict[str, Any], params: list[Tensor], t: int) -> None:
        gradients = [p.grad for p in params if p.grad is not None]
        momenta = [self.state[p]["momentum"] for p in params]
        squares = [self.state[p]["square"] for p in params]
        lr, (beta1, beta2) = group["lr"], group["betas"]

        torch._foreach_mul_(momenta, beta1)
        torch._foreach_add_(momenta, gradients, alpha=1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - beta2)
        torch._foreach_mul_(params, 1 - lr * group["weight_decay"])

        rectification = _rectification(t, beta2, group["rectify_from"])
        if rectification is None:
            torch._foreach_add_(params, momenta, alpha=-lr / (1 - beta1**t))
        else:
            scales = torch._foreach_sqrt(squares)
            torch._foreach_add_(scales, group["eps"])
            torch._foreach_addcdiv_(params, momenta, scales, value=-lr * rectification / (1 - beta1**t))

        if group["steps_taken"] % group["lookahead_steps"] == 0:
            slow, alpha = [self.state[p]["slow"] for p in params], group["lookahead_alpha"]
            torch._foreach_mul_(params, alpha)
            torch._foreach_add_(params, slow, alpha=1 - alpha)
            torch._foreach_copy_(slow, params)


def _rectification(t: int, beta2: float, rectify_from: float) -> float | None:
    """r·(1−β₁ᵗ) of the formulas above, or None while the variance of 1/√v is still unbounded."""
    longest = 2 / (1 - beta2) - 1
    unbias = 1 - beta2**t
    length = longest - 2 * t * beta2**t / unbias
    if length < rectify_from:
        return None
    grown = (length - 4) / (longest - 4) * (length - 2) / length * longest / (longest - 2)
    return math.sqrt(unbias * grown)


def _refuse_unless(holds: bool, name: str, value: object, wanted: str) -> None:
    if not holds:
        raise ValueError(f"{name} must be {wanted}, got {value!r}")
