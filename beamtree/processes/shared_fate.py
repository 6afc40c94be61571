"""Processes that share a run share its fate: what one cannot do ends all of them, with one message.

A process that fails alone leaves the others waiting until a launcher kills them or a connection breaks.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from beamtree.errors import BeamtreeError, SharedError

_LONGEST_MESSAGE = 4096  # bytes


@contextmanager
def failing_together(device: torch.device | str = "cpu") -> Iterator[None]:
    """A BeamtreeError of any process within the block is raised by all of them at its end.

    Every process must come to the end of the block, so nothing inside may wait for another process after a
    point where one alone can fail. `device` is where the processes exchange tensors.
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        yield
        return
    mine: BeamtreeError | None = None
    try:
        yield
    except SharedError:
        raise
    except BeamtreeError as error:
        mine = error
    failed = torch.tensor([mine is not None], dtype=torch.int64, device=device)
    dist.all_reduce(failed)  # a few bytes: this is all that happens where nothing fails
    if failed.item():
        raise SharedError(_first_message(mine, device)) from mine


def _first_message(mine: BeamtreeError | None, device: torch.device | str) -> str:
    text = torch.zeros(_LONGEST_MESSAGE, dtype=torch.uint8)
    if mine is not None:
        encoded = str(mine).encode(errors="backslashreplace")[:_LONGEST_MESSAGE]
        text[: len(encoded)] = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
    text = text.to(device)
    everyone = [torch.zeros_like(text) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, text)
    messages = (bytes(row.tolist()).rstrip(b"\0").decode(errors="replace") for row in everyone)
    return next(message for message in messages if message)
