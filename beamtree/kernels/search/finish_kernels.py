# mypy: allow-untyped-defs
"""The end of a search: the final beams, best first, their lineages and inner nodes.

A lineage is traced from the last step back to the first, by stretches of STRETCH steps in parallel. First
`map_parents` finds, for each stretch, the slot before it that each slot after it comes from. With these maps
a program of `lineages_kernel` skips the later stretches, and then walks back through the steps of its own.
"""

import triton
import triton.language as tl

from beamtree.kernels.runtime import address_kernels as at
from beamtree.kernels.runtime.math_kernels import key_of, up_to_rounding
from beamtree.kernels.search.choose_kernels import NONE, moments, node_row, node_vectors

STRETCH = tl.constexpr(32)


@triton.jit
def walk(table, sequence, slot, first, last, K: tl.constexpr):
    """Walk back from the slots after step `last − 1` to those before step `first`; −1 for none."""
    T = at.number(table, at.LENGTH) - 1
    parents = at.integers(table, at.PARENTS) + sequence * T * K
    for back in range(0, last - first):
        slot = tl.load(parents + (last - 1 - back) * K + slot, mask=slot >= 0, other=-1)
    return slot


@triton.jit
def map_parents(table, first_program, programs, K: tl.constexpr, BEAMS: tl.constexpr):
    """The map of each stretch. A sequence's last stretch needs none."""
    T = at.number(table, at.LENGTH) - 1
    stretches = (T + STRETCH - 1) // STRETCH
    beam = tl.arange(0, BEAMS)
    for task in range(first_program, at.number(table, at.BATCH) * stretches, programs):
        sequence = task // stretches
        first = task % stretches * STRETCH
        if first + STRETCH < at.length_of(table, sequence, True) - 1:
            before = walk(table, sequence, tl.where(beam < K, beam, -1), first, first + STRETCH, K)
            tl.store(at.integers(table, at.MAPS) + task * K + beam, before, mask=beam < K)


@triton.jit
def lineages_kernel(table, K: tl.constexpr, BEAMS: tl.constexpr):
    """Slots, merge positions and log Z along the lineage of each final beam. A program takes one stretch."""
    T = at.number(table, at.LENGTH) - 1
    stretches = (T + STRETCH - 1) // STRETCH
    beam = tl.arange(0, BEAMS)
    merges = tl.load(table + at.MERGES).to(tl.pointer_type(tl.int64))
    positions, energies = at.integers(table, at.POSITIONS), at.floats(table, at.ENERGIES)
    for task in range(tl.program_id(0), at.number(table, at.BATCH) * stretches, tl.num_programs(0)):
        sequence = task // stretches
        stretch = task % stretches
        first = stretch * STRETCH
        steps = at.length_of(table, sequence, True) - 1
        slot = tl.load(at.integers(table, at.LAST_SLOTS) + sequence * K + beam, mask=beam < K, other=-1)
        last = tl.maximum(steps - 1, 0) // STRETCH  # the stretch of the last merge
        # From the end of the lineages to the end of this stretch: step by step through the last stretch,
        # which has no map, then by the maps of those between.
        if stretch < last:
            slot = walk(table, sequence, slot, last * STRETCH, steps, K)
        for later in range(1, last - stretch):
            place = (sequence * stretches + last - later) * K + slot
            slot = tl.load(at.integers(table, at.MAPS) + place, mask=slot >= 0, other=-1)
        lineage = (sequence * K + beam).to(tl.int64) * T
        end = tl.minimum(first + STRETCH, T)
        for back in range(0, end - first):
            t = end - 1 - back
            real = slot >= tl.where(t < steps, 0, K)  # the sequence has a step t, and the beam is not dead
            record = (sequence * T + t) * K + slot
            tl.store(at.integers(table, at.SLOTS) + lineage + t, tl.where(real, slot, -1), mask=beam < K)
            position = tl.load(positions + record, mask=real, other=-1)
            tl.store(merges + lineage + t, position.to(tl.int64), mask=beam < K)
            log_z = tl.load(energies + record.to(tl.int64) * 4 + 3, mask=real, other=0.0)
            tl.store(at.floats(table, at.LOG_Z) + lineage + t, log_z, mask=beam < K)
            parent = tl.load(at.integers(table, at.PARENTS) + record, mask=real, other=-1)
            slot = tl.where(real, parent, slot)


@triton.jit(do_not_specialize=["B", "n"])
def inner_nodes_kernel(
    slots, nodes, inner, B, n, D: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr
):
    """The node made at each step of each lineage, zero for none."""
    T = n - 1
    entry = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = entry < B.to(tl.int64) * K * T
    slot = tl.load(slots + entry, mask=inside, other=-1)
    node = entry // (T * K) * (n + T * K) + n + entry % T * K + slot
    for first in range(0, D, BLOCK_D):
        feature = first + tl.arange(0, BLOCK_D)
        real = (feature < D)[None, :]
        made = (slot >= 0)[:, None] & real
        x = tl.load(nodes + node[:, None] * D + feature[None, :], mask=made, other=0.0)
        tl.store(inner + entry[:, None] * D + feature[None, :], x, mask=inside[:, None] & real)


@triton.jit
def finish_kernel(
    table, D: tl.constexpr, H: tl.constexpr, K: tl.constexpr, BEAMS: tl.constexpr, BLOCK_D: tl.constexpr
):
    """The first B programs each finish a sequence, the others prepare the lineages."""
    B = at.number(table, at.BATCH)
    if tl.program_id(0) < B:
        finish(table, tl.program_id(0), D, H, K, BEAMS, BLOCK_D)
    else:
        map_parents(table, tl.program_id(0) - B, tl.num_programs(0) - B, K, BEAMS)


@triton.jit
def finish(
    table, sequence,
    D: tl.constexpr, H: tl.constexpr, K: tl.constexpr, BEAMS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """A sequence's final beams, best first: their roots and relative scores; and the sequence's offset."""
    B, n = at.number(table, at.BATCH), at.number(table, at.LENGTH)
    length = at.length_of(table, sequence, True)
    beam = tl.arange(0, BEAMS)
    scores = at.floats(table, at.SCORES) + (((length - 1) & 1) * B + sequence) * K
    score = tl.load(scores + beam, mask=beam < K, other=NONE)
    alive = score != NONE
    key = key_of(up_to_rounding(score), beam)
    ahead = key[:, None] > key[None, :]  # (i, j): beam i is better than beam j
    target = sequence * K + tl.sum(ahead.to(tl.int32), 0)
    # Near-ties are ordered up to rounding. No score may exceed one before it by a last bit.
    lowest = tl.min(tl.where(ahead, score[:, None], float("inf")), 0)
    best = tl.max(tl.where(target == sequence * K, score, NONE), 0)
    best = tl.where(best == NONE, 0.0, best)
    tl.store(at.floats(table, at.RELATIVE) + target, tl.minimum(score, lowest) - best, mask=beam < K)
    last_slots = at.integers(table, at.LAST_SLOTS)
    tl.store(last_slots + target, tl.where(alive, beam, -1), mask=beam < K)

    # The offset: everything that was subtracted on the way, and the best score at the end.
    total = tl.zeros([1024], tl.float64)
    for first in range(0, length - 1, 1024):
        step = first + tl.arange(0, 1024)
        shifts = at.floats(table, at.SHIFTS) + sequence * (n - 1) + step
        total += tl.load(shifts, mask=step < length - 1, other=0.0).to(tl.float64)
    offset = tl.load(table + at.OFFSET).to(tl.pointer_type(tl.float64))
    tl.store(offset + sequence, tl.sum(total, 0) + best.to(tl.float64))

    # Roots: the nodes of the last step, which only here go through their layer norm, or a single leaf.
    nodes = at.floats(table, at.NODES)
    row = node_row(table, sequence, K)
    made = alive & (beam < tl.where(length > 1, K, 0))
    source = at.floats(table, at.SUMS) + (sequence * K + beam).to(tl.int64) * D
    node = nodes + (row + n + (length - 2) * K + beam) * D
    mean, scale = moments(source, made, D, BEAMS, BLOCK_D)
    for first in range(0, D, BLOCK_D):
        feature = first + tl.arange(0, BLOCK_D)
        real = (feature < D)[None, :]
        if H == 0:  # an entangled scorer: the node was there before it was chosen
            x = tl.load(node[:, None] + feature[None, :], mask=made[:, None] & real, other=0.0)
        else:
            x = node_vectors(table, source, mean, scale, made, feature, D, False)
            tl.store(node[:, None] + feature[None, :], x, mask=made[:, None] & real)
        is_leaf = (beam < tl.where(length == 1, 1, 0))[:, None] & real
        leaf = tl.load(nodes + row * D + feature[None, :] + beam[:, None] * 0, mask=is_leaf, other=0.0)
        roots = at.floats(table, at.ROOTS) + target[:, None].to(tl.int64) * D + feature[None, :]
        tl.store(roots, tl.where(made[:, None], x, leaf), mask=(beam < K)[:, None] & real)
