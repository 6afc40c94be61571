"""The search in C (search.c), for the built-in cell and the sliced scorer on a CPU, where it can be compiled.

Sequences do not know of each other, so they are searched in groups, each on one thread from its first step to
its last: nothing waits for another thread before the end. A single sequence runs on the caller's thread.
"""

import ctypes
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import POINTER, byref, c_double, c_int64, c_uint64, c_void_p
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from beamtree.engine.built_in_parts import EPS
from beamtree.engine.randomness import Randomness
from beamtree.engine.record import NONE, Tape, Timeline
from beamtree.engine.search import rank_beams
from beamtree.kernels.weights import SlicedScorerWeights, Weights
from beamtree.pytorch import c_library

SOURCE = Path(__file__).with_name("search.c")
_REAL = {torch.float32: "float", torch.float64: "double"}
_ROWS_TOGETHER = 96  # beams in a group: what the products of a step read and make stays in a core's cache
_STEPS_TOGETHER = 64  # of a call into C, which cannot be interrupted
_WORTH_A_THREAD = 25_000_000  # multiplications, about a millisecond


class _Problem(ctypes.Structure):
    """As in search.c."""

    _fields_ = (
        *((name, c_int64) for name in ("B", "n", "K", "d", "hidden", "slice", "scorer_hidden")),
        *((name, c_void_p) for name in ("order", "lengths", "begins", "w1", "w2", "scorer_w1")),
        *((name, c_void_p) for name in ("b1", "b2", "gamma", "beta", "scorer_b1", "scorer_w2", "scorer_b2")),
        ("eps", c_double),
        *(("noisy", c_int64), ("dropped", c_int64), ("seed", c_uint64)),
        *((name, c_void_p) for name in ("nodes", "ended", "scores", "links", "roots", "offset")),
    )


def why_not_compiled() -> str | None:
    """Why searches run in PyTorch, in a few words; None where they run in C."""
    return c_library.why_not(SOURCE, REAL="float")


def is_compiled(leaves: Tensor, lengths: Tensor, weights: Weights[Any], product_dtype: torch.dtype) -> bool:
    """Whether the search of these leaves, neither given nor pinned, can run in C."""
    return (
        leaves.device.type == "cpu"
        and leaves.dtype in _REAL
        and leaves.numel() > 0
        and not weights.entangled
        and product_dtype == leaves.dtype
        and lengths.dtype == torch.int64
        and all(type(x) in (Tensor, Parameter) for x in (leaves, lengths, *weights.flat()))
        and all(w.dtype == leaves.dtype and w.device == leaves.device for w in weights.flat())
        and _library(leaves.dtype) is not None
    )


@torch.no_grad()
def compiled_search(
    leaves: Tensor,  # (B, n, d)
    lengths: Tensor,  # (B,)
    weights: Weights[SlicedScorerWeights],
    *,
    beam_size: int,
    randomness: Randomness | None,
) -> Tape:
    """What `search` returns, for leaves that `is_compiled` accepts."""
    (B, n, d), K = leaves.shape, beam_size
    library = _library(leaves.dtype)
    timeline = Timeline(lengths, n, K)
    order, first, capacity = timeline.order, timeline.first, B * K * (n - 1)
    nodes = leaves.new_empty(first + capacity, d)
    nodes[NONE] = 0
    nodes[1:first] = leaves.reshape(B * n, d)
    links, ended = lengths.new_zeros(capacity, 6), leaves.new_zeros(capacity, 4)
    roots = lengths.new_full((B, K), NONE)
    roots[:, 0] = order * n + 1  # where there is no merge the root is the leaf
    scores = leaves.new_full((B, K), -torch.inf)
    scores[:, 0] = 0
    offset = torch.zeros(B, 1, dtype=torch.float64)

    cell, scorer = weights
    hidden, scorer_hidden = cell.w1.shape[0], scorer.w1.shape[0]
    biases = (cell.b1, cell.b2, cell.gamma, cell.beta, scorer.b1, scorer.w2, scorer.b2)
    noisy, dropout, seed = False, 0.0, 0
    if randomness is not None:
        noisy, dropout, seed = randomness.noisy, randomness.dropout, int(randomness.seed)
    tensors = [
        *(order, lengths[order], timeline.begins),
        *(_packed(library, weight) for weight in (cell.w1, cell.w2, scorer.w1)),
        *(bias.contiguous() for bias in biases),
    ]
    problem = _Problem(
        *(B, n, K, d, hidden, scorer.w1.shape[1] // 2, scorer_hidden),
        *map(Tensor.data_ptr, tensors),
        *(EPS, noisy, round(dropout * 65536), seed),
        *map(Tensor.data_ptr, (nodes, ended, scores, links, roots, offset)),
    )
    work = timeline.made * (2 * d * hidden + hidden * 4 * d)
    threads = max(1, min(B, torch.get_num_threads(), work // _WORTH_A_THREAD))
    _Run(library, problem, sum(map(bool, timeline.running))).on_threads(threads)
    return Tape(nodes, links, ended, *rank_beams(roots, scores, offset, order))


class _Run:
    """All steps of all groups."""

    def __init__(self, library: Any, problem: _Problem, steps: int) -> None:
        self.library, self.problem, self.steps = library, problem, steps
        self.is_stopped = False

    def on_threads(self, threads: int) -> None:
        B, K = self.problem.B, self.problem.K
        most = max(1, _ROWS_TOGETHER // K)
        groups = -(-B // (most * threads)) * threads  # as many for each thread
        bounds = [B * i // groups for i in range(groups + 1)]
        waiting = iter([range(*pair) for pair in pairwise(bounds)])

        def work() -> None:
            for group in waiting:  # a thread takes the next one as soon as it is done with its last
                self._advance(group)

        if threads == 1:
            return work()
        with ThreadPoolExecutor(threads - 1) as others:
            ends = [others.submit(work) for _ in range(threads - 1)]
            try:
                work()
                for end in ends:
                    end.result()
            except BaseException:
                self.is_stopped = True
                raise

    def _advance(self, group: range) -> None:
        problem = byref(self.problem)
        memory = torch.empty(self.library.memory_size(problem, len(group)), dtype=torch.uint8)
        for t in range(0, max(1, self.steps), _STEPS_TOGETHER):
            if self.is_stopped:
                return
            until = min(t + _STEPS_TOGETHER, self.steps)
            self.library.advance(problem, group.start, len(group), t, until, memory.data_ptr())


def _packed(library: Any, weight: Tensor) -> Tensor:
    weight = weight.contiguous()
    width, depth = weight.shape
    packed = weight.new_empty(library.packed_size(width, depth))
    library.pack(weight.data_ptr(), width, depth, packed.data_ptr())
    return packed


def _library(dtype: torch.dtype) -> Any:
    library = c_library.load(SOURCE, REAL=_REAL[dtype])
    if library is not None and library.advance.argtypes is None:
        problem, size, pointer = POINTER(_Problem), c_int64, c_void_p
        _declare(library.packed_size, [size, size], size)
        _declare(library.pack, [pointer, size, size, pointer])
        _declare(library.memory_size, [problem, size], size)
        _declare(library.advance, [problem, size, size, size, size, pointer])
    return library


def _declare(function: Any, arguments: Sequence[Any], result: Any = None) -> None:
    function.restype, function.argtypes = result, arguments
