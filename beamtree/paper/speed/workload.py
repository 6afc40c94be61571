"""An encoder on random tokens: a training step (forward, backward, AdamW) or a forward pass, ready to repeat.

Noise and dropout 0.1 are on in training, a padding mask is passed, every sequence has full length.
"""

import time
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch

from beamtree.paper.speed.models import create_measured

DROPOUT = 0.1
VARIED = {"n": "n", "K": "K", "d": "d", "d_s": "slice_size"}  # what can grow, and its field of a case


@dataclass(frozen=True)
class Case:
    """A model at its sizes; None is the model's own, or what it does not have."""

    model: str = "ebt-grc"
    B: int = 1
    n: int = 500
    d: int = 128
    K: int | None = 5
    slice_size: int | None = None
    inference: bool = False

    def size(self, varied: str) -> int | None:
        size: int | None = getattr(self, VARIED[varied])
        return size

    def with_size(self, varied: str, size: int) -> "Case":
        return replace(self, **{VARIED[varied]: size})  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Timing(NamedTuple):
    seconds: float
    processor_seconds: float  # of all threads of this process: steadier than the clock on a busy machine


class Workload:
    """Equal cases, and different models of one encoder's shape, get equal weights and inputs."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case, self.device = case, device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(0)
            self.encoder: Any = create_measured(
                case.model,
                case.d,
                beam_size=case.K,
                slice_size=case.slice_size,
                dropout=DROPOUT,
                device=device,
            ).train(not case.inference)
        on_gpu = device.type == "cuda"
        self.optimizer = torch.optim.AdamW(self.encoder.parameters(), fused=True if on_gpu else None)
        self.feed(case.n)

    def feed(self, n: int) -> None:
        """From now on work on sequences of n tokens."""
        B = self.case.B
        draws = torch.Generator().manual_seed(1)
        self.x = torch.randn(B, n, self.encoder.input_size, generator=draws).to(self.device)
        self.grad = torch.randn(B, self.encoder.d_model, generator=draws).to(self.device)
        self.x.requires_grad_(not self.case.inference)
        self.is_padding = torch.zeros(B, n, dtype=torch.bool, device=self.device)
        self.given = {}
        if getattr(self.encoder, "needs_merges", False):
            rightmost = torch.arange(n - 2, -1, -1, device=self.device)
            self.given["merges"] = rightmost.expand(B, n - 1)

    def step(self) -> None:
        if self.case.inference:
            with torch.no_grad():
                self.encoder(self.x, key_padding_mask=self.is_padding, **self.given)
            return
        self.optimizer.zero_grad()
        self.x.grad = None
        self.encoder(self.x, key_padding_mask=self.is_padding, **self.given).backward(self.grad)
        self.optimizer.step()

    def timed_step(self) -> Timing:
        wait_for(self.device)
        clock, processor = time.perf_counter(), time.process_time()
        self.step()
        wait_for(self.device)
        return Timing(time.perf_counter() - clock, time.process_time() - processor)


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
