"""The search on a GPU: buffers, launches, and graphs of many steps that serve every length."""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from beamtree.ops import board as boards
from beamtree.ops import step_kernels as kernels

STEPS_IN_GRAPH = 32
GRAPHS_AT_MOST = 16
CHUNK = 1024  # how much of a list one program ranks
SHORT_CHUNK = 128


class Weights(NamedTuple):
    """The cell's parameters, then the scorer's."""

    w1: Tensor  # (hidden, 2·d)
    b1: Tensor
    w2: Tensor  # (4·d, hidden)
    b2: Tensor
    gamma: Tensor  # (d,)
    beta: Tensor
    scorer_w1: Tensor  # (H, 2·s)
    scorer_b1: Tensor
    scorer_w2: Tensor  # (1, H)
    scorer_b2: Tensor


class Tape(NamedTuple):
    """What the gradient needs. Node ids: leaves 0 … n−1, the node of step t and slot k: n + t·K + k."""

    nodes: Tensor  # (B, n + (n−1)·K, d)
    projections: Tensor  # (B, n + (n−1)·K, 2·H)
    links: Tensor  # (B, n−1, K, 4) int32
    energies: Tensor  # (B, n−1, K, 4)
    heights: Tensor  # (B, n−1, K) int32
    slots: Tensor  # (B, K, n−1) int32: the slot of each final beam's lineage after each step, −1 for none
    log_z: Tensor  # (B, K, n−1): log Z along each lineage


@dataclass(frozen=True)
class Plan:
    """Everything that kernels are compiled for or a graph is captured for; lengths are not among it."""

    B: int
    K: int
    d: int
    s: int
    H: int
    units: int
    chunks: int
    chunk: int
    noisy: bool
    drops: bool
    precision: str

    @property
    def beams(self) -> int:
        return max(2, triton.next_power_of_2(self.K))

    @property
    def rows(self) -> int:
        return self.B * self.K

    @property
    def block_k(self) -> int:
        return min(64, max(16, triton.next_power_of_2(self.d)))

    @property
    def block_h(self) -> int:
        return min(128, triton.next_power_of_2(self.H))

    def project(self, board: Tensor, rows: int, *, leaves: bool = False, step: int = 0) -> None:
        grid = (triton.cdiv(rows, 16), triton.cdiv(2 * self.H, 64))
        kernels.project_kernel[grid](
            board, step, D=self.d, K=self.K, S=self.s, H=self.H, LEAVES=leaves,
            BLOCK_M=16, BLOCK_N=64, BLOCK_K=self.block_k, num_warps=4,
        )  # fmt: skip

    def step(self, board: Tensor, step: int) -> None:
        small = self.rows <= 64
        block_m, block_n, block_f = (16, 16, 8) if small else (32, 64, 16)
        tiles = triton.cdiv(self.rows, block_m)
        self.project(board, self.rows, step=step)
        kernels.choose_kernel[(self.B,)](
            board, step, K=self.K, H=self.H, NOISY=self.noisy, CHUNKS=self.chunks, CHUNK=self.chunk,
            BEAMS=self.beams, WIDTH=triton.next_power_of_2(self.K + 2), BLOCK_H=self.block_h, num_warps=2,
        )  # fmt: skip
        hidden_programs = tiles * triton.cdiv(self.units, block_n)
        kernels.hidden_and_lists_kernel[(hidden_programs + self.rows * self.chunks,)](
            board, step, hidden_programs, D=self.d, K=self.K, UNITS=self.units, DROPS=self.drops,
            NOISY=self.noisy, CHUNKS=self.chunks, CHUNK=self.chunk, BEAMS=self.beams,
            BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=self.block_k, PRECISION=self.precision, num_warps=4,
        )  # fmt: skip
        kernels.gates_kernel[(tiles, triton.cdiv(self.d, block_f))](
            board, step, D=self.d, K=self.K, UNITS=self.units,
            BLOCK_M=block_m, BLOCK_F=block_f, BLOCK_K=self.block_k, PRECISION=self.precision, num_warps=4,
        )  # fmt: skip

    def begin(self, board: Tensor, n: int) -> None:
        """Score the leaves' pairs and rank them for the first step."""
        if n > 1:
            self.project(board, self.B * n, leaves=True)
        kernels.leaf_lists_kernel[(self.B, triton.cdiv(n, 32))](
            board, K=self.K, H=self.H, BEAMS=self.beams, BLOCK=32, BLOCK_H=self.block_h, num_warps=4
        )
        kernels.first_lists_kernel[(self.B * self.chunks,)](
            board, K=self.K, NOISY=self.noisy, CHUNKS=self.chunks, CHUNK=self.chunk, BEAMS=self.beams, num_warps=4
        )  # fmt: skip


def plan_for(
    leaves: Tensor, weights: Weights, *, beam_size: int, dropout: float, noisy: bool, precision: str
) -> Plan:
    B, n, d = leaves.shape
    H, twice_s = weights.scorer_w1.shape
    chunk = SHORT_CHUNK if n <= SHORT_CHUNK else CHUNK
    chunks = triton.next_power_of_2(ceil(n / chunk))
    return Plan(
        B, beam_size, d, twice_s // 2, H, weights.b1.shape[0], chunks, chunk, noisy, dropout > 0, precision
    )


class _Graph:
    """Many steps of one plan, captured once; they read everything else from the board."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.lock = threading.Lock()
        self.board = torch.zeros(boards.SIZE, dtype=torch.int64, device=device)
        self.graph = torch.cuda.CUDAGraph()
        # With an empty board every kernel is a no-op: this compiles them, which a capture must not do.
        plan.step(self.board, 0)
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            self.graph.capture_begin(capture_error_mode="thread_local")
            for step in range(STEPS_IN_GRAPH):
                plan.step(self.board, step)
            kernels.advance_kernel[(1,)](self.board, STEPS=STEPS_IN_GRAPH, num_warps=1)
            self.graph.capture_end()
        torch.cuda.current_stream(device).wait_stream(stream)


_graphs: OrderedDict[tuple[object, ...], _Graph] = OrderedDict()
_graphs_lock = threading.Lock()


def _graph_for(plan: Plan, device: torch.device) -> _Graph:
    """Each stream has its own: a board may be rewritten only after the steps that read it."""
    key = (plan, device, torch.cuda.current_stream(device).cuda_stream)
    with _graphs_lock:
        graph = _graphs.get(key)
        if graph is None:
            graph = _graphs[key] = _Graph(plan, device)
            while len(_graphs) > GRAPHS_AT_MOST:
                _graphs.popitem(last=False)
        _graphs.move_to_end(key)
    return graph


def search(
    leaves: Tensor,  # (B, n, d) float32, contiguous
    lengths: Tensor,  # (B,) int64
    weights: Weights,
    seed: Tensor,
    *,
    beam_size: int,
    dropout: float,
    noisy: bool,
    precision: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tape]:
    """Roots (B, K, d), relative scores (B, K), offsets (B,), merges (B, K, n−1), and the tape."""
    B, n, d = leaves.shape
    K = beam_size
    plan = plan_for(leaves, weights, beam_size=K, dropout=dropout, noisy=noisy, precision=precision)
    total = n + (n - 1) * K
    integers = torch.int32
    tape = Tape(
        nodes=leaves.new_zeros(B, total, d),
        projections=leaves.new_zeros(B, total, 2 * plan.H),
        links=leaves.new_zeros(B, n - 1, K, 4, dtype=integers),
        energies=leaves.new_zeros(B, n - 1, K, 4),
        heights=leaves.new_zeros(B, n - 1, K, dtype=integers),
        slots=leaves.new_empty(B, K, n - 1, dtype=integers),
        log_z=leaves.new_empty(B, K, n - 1),
    )
    tape.nodes[:, :n] = leaves
    parents, positions, order = leaves.new_empty(3, B * n * K, dtype=integers).unbind()
    addresses = {
        name: getattr(tape, name).data_ptr()
        for name in ("nodes", "projections", "links", "energies", "heights")
    }
    addresses |= {name: weight.data_ptr() for name, weight in weights._asdict().items()}
    addresses |= {
        "lengths": lengths.data_ptr(),
        "parents": parents.data_ptr(),
        "positions": positions.data_ptr(),
    }
    scratch, carved = _carve(plan, n, leaves.device)
    addresses |= carved

    dropped = round(dropout * 65536)
    if leaves.is_cuda:
        graph = _graph_for(plan, leaves.device)
        with graph.lock:
            boards.write(graph.board, addresses, seed, B, n, dropped)
            plan.begin(graph.board, n)
            for _ in range(ceil((n - 1) / STEPS_IN_GRAPH)):
                graph.graph.replay()
            outputs = _finish(graph.board, plan, tape, lengths, parents, positions, order, n)
    else:
        board = torch.zeros(boards.SIZE, dtype=torch.int64)
        boards.write(board, addresses, seed, B, n, dropped)
        plan.begin(board, n)
        for step in range(n - 1):
            plan.step(board, step)
        outputs = _finish(board, plan, tape, lengths, parents, positions, order, n)
    return *outputs, tape


def _carve(plan: Plan, n: int, device: torch.device) -> tuple[Tensor, dict[str, int]]:
    """One allocation for everything that only the search itself needs."""
    B, K, C = plan.B, plan.K, plan.chunks
    words = {
        "ids": 2 * B * K * n,
        "pair_scores": 2 * B * K * n,
        "scores": 2 * B * K,
        "shifts": B * n,
        "top_values": B * K * C * K,
        "top_positions": B * K * C * K,
        "top_scores": B * K * C * K,
        "log_sums": B * K * C,
        "hidden": B * K * plan.units,
        "sums": B * K * plan.d,
    }
    starts, end = {}, 0
    for name, count in words.items():
        starts[name] = end
        end += (count + 31) // 32 * 32  # each part starts on its own cache line
    scratch = torch.empty(end, dtype=torch.float32, device=device)
    return scratch, {name: scratch.data_ptr() + 4 * start for name, start in starts.items()}


def _finish(
    board: Tensor,
    plan: Plan,
    tape: Tape,
    lengths: Tensor,
    parents: Tensor,
    positions: Tensor,
    order: Tensor,
    n: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    B, K, d = plan.B, plan.K, plan.d
    roots, relative = tape.nodes.new_empty(B, K, d), tape.nodes.new_empty(B, K)
    offset = tape.nodes.new_empty(B, dtype=torch.float64)
    merges = tape.nodes.new_empty(B, K, n - 1, dtype=torch.int64)
    kernels.finish_kernel[(B,)](
        board, roots, relative, offset, order, D=d, K=K, BEAMS=plan.beams, BLOCK_K=plan.block_k, num_warps=4
    )
    if n > 1:
        kernels.lineage_kernel[(B,)](
            parents, order, lengths, tape.slots, n, K=K, BEAMS=plan.beams, num_warps=1
        )
        count = merges.numel()
        kernels.read_lineages_kernel[(triton.cdiv(count, 256),)](
            tape.slots, positions, tape.energies, merges, tape.log_z, n, count, K=K, BLOCK=256, num_warps=4
        )
    return roots, relative, offset, merges
