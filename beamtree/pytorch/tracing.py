"""What a tracer sees: is this call compiled or exported, what a compiler leaves alone, and loops that
`torch.export` keeps as loops.

Those run for any number of iterations, in inference only. Their state has one size from the first iteration
to the last, so a row of n live nodes stays n wide and closes up with every merge.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from types import CodeType
from typing import ParamSpec, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop

BREAKS = "beamtree leaves this model's loop to Python: compile it without fullgraph=True"

# Older releases answer torch.compiler.is_exporting() with yes whenever Dynamo traces (PyTorch issue 176347).
_EXPORT_IS_TOLD_APART = torch.__version__ >= "2.13"

P = ParamSpec("P")
T = TypeVar("T")


def is_compiling() -> bool:
    """Whether `torch.compile` or `torch.export` is tracing this call."""
    return torch.compiler.is_compiling()


def is_exporting() -> bool:
    """Whether `torch.export` is tracing this call; `torch.compile`, which also trains, is not."""
    if _EXPORT_IS_TOLD_APART:
        return torch.compiler.is_exporting()
    return bool(torch.compiler._is_exporting_flag)


def runs_eagerly(function: Callable[P, T]) -> Callable[P, T]:
    """`torch.compiler.disable`, asked for only while compiling: importing what it needs takes a second.

    A loop over tokens or merges would be unrolled for each length if it were traced.
    """

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        if not is_compiling():
            return function(*args, **options)
        torch._dynamo.graph_break(msg=BREAKS)  # told to those who asked for fullgraph=True
        return torch.compiler.disable(function)(*args, **options)

    return call


State = tuple[Tensor, ...]

# What an older release saves of a change of gradient mode it cannot load again.
_GRADIENT_MODE_IS_SAVED = torch.__version__ >= "2.10"


class HasMode(Protocol):
    training: bool


def traced_loop(is_running: Callable[..., Tensor], step: Callable[..., State], state: State) -> State:
    """The state at which `is_running(t, *state)` ends, step(t, *state) being the next one; t counts steps."""
    if not torch.compiler.is_dynamo_compiling():
        _forget_earlier_loops()
    start = torch.zeros((), dtype=torch.int64, device=state[0].device)
    with torch.no_grad() if _GRADIENT_MODE_IS_SAVED else nullcontext():
        _, *final = while_loop(is_running, lambda t, *now: (t + 1, *step(t, *now)), (start, *state))
    return tuple(final)


def _forget_earlier_loops() -> None:
    """PyTorch compares a loop with those it has traced before, which would fix a dynamic size to theirs."""
    from torch._C._dynamo.eval_frame import reset_code  # private: no import of beamtree may depend on it

    for part in while_loop.__code__.co_consts:
        if isinstance(part, CodeType):
            reset_code(part)


def check_exported(module: HasMode, need_trees: bool = False) -> None:
    """Refuse what an export cannot hold, where this is one."""
    if not is_exporting():
        return
    if module.training:
        raise RuntimeError("torch.export is for inference here: call eval() on the encoder before")
    if need_trees:
        raise ValueError("need_trees cannot be exported: leave it out")


def at(rows: Tensor, t: Tensor, dim: int = 0) -> Tensor:
    """rows[t] along a dimension, for a t that only the running program knows."""
    return rows.index_select(dim, t.unsqueeze(0)).squeeze(dim)


def follow_merges(
    live: Tensor, merges: Tensor, join: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Join neighbours of rows (R, n, w) as merges (R, n−1) say, −1 where there is none: what is left of each
    row, (R, w), and what every step made, (R, n−1, w), zero where nothing.

    `join(t, left, right)` makes parents (R, w) at step t.
    """
    R, n, _ = live.shape
    column, row = torch.arange(n, device=live.device), torch.arange(R, device=live.device)
    steps = (merges >= 0).sum(1).max()
    merges = F.pad(merges, (0, 1), value=-1)  # a size of n − 1 would be specialised to n > 2

    def is_running(t: Tensor, live: Tensor, made: Tensor) -> Tensor:
        return t < steps

    def merge(t: Tensor, live: Tensor, made: Tensor) -> State:
        here = at(merges, t, 1).unsqueeze(1)  # (R, 1): the left child's column
        exists = (here >= 0).unsqueeze(-1)
        left = here.squeeze(1).clamp(min=0)
        parent = join(t, live[row, left], live[row, (left + 1).clamp(max=n - 1)]).unsqueeze(1)  # (R, 1, w)
        stays = (column + (column > here)).clamp(max=n - 1)  # (R, n): the right child's place closed
        closed = torch.where((column == here).unsqueeze(-1), parent, live[row.unsqueeze(1), stays])
        is_now = exists & (column == t).unsqueeze(-1)
        return torch.where(exists, closed, live), torch.where(is_now, parent, made)

    live, made = traced_loop(is_running, merge, (live.clone(), torch.zeros_like(live)))
    return live[:, 0], made[:, : n - 1].contiguous()
