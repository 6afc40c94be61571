# mypy: allow-untyped-defs
"""The kernels that are launched: a search step's four, and what comes before the first and after the last.

Numbers that vary from call to call are never specialised, so no length or batch compiles anything anew.
"""

import triton
import triton.language as tl

from beamtree.ops import board as at
from beamtree.ops.math_kernels import key_of
from beamtree.ops.search_kernels import (
    NONE,
    choose,
    clock,
    gates,
    hidden,
    lists,
    moments,
    node_row,
    normalised,
    pair_score,
    project,
)


@triton.jit(do_not_specialize=["step"])
def project_kernel(
    board, step,
    D: tl.constexpr, K: tl.constexpr, S: tl.constexpr, H: tl.constexpr, LEAVES: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    t = clock(board, step)
    if t < at.number(board, at.LENGTH) - 1:
        project(
            board, t, tl.program_id(0), tl.program_id(1), D, K, S, H, LEAVES, BLOCK_M, BLOCK_N, BLOCK_K, "tf32x3"
        )  # fmt: skip


@triton.jit(do_not_specialize=["step"])
def choose_kernel(
    board, step,
    K: tl.constexpr, H: tl.constexpr, NOISY: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr,
    BEAMS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    t = clock(board, step)
    if t < at.number(board, at.LENGTH) - 1:
        choose(board, t, tl.program_id(0), K, H, NOISY, CHUNKS, CHUNK, BEAMS, WIDTH, BLOCK_H)


@triton.jit(do_not_specialize=["step", "hidden_programs"])
def hidden_and_lists_kernel(
    board, step, hidden_programs,
    D: tl.constexpr, K: tl.constexpr, UNITS: tl.constexpr, DROPS: tl.constexpr, NOISY: tl.constexpr,
    CHUNKS: tl.constexpr, CHUNK: tl.constexpr, BEAMS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    t = clock(board, step)
    program = tl.program_id(0)
    if t < at.number(board, at.LENGTH) - 1:
        if program < hidden_programs:
            BLOCKS: tl.constexpr = (UNITS + BLOCK_N - 1) // BLOCK_N
            tile, block = program // BLOCKS, program % BLOCKS
            hidden(board, t, tile, block, D, K, UNITS, DROPS, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION)
        else:
            lists(board, t, program - hidden_programs, K, NOISY, CHUNKS, CHUNK, BEAMS)


@triton.jit(do_not_specialize=["step"])
def gates_kernel(
    board, step,
    D: tl.constexpr, K: tl.constexpr, UNITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    t = clock(board, step)
    if t < at.number(board, at.LENGTH) - 1:
        gates(board, t, tl.program_id(0), tl.program_id(1), D, K, UNITS, BLOCK_M, BLOCK_F, BLOCK_K, PRECISION)


@triton.jit
def advance_kernel(board, STEPS: tl.constexpr):
    tl.store(board + at.BASE, tl.load(board + at.BASE) + STEPS)


@triton.jit
def leaf_lists_kernel(
    board, K: tl.constexpr, H: tl.constexpr, BEAMS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_H: tl.constexpr
):
    """Beam 0 before the first step: the leaves' ids, the scores of their pairs; one live beam."""
    B, n = at.number(board, at.BATCH), at.number(board, at.LENGTH)
    sequence = tl.program_id(0)
    index = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    length = at.length_of(board, sequence, True)
    row = node_row(board, sequence, K) + index
    score = pair_score(board, row, row + 1, index < length - 1, H, BLOCK, BLOCK_H)
    place = sequence.to(tl.int64) * K * n + index
    tl.store(at.integers(board, at.IDS) + place, index, mask=index < length)
    tl.store(at.floats(board, at.PAIR_SCORES) + place, score, mask=index < length)
    if tl.program_id(1) == 0:
        beam = tl.arange(0, BEAMS)
        target = at.floats(board, at.SCORES) + sequence * K + beam
        tl.store(target, tl.where(beam == 0, 0.0, NONE), mask=beam < K)


@triton.jit
def first_lists_kernel(
    board,
    K: tl.constexpr, NOISY: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr, BEAMS: tl.constexpr,
):  # fmt: skip
    task = tl.program_id(0) // CHUNKS * K * CHUNKS + tl.program_id(0) % CHUNKS
    lists(board, clock(board, -1), task, K, NOISY, CHUNKS, CHUNK, BEAMS)


@triton.jit
def finish_kernel(
    board, roots, relative, offset, order,
    D: tl.constexpr, K: tl.constexpr, BEAMS: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Sort the final beams, best first; normalise their roots; add the shifts up in float64."""
    B, n = at.number(board, at.BATCH), at.number(board, at.LENGTH)
    sequence = tl.program_id(0)
    length = at.length_of(board, sequence, True)
    beam = tl.arange(0, BEAMS)
    scores = at.floats(board, at.SCORES) + (((length - 1) & 1) * B + sequence) * K
    score = tl.load(scores + beam, mask=beam < K, other=NONE)
    alive = score != NONE
    key = key_of(score, beam)
    ahead = key[None, :] > key[:, None]
    rank = tl.sum(ahead.to(tl.int32), 1)
    target = sequence * K + rank
    tl.store(relative + target, score, mask=beam < K)
    tl.store(order + target, tl.where(alive, beam, -1), mask=beam < K)

    total = tl.zeros([1024], tl.float64)
    for first in range(0, length - 1, 1024):
        step = first + tl.arange(0, 1024)
        shift = tl.load(
            at.floats(board, at.SHIFTS) + sequence * (n - 1) + step, mask=step < length - 1, other=0.0
        )
        total += shift.to(tl.float64)
    tl.store(offset + sequence, tl.sum(total, 0))

    nodes = at.floats(board, at.NODES)
    row = node_row(board, sequence, K)
    made = alive & (beam < tl.where(length > 1, K, 0))
    source = at.floats(board, at.SUMS) + (sequence * K + beam).to(tl.int64) * D
    node = nodes + (row + n + (length - 2) * K + beam) * D
    mean, scale = moments(source, made, D, BEAMS, BLOCK_K)
    for first in range(0, D, BLOCK_K):
        feature = first + tl.arange(0, BLOCK_K)
        real = (feature < D)[None, :]
        x = normalised(board, source, mean, scale, made, feature, D)
        tl.store(node[:, None] + feature[None, :], x, mask=made[:, None] & real)
        is_leaf = beam < tl.where(length == 1, 1, 0)
        leaf = tl.load(
            nodes + row * D + feature[None, :] + beam[:, None] * 0, mask=is_leaf[:, None] & real, other=0.0
        )
        x = tl.where(made[:, None], x, leaf)
        tl.store(
            roots + target[:, None].to(tl.int64) * D + feature[None, :], x, mask=(beam < K)[:, None] & real
        )


@triton.jit(do_not_specialize=["n"])
def lineage_kernel(parents, order, lengths, slots, n, K: tl.constexpr, BEAMS: tl.constexpr):
    """Walk the parents back from each final beam: the slot its lineage had after every step, −1 for none."""
    sequence = tl.program_id(0)
    beam = tl.arange(0, BEAMS)
    length = tl.load(lengths + sequence).to(tl.int32)
    slot = tl.load(order + sequence * K + beam, mask=beam < K, other=-1)
    target = slots + (sequence * K + beam).to(tl.int64) * (n - 1)
    for back in range(0, n - 1):
        t = n - 2 - back
        running = slot >= tl.where(t < length - 1, 0, K)
        tl.store(target + t, tl.where(running, slot, -1), mask=beam < K)
        parent = tl.load(parents + (sequence * (n - 1) + t) * K + slot, mask=running, other=-1)
        slot = tl.where(running, parent, slot)


@triton.jit(do_not_specialize=["n", "count"])
def read_lineages_kernel(
    slots, positions, energies, merges, log_z, n, count, K: tl.constexpr, BLOCK: tl.constexpr
):
    """Merge positions and log Z along each lineage, (B, K, n−1)."""
    entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = entry < count
    t = entry % (n - 1)
    sequence = entry // ((n - 1) * K)
    slot = tl.load(slots + entry, mask=inside, other=-1)
    record = (sequence * (n - 1) + t) * K + slot
    real = slot >= 0
    position = tl.load(positions + record, mask=real, other=-1)
    tl.store(merges + entry, position.to(tl.int64), mask=inside)
    tl.store(log_z + entry, tl.load(energies + record * 4 + 3, mask=real, other=0.0), mask=inside)
