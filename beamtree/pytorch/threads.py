"""How many threads a small piece of work is worth.

PyTorch shares even a product of a hundred rows between all threads, which then wait for each other: fast on
an idle machine, but where others compute too a single wait may take as long as the whole work.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from beamtree.pytorch.tracing import is_compiling

WORTH_SHARING = 10_000_000  # multiplications between two waits: some tenths of a millisecond


def threads_for(multiplications: int, x: Tensor) -> AbstractContextManager[None]:
    """One thread for PyTorch within the block, if so many multiplications of x, on a CPU, are few."""
    if is_compiling() or x.device.type != "cpu" or multiplications >= WORTH_SHARING:
        return nullcontext()
    return nullcontext() if torch.get_num_threads() == 1 else _one_thread()


@contextmanager
def _one_thread() -> Iterator[None]:
    """PyTorch keeps the number for each thread: those that compute beside this one keep theirs. Only a thread
    that meets PyTorch for the first time within the block would begin with one."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)
