"""Support for `torch.compile` and `torch.export`: is one of them tracing this call, code that is left to
Python, and loops that `torch.export` keeps as loops.

Such a loop runs for any number of iterations, in inference only. The size of its state never changes: a row
stays n nodes wide, and the nodes that are left move up after every merge.
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

# In older releases torch.compiler.is_exporting() is true whenever Dynamo traces (PyTorch issue 176347).
_EXPORT_IS_TOLD_APART = torch.__version__ >= "2.13"

P = ParamSpec("P")
T = TypeVar("T")


def is_compiling() -> bool:
    """Return True if `torch.compile` or `torch.export` is tracing this call."""
    return torch.compiler.is_compiling()


def is_exporting() -> bool:
    """Return True if `torch.export` is tracing this call; False under `torch.compile`, which also trains."""
    if _EXPORT_IS_TOLD_APART:
        return torch.compiler.is_exporting()
    return bool(torch.compiler._is_exporting_flag)


def runs_eagerly(function: Callable[P, T]) -> Callable[P, T]:
    """`torch.compiler.disable`, but applied only while compiling, because its imports take a second.

    For loops over tokens or merges, which tracing would unroll for each length.
    """

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        if not is_compiling():
            return function(*args, **options)
        torch._dynamo.graph_break(msg=BREAKS)  # an error with this text under fullgraph=True
        return torch.compiler.disable(function)(*args, **options)

    return call


State = tuple[Tensor, ...]

# An older release cannot load the exported program again if it changes the gradient mode.
_GRADIENT_MODE_IS_SAVED = torch.__version__ >= "2.10"


class HasMode(Protocol):
    training: bool


def traced_loop(is_running: Callable[..., Tensor], step: Callable[..., State], state: State) -> State:
    """Replace the state by step(t, *state) while `is_running(t, *state)`, t = 0, 1, …; return the last."""
    if not torch.compiler.is_dynamo_compiling():
        _forget_earlier_loops()
    start = torch.zeros((), dtype=torch.int64, device=state[0].device)
    with torch.no_grad() if _GRADIENT_MODE_IS_SAVED else nullcontext():
        _, *final = while_loop(is_running, lambda t, *now: (t + 1, *step(t, *now)), (start, *state))
    return tuple(final)


def _forget_earlier_loops() -> None:
    """Make PyTorch forget the loops it has traced: it would compare the next one with them, and fix a dynamic
    size to theirs."""
    from torch._C._dynamo.eval_frame import reset_code  # private: no import of beamtree may depend on it

    for part in while_loop.__code__.co_consts:
        if isinstance(part, CodeType):
            reset_code(part)


def check_exported(module: HasMode, need_trees: bool = False) -> None:
    """During an export, refuse what cannot be exported."""
    if not is_exporting():
        return
    if module.training:
        raise RuntimeError("torch.export is for inference here: call eval() on the encoder first")
    if need_trees:
        raise ValueError("need_trees cannot be exported: leave it out")


def at(rows: Tensor, t: Tensor, dim: int = 0) -> Tensor:
    """rows[t] along a dimension, for a t known only at run time."""
    return rows.index_select(dim, t.unsqueeze(0)).squeeze(dim)


def follow_merges(live: Tensor, merges: Tensor, join: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    """Join neighbours in rows (R, n, w) as merges (R, n−1) say, −1 for no merge.

    Returns the node that each step made, (R, n−1, w), zero without a merge. `join(t, left, right)` makes the
    parents (R, w) of step t.
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
        stays = (column + (column > here)).clamp(max=n - 1)  # (R, n): skip the right child's column
        closed = torch.where((column == here).unsqueeze(-1), parent, live[row.unsqueeze(1), stays])
        is_now = exists & (column == t).unsqueeze(-1)
        return torch.where(exists, closed, live), torch.where(is_now, parent, made)

    _, made = traced_loop(is_running, merge, (live.clone(), torch.zeros_like(live)))
    return made[:, : n - 1].contiguous()
