"""A module's state is equal exactly as long as a graph of it would do the same."""

from collections.abc import Callable

import pytest
import torch
from own_cells import MeanCell
from torch import nn

from beamtree.graphs.cache_key import module_key

CPU = torch.device("cpu")


def make_cell() -> MeanCell:
    cell = MeanCell()
    cell.rates = [0.1, 0.2]
    cell.options = {"deep": (1, [2, 3])}
    cell.kind = torch.float32
    cell.table = (torch.zeros(3),)
    cell.register_buffer("mean", torch.zeros(3))
    cell.callback = object()
    return cell


CHANGES: dict[str, Callable[[MeanCell], object]] = {
    "mode": lambda cell: cell.eval(),
    "mode of a part": lambda cell: cell.out.eval(),
    "number": lambda cell: setattr(cell, "dropout", 0.5),
    "list": lambda cell: cell.rates.append(0.3),
    "list in a tuple in a dict": lambda cell: cell.options["deep"][1].append(4),
    "type": lambda cell: setattr(cell, "kind", torch.float64),
    "object": lambda cell: setattr(cell, "callback", object()),
    "tensor": lambda cell: setattr(cell, "table", (torch.zeros(3),)),
    "buffer": lambda cell: setattr(cell, "mean", torch.ones(3)),
    "weight": lambda cell: setattr(cell.out, "weight", nn.Parameter(torch.zeros(6, 12))),
    "transposed weight": lambda cell: setattr(cell.out.weight, "data", cell.out.weight.data.t()),
    "part": lambda cell: setattr(cell, "out", nn.Identity()),
    "class": lambda cell: setattr(cell, "__class__", nn.Module),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_a_graph_would_miss_is_seen(change: str) -> None:
    cell = make_cell()
    kept = (cell.table, cell.mean, cell.out.weight, cell.callback)  # so that no address is used again
    before = module_key(cell, CPU)
    assert before == module_key(cell, CPU)
    assert hash(before) == hash(module_key(cell, CPU))
    CHANGES[change](cell)
    assert module_key(cell, CPU) not in (None, before)
    assert kept


def test_values_of_tensors_and_gradients_may_change() -> None:
    cell = make_cell()
    before = module_key(cell, CPU)
    with torch.no_grad():
        cell.out.weight += 1
        cell.mean += 1
        cell.table[0].fill_(5)
    cell.out.weight.grad = torch.ones_like(cell.out.weight)
    assert module_key(cell, CPU) == before


HOOKS = ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook")


@pytest.mark.parametrize("hook", HOOKS)
def test_a_module_with_hooks_is_not_captured(hook: str) -> None:
    cell = make_cell()
    handle = getattr(cell.hidden, hook)(lambda *_: None)
    assert module_key(cell, CPU) is None
    handle.remove()
    assert module_key(cell, CPU) is not None


class Wrapped(torch.Tensor):
    pass


def test_nor_is_one_that_refuses_or_reads_tensors_that_a_graph_cannot() -> None:
    unwilling, elsewhere, wrapped = make_cell(), make_cell(), make_cell()
    unwilling.cuda_graphs = False
    elsewhere.options["table"] = torch.zeros(1, device="meta")
    wrapped.table = torch.zeros(2).as_subclass(Wrapped)
    assert [module_key(cell, CPU) for cell in (unwilling, elsewhere, wrapped)] == [None] * 3
