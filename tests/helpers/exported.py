"""`torch.export` without its compiler: what an export traces, run as it stands."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from beamtree.pytorch import tracing as traced_loop

State = tuple[Tensor, ...]


def plain_loop(goes_on: Callable[..., Tensor], body: Callable[..., State], state: State) -> State:
    """What `while_loop` means; it compiles its body even when nothing is exported."""
    while bool(goes_on(*state)):
        state = body(*state)
    return state


def in_plain_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on models believe to be exported."""
    monkeypatch.setattr(traced_loop, "while_loop", plain_loop)
    monkeypatch.setattr(torch.compiler, "_is_exporting_flag", True)
