# mypy: allow-untyped-defs
"""The lineages of the final beams, by stretches of STRETCH steps at once.

A stretch maps the slots after it to those before it (`map_parents`). With these maps each stretch finds the
slots its lineages end in by itself, and then walks its own steps only (`lineages_kernel`).
"""

import triton
import triton.language as tl

from beamtree.kernels.runtime import addresses as at

STRETCH = tl.constexpr(32)


@triton.jit
def walk(board, sequence, slot, first, last, K: tl.constexpr):
    """The slots before step `first` of what is in `slot` after step `last − 1`; −1 for none."""
    T = at.number(board, at.LENGTH) - 1
    parents = at.integers(board, at.PARENTS) + sequence * T * K
    for back in range(0, last - first):
        slot = tl.load(parents + (last - 1 - back) * K + slot, mask=slot >= 0, other=-1)
    return slot


@triton.jit
def map_parents(board, first_program, programs, K: tl.constexpr, BEAMS: tl.constexpr):
    """Each stretch's map; none is needed of a sequence's last one."""
    T = at.number(board, at.LENGTH) - 1
    stretches = (T + STRETCH - 1) // STRETCH
    beam = tl.arange(0, BEAMS)
    for task in range(first_program, at.number(board, at.BATCH) * stretches, programs):
        sequence = task // stretches
        first = task % stretches * STRETCH
        if first + STRETCH < at.length_of(board, sequence, True) - 1:
            before = walk(board, sequence, tl.where(beam < K, beam, -1), first, first + STRETCH, K)
            tl.store(at.integers(board, at.MAPS) + task * K + beam, before, mask=beam < K)


@triton.jit
def lineages_kernel(board, K: tl.constexpr, BEAMS: tl.constexpr):
    """Slots, merge positions and log Z along each lineage."""
    T = at.number(board, at.LENGTH) - 1
    stretches = (T + STRETCH - 1) // STRETCH
    beam = tl.arange(0, BEAMS)
    merges = tl.load(board + at.MERGES).to(tl.pointer_type(tl.int64))
    positions, energies = at.integers(board, at.POSITIONS), at.floats(board, at.ENERGIES)
    for task in range(tl.program_id(0), at.number(board, at.BATCH) * stretches, tl.num_programs(0)):
        sequence = task // stretches
        stretch = task % stretches
        first = stretch * STRETCH
        steps = at.length_of(board, sequence, True) - 1
        slot = tl.load(at.integers(board, at.LAST_SLOTS) + sequence * K + beam, mask=beam < K, other=-1)
        last = tl.maximum(steps - 1, 0) // STRETCH  # the stretch of the last merge
        if stretch < last:
            slot = walk(board, sequence, slot, last * STRETCH, steps, K)
        for later in range(1, last - stretch):
            place = (sequence * stretches + last - later) * K + slot
            slot = tl.load(at.integers(board, at.MAPS) + place, mask=slot >= 0, other=-1)
        lineage = (sequence * K + beam).to(tl.int64) * T
        end = tl.minimum(first + STRETCH, T)
        for back in range(0, end - first):
            t = end - 1 - back
            real = slot >= tl.where(t < steps, 0, K)
            record = (sequence * T + t) * K + slot
            tl.store(at.integers(board, at.SLOTS) + lineage + t, tl.where(real, slot, -1), mask=beam < K)
            position = tl.load(positions + record, mask=real, other=-1)
            tl.store(merges + lineage + t, position.to(tl.int64), mask=beam < K)
            log_z = tl.load(energies + record.to(tl.int64) * 4 + 3, mask=real, other=0.0)
            tl.store(at.floats(board, at.LOG_Z) + lineage + t, log_z, mask=beam < K)
            parent = tl.load(at.integers(board, at.PARENTS) + record, mask=real, other=-1)
            slot = tl.where(real, parent, slot)
