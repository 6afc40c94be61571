"""The search in C (compiled.c) for the built-in cell and the sliced scorer on a CPU with a C compiler.

Sequences are independent, so they are searched in groups. Each group runs on one thread from its first step
to its last, without waiting for other threads. A single sequence runs on the caller's thread.
"""

import ctypes
from collections.abc import Callable, Sequence
from ctypes import POINTER, byref, c_double, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from beamtree.engine.randomness import Randomness
from beamtree.engine.record import NONE, Tape, Timeline
from beamtree.engine.search import rank_beams
from beamtree.parts.weights import SlicedScorerWeights, Weights
from beamtree.pytorch import c_library
from beamtree.pytorch.direct_reading import EPS
from beamtree.pytorch.threads import share

SOURCE = Path(__file__).with_name("compiled.c")
_REAL = {torch.float32: "float", torch.float64: "double"}
_ROWS_TOGETHER = 96  # beams in a group: the operands of a step's products stay in a core's cache
_STEPS_TOGETHER = 64  # per call into C, which cannot be interrupted


class _Problem(ctypes.Structure):
    """Mirrors `Problem` in compiled.c."""

    _fields_ = (
        *((name, c_int64) for name in ("B", "n", "K", "d", "hidden", "slice", "scorer_hidden")),
        *((name, c_void_p) for name in ("order", "lengths", "w1", "w2", "scorer_w1")),
        *((name, c_void_p) for name in ("b1", "b2", "gamma", "beta", "scorer_b1", "scorer_w2", "scorer_b2")),
        ("eps", c_double),
        *(("noisy", c_int64), ("dropped", c_int64), ("seed", c_uint64)),
        *((name, c_void_p) for name in ("nodes", "ended", "scores", "links", "roots", "offset")),
    )


def why_not_compiled() -> str | None:
    """A short reason why searches run in PyTorch, or None if they run in C."""
    return c_library.why_not(SOURCE, REAL="float")


def runs_in_c(leaves: Tensor, lengths: Tensor, weights: Weights[Any], product_dtype: torch.dtype) -> bool:
    """Whether a search of these leaves without given or pinned trees runs in C.

    The C code checks no sizes, so anything that does not fit is left to PyTorch, which raises the error.
    """
    dtype, tensors = leaves.dtype, (leaves, *weights.flat())
    return (
        dtype in _REAL
        and product_dtype == dtype
        and not weights.entangled
        and all(type(x) in (Tensor, Parameter) for x in (lengths, *tensors))
        and all(x.device.type == "cpu" and x.dtype == dtype and x.numel() > 0 for x in tensors)
        and [tuple(w.shape) for w in weights.flat()] == _shapes(leaves.shape[-1], weights)
        and lengths.dtype == torch.int64
        and lengths.shape == leaves.shape[:1]
        and 1 <= int(lengths.min()) <= int(lengths.max()) <= leaves.shape[1]
        and _library(dtype) is not None
    )


def _shapes(d: int, weights: Weights[SlicedScorerWeights]) -> list[tuple[int, ...]]:
    """The shapes of weights that fit nodes with d features."""
    hidden, (scorer_hidden, both_slices) = weights.cell.w1.shape[0], weights.scorer.w1.shape
    of_cell = [(hidden, 2 * d), (hidden,), (4 * d, hidden), (4 * d,), (d,), (d,)]
    reads = 2 * min(both_slices // 2, d)
    return [*of_cell, (scorer_hidden, reads), (scorer_hidden,), (1, scorer_hidden), (1,)]


@torch.no_grad()
def compiled_search(
    leaves: Tensor,  # (B, n, d)
    lengths: Tensor,  # (B,)
    weights: Weights[SlicedScorerWeights],
    *,
    beam_size: int,
    randomness: Randomness | None,
) -> Tape:
    """Same result as `search`, for leaves that `runs_in_c` accepts."""
    (B, n, d), K = leaves.shape, beam_size
    library = _library(leaves.dtype)
    timeline = Timeline(lengths, n, K)
    order, first, capacity = timeline.order, timeline.first, B * K * (n - 1)
    nodes = leaves.new_empty(first + capacity, d)
    nodes[NONE] = 0
    nodes[1:first] = leaves.reshape(B * n, d)
    links, ended = lengths.new_zeros(capacity, 6), leaves.new_zeros(capacity, 4)
    roots = lengths.new_full((B, K), NONE)
    roots[:, 0] = order * n + 1  # a single token is its own root
    scores = leaves.new_full((B, K), -torch.inf)
    scores[:, 0] = 0
    offset = torch.zeros(B, 1, dtype=torch.float64)

    cell, scorer = weights
    hidden, scorer_hidden = cell.w1.shape[0], scorer.w1.shape[0]
    biases = (cell.b1, cell.b2, cell.gamma, cell.beta, scorer.b1, scorer.w2, scorer.b2)
    noisy, dropout, seed = False, 0.0, 0
    if randomness is not None:
        noisy, dropout, seed = randomness.noisy, randomness.dropout, int(randomness.seed)
    kept = [  # kept alive here, as C has only their addresses
        *(order, lengths[order]),
        *(_packed(library, weight) for weight in (cell.w1, cell.w2, scorer.w1)),
        *(bias.contiguous() for bias in biases),
        *(nodes, ended, scores, links, roots, offset),
    ]
    pointers = list(map(Tensor.data_ptr, kept))
    problem = _Problem(
        *(B, n, K, d, hidden, scorer.w1.shape[1] // 2, scorer_hidden),
        *pointers[:-6],
        *(EPS, noisy, round(dropout * 65536), seed),
        *pointers[-6:],
    )
    steps = sum(map(bool, timeline.running))

    def advance(group: range, is_stopped: Callable[[], bool]) -> None:
        memory = torch.empty(library.memory_size(byref(problem), len(group)), dtype=torch.uint8)
        for t in range(0, max(1, steps), _STEPS_TOGETHER):
            if not is_stopped():
                until = min(t + _STEPS_TOGETHER, steps)
                library.advance(byref(problem), group.start, len(group), t, until, memory.data_ptr())

    multiplications = K * sum(timeline.running) * (cell.w1.numel() + cell.w2.numel())
    share(B, max(1, _ROWS_TOGETHER // K), multiplications, advance)
    return Tape(nodes, links, ended, *rank_beams(roots, scores, offset, order))


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
