"""What one request may cost, and how many may cost it at once."""

import math
import os
from dataclasses import dataclass, field, fields

from beamtree.errors import BeamtreeError


@dataclass(frozen=True)
class Limits:
    max_tokens: int = 1000  # of a sentence
    max_beam_size: int = 20
    max_request_bytes: int = 65536
    seconds: float = 20.0  # of one computation; a request waits at most as long for its turn
    # Computations at once. They hold the interpreter's lock most of the time: more would only wait for it.
    workers: int = field(default_factory=lambda: min(4, os.cpu_count() or 1))
    waiting: int = 16  # requests that may wait for a worker

    def __post_init__(self) -> None:
        for limit in fields(self):
            least = 0 if limit.name == "waiting" else 1 if limit.name != "seconds" else 0.001
            value = getattr(self, limit.name)
            if not least <= value < math.inf:
                raise BeamtreeError(
                    f"the limit {limit.name} must be at least {least} and finite, got {value}"
                )
