"""The search on a GPU: its buffers, and graphs of many steps that serve every length."""

from functools import lru_cache, partial
from math import ceil
from typing import Any, NamedTuple

import torch
from torch import Tensor

from beamtree.kernels.entangled_kernels import score_leaves
from beamtree.kernels.fused_recursion import FusedTape, longest, padded
from beamtree.kernels.runtime import address_kernels as tables
from beamtree.kernels.search.finish_kernels import STRETCH, inner_nodes_kernel
from beamtree.kernels.search.plan import SearchPlan, can_chain, chunks_of
from beamtree.parts.weights import Weights
from beamtree.pytorch import capturing
from beamtree.pytorch.capturing import GraphCache
from beamtree.pytorch.launch import blocks, launch, power_of_two

LONG, MIDDLE, SHORT = SIZES = 32, 8, 2  # steps in a graph
GRAPHS_AT_MOST = 16


class FinalBeams(NamedTuple):
    """The final beams, best first."""

    roots: Tensor  # (B, K, d)
    relative: Tensor  # (B, K), −inf for dead beams
    offset: Tensor  # (B,) float64
    merges: Tensor  # (B, K, n−1), −1 for none


class _Graphs(tables.AddressedGraphs):
    """A plan's graphs: the beginning, several numbers of steps, the end."""

    def __init__(self, plan: SearchPlan, device: torch.device) -> None:
        ends = {"begin": plan.begin, "finish": plan.finish}
        steps = {size: partial(_steps, plan, size) for size in SIZES}
        one = (lambda table: plan.step(table, 0), lambda table: plan.advance(table, 0))
        super().__init__(device, {**ends, **steps}, (*ends.values(), *one))

    def replay(self, steps: int) -> None:
        for part in ("begin", *sizes(steps), "finish"):
            self.parts[part]()


def sizes(steps: int) -> list[int]:
    """The sizes of the graphs that together make this many steps, and at most three in vain: those cost time
    too. Small ones come first: the device works on them while the host launches the large ones."""
    long, rest = divmod(steps, LONG)
    middle, rest = divmod(rest, MIDDLE)
    if rest > 2 * SHORT:
        middle, rest = middle + 1, 0
    return [SHORT] * ceil(rest / SHORT) + [MIDDLE] * middle + [LONG] * long


def _steps(plan: SearchPlan, count: int, table: Tensor) -> None:
    for step in range(count):
        plan.step(table, step)
    plan.advance(table, count)


_graphs: GraphCache[_Graphs] = GraphCache(GRAPHS_AT_MOST)


def _graphs_for(plan: SearchPlan, device: torch.device) -> _Graphs:
    return tables.find_graphs(_graphs, plan, device, lambda: _Graphs(plan, device))


def search(
    leaves: Tensor,  # (B, n, d) float32, contiguous
    lengths: Tensor,  # (B,) int64, contiguous
    weights: Weights[Any],
    seed: Tensor,  # read only with noise or dropout
    *,
    beam_size: int,
    dropout: float,
    noisy: bool,
    precision: str,
    cleared: bool,
) -> tuple[FinalBeams, FusedTape]:
    B, n, d = leaves.shape
    H, twice_s = (0, 0) if weights.entangled else weights.scorer.w1.shape
    units = weights.cell.b1.shape[0]
    chains = leaves.is_cuda and can_chain(leaves.device)
    numbers = (B, beam_size, d, twice_s // 2, H, units, *chunks_of(n))
    plan, starts, words = _prepare(n, *numbers, noisy, dropout > 0, precision, chains)
    K = plan.K
    new = leaves.new_empty
    make = leaves.new_zeros if cleared else new
    made = B * (n - 1) * K
    tape = FusedTape.of(make(B, n + (n - 1) * K, d), K, make)
    merges = torch.empty((B, K, n - 1), dtype=torch.int64, device=leaves.device)
    found = FinalBeams(new(B, K, d), new(B, K), new(B, dtype=torch.float64), merges)
    scratch = new(words)  # held until the last launch; from then on the stream's order protects it
    if plan.entangled:
        parts = {name: scratch[start:] for name, start in starts.items()}
        score_leaves(leaves, weights, seed, dropout, K, precision, tape.nodes, parts)
    base, history, energies = scratch.data_ptr(), tape.integers.data_ptr(), tape.floats.data_ptr()
    addresses = {name: base + 4 * start for name, start in starts.items()}
    addresses |= {
        "seed": seed.data_ptr(),
        "lengths": lengths.data_ptr(),
        "leaves": leaves.data_ptr(),
        "nodes": tape.nodes.data_ptr(),
        "links": history,
        "slots": history + 16 * made,
        "heights": history + 16 * made + 4 * padded(made),
        "energies": energies,
        "log_z": energies + 16 * made,
    }
    addresses |= {
        name: tensor.data_ptr() for part in (weights.cell, found) for name, tensor in part._asdict().items()
    }
    addresses |= {f"scorer_{name}": tensor.data_ptr() for name, tensor in weights.scorer._asdict().items()}
    dropped = round(dropout * 65536)
    if leaves.is_cuda and capturing.are_wanted():
        graphs = _graphs_for(plan, leaves.device)
        with graphs.lock:
            tables.write(graphs.table, addresses, B, n, dropped)
            graphs.replay(n - 1)
    else:
        table = torch.zeros(tables.SIZE, dtype=torch.int64, device=leaves.device)
        tables.write(table, addresses, B, n, dropped)
        plan.begin(table)
        for step in range(n - 1):
            plan.step(table, step)
        plan.finish(table)
    return found, tape


def inner_nodes(tape: FusedTape, K: int, wanted: bool) -> Tensor:
    """The node that each final beam made at each step, (B, K, n−1, d), zero for none; (B, K, 0, d) if not
    wanted."""
    B, _, d = tape.nodes.shape
    n = longest(tape.nodes, K)
    inner = tape.nodes.new_empty(B, K, n - 1 if wanted else 0, d)
    if inner.numel():
        _, slots, *_ = tape.parts(K)
        launch(inner_nodes_kernel, (blocks(B * K * (n - 1), 16),),
            slots, tape.nodes, inner, B, n,
            D=d, K=K, BLOCK_M=16, BLOCK_D=min(128, power_of_two(d)), num_warps=4,
        )  # fmt: skip
    return inner


@lru_cache(maxsize=256)
def _prepare(n: int, *of_plan: Any) -> tuple[SearchPlan, dict[str, int], int]:
    """The plan, and the layout of the search's scratch memory: where each part starts, and the total size, in
    4-byte words."""
    plan = SearchPlan(*of_plan)
    B, K, C = plan.B, plan.K, plan.chunks
    words = {
        "projections": B * (n + (n - 1) * K) * 2 * plan.H,
        "ids": 2 * B * K * n,
        "pair_scores": 2 * B * K * n,
        "scores": 2 * B * K,
        "shifts": B * n,
        "tops": B * K * C * 5 * plan.beams,
        "log_sums": B * K * C,
        "fresh": B * K * 4,
        "first_noise": 2 * B * K * n if plan.noisy else 0,
        "second_noise": 2 * B * K * K,
        "keep": B * K * plan.units // 2 + 1 if plan.drops and not plan.entangled else 0,
        "children": B * K * 2,
        "hidden": plan.rows * plan.units,
        "sums": plan.rows * plan.d,
        "new_pairs": 2 * plan.rows if plan.entangled else 0,
        "candidates": B * (n - 1) * (1 + 2 * K) * plan.d if plan.entangled else 0,
        "parents": B * n * K,
        "positions": B * n * K,
        "last_slots": B * K,
        "maps": B * ceil(n / STRETCH.value) * K,
    }
    starts, end = {}, 0
    for name, count in words.items():
        starts[name] = end
        end += (count + 31) // 32 * 32  # each part starts on its own cache line
    return plan, starts, end
