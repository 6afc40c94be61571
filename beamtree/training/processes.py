"""The processes that `torchrun` or `accelerate launch` started for one command, or this process alone.

They fail together: an error in one ends all of them, with one message. A process that failed alone would
leave the others waiting until a launcher kills them or a connection breaks.
"""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from beamtree.errors import BeamtreeError, SharedError


class Processes:
    """The number of processes and the rank of this one; `wait` lets all reach the same point."""

    def __init__(self, rank: int = 0, count: int = 1, local_rank: int = 0) -> None:
        if not 0 <= rank < count:
            raise BeamtreeError(
                f"RANK is {rank}, but WORLD_SIZE is {count}: RANK must be at least 0 and smaller"
            )
        self.rank, self.count, self.local_rank = rank, count, local_rank

    @classmethod
    def from_environment(cls) -> "Processes":
        """Read the launcher's environment variables; without them there is one process."""
        numbers = {}
        for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0)):
            text = os.environ.get(name, str(default))
            if not text.isdecimal():
                raise BeamtreeError(f"the environment variable {name} must be a whole number, got {text!r}")
            numbers[name] = int(text)
        if numbers["WORLD_SIZE"] > 1 and "MASTER_ADDR" not in os.environ:
            raise BeamtreeError(
                "WORLD_SIZE is set but MASTER_ADDR is not: start processes with torchrun or accelerate launch"
            )
        return cls(numbers["RANK"], numbers["WORLD_SIZE"], numbers["LOCAL_RANK"])

    @property
    def first(self) -> bool:
        """Whether this process prints messages and joins the results of all."""
        return self.rank == 0

    def wait(self) -> None:
        """Return when every process has called this the same number of times."""
        if self.count == 1:
            return
        if not dist.is_initialized():
            # One process may be hours ahead of another, so the usual half hour is too short.
            self.connect("gloo", timeout=timedelta(days=30))
        dist.barrier()

    def connect(self, backend: str, **options: Any) -> None:
        """Join the process group.

        torchrun keeps one store over its restarts, with the addresses of dead processes, which new ones would
        try to reach. So every attempt uses its own names there.
        """
        # The functions of this module keep as default argument the group that exists at its first import.
        # Its threads would outlive `leave`, and abort if they released a tensor while Python is ending.
        import torch.distributed.nn  # noqa: F401

        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            options["store"] = dist.PrefixStore(f"attempt{attempt}", dist.TCPStore(*place, is_master=False))
        dist.init_process_group(backend, rank=self.rank, world_size=self.count, **options)

    def leave(self) -> None:
        """Close the connections and end their threads, unless something still holds the group."""
        if self.count > 1 and dist.is_initialized():
            gc.collect()
            dist.destroy_process_group()


@contextmanager
def failing_together() -> Iterator[None]:
    """A BeamtreeError of any process within the block is raised by all of them at its end.

    Every process must reach the end of the block, so nothing inside may wait for another process after a
    point where a single one can fail.
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
    # With NCCL this goes through the current GPU, which `create_accelerator` has set for each process.
    messages: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(messages, None if mine is None else str(mine))
    first = next((message for message in messages if message is not None), None)
    if first is not None:
        raise SharedError(first) from mine
