# mypy: allow-untyped-defs
"""From lineages to rows: every surviving node once, highest first, and what its gradient starts from.

A survivor is a node in the tree of a final beam. Beams share most of their nodes; a node belongs to the first
beam that has it, and (beam, step) is its entry. `mark_kernel`, `scan_kernel` and `place_kernel` sort the
survivors by height with a counting sort. Gradient rows are the B·n leaves, then the N survivors. S is a final
beam's accumulated score, e the score of a pair.
"""

import triton
import triton.language as tl

from beamtree.kernels.runtime import address_kernels as at
from beamtree.kernels.runtime.math_kernels import gelu, gelu_slope


@triton.jit(do_not_specialize=["T"])
def mark_kernel(
    slots, heights, relative, grad_scores, levels, weights, counts, T,
    K: tl.constexpr, BEAMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """For each entry (beam, step): `levels` gets the height of its node if this beam is the first that has
    it, else 0; `weights` the sum of ∂L/∂S over all final beams that have it. `counts` counts the survivors of
    each height."""
    sequence = tl.program_id(0)
    t = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    beam = tl.arange(0, BEAMS)
    entry = (sequence * K + beam[None, :]) * T + t[:, None]
    inside = (t < T)[:, None] & (beam < K)[None, :]
    slot = tl.load(slots + entry, mask=inside, other=-1)
    alive = tl.load(relative + sequence * K + beam, mask=beam < K, other=float("-inf")) != float("-inf")
    grad = tl.load(grad_scores + sequence * K + beam, mask=alive, other=0.0)
    same = slot[:, :, None] == slot[:, None, :]  # beams with the same slot after step t have the same node
    weight = tl.sum(tl.where(same, grad[None, None, :], 0.0), 2)
    # Does an earlier beam have the node too? Then this entry is not its owner.
    earlier = same & (beam[None, None, :] < beam[None, :, None])
    first = (tl.sum(earlier.to(tl.int32), 2) == 0) & (slot >= 0)
    height = tl.load(heights + (sequence * T + t[:, None]) * K + slot, mask=first, other=0)
    tl.store(levels + entry, height, mask=inside)
    tl.store(weights + entry, weight, mask=inside)
    tl.atomic_add(counts + height, 1, mask=first, sem="relaxed")


@triton.jit(do_not_specialize=["T"])
def scan_kernel(counts, starts, totals, T, BLOCK: tl.constexpr):
    """starts[h] is the number of survivors higher than h. `totals` gets the greatest height and the number of
    survivors."""
    highest, total = 0, 0
    for first in range(0, T + 1, BLOCK):
        height = first + tl.arange(0, BLOCK)
        count = tl.load(counts + height, mask=height <= T, other=0)
        total += tl.sum(count, 0)
        highest = tl.maximum(highest, tl.max(tl.where(count > 0, height, 0), 0))
    before = 0  # survivors lower than this block of heights
    for first in range(0, T + 1, BLOCK):
        height = first + tl.arange(0, BLOCK)
        count = tl.load(counts + height, mask=height <= T, other=0)
        tl.store(starts + height, total - before - tl.cumsum(count, 0), mask=height <= T)
        before += tl.sum(count, 0)
    tl.store(totals, highest)
    tl.store(totals + 1, total)


@triton.jit(do_not_specialize=["count", "T"])
def place_kernel(
    levels, slots, starts, cursors, order, rows, count, T,
    K: tl.constexpr, SORTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Give each survivor its row, highest first. Within a level the order is that of arrival; with SORTED
    `order` is given, sorted by height, and the rows are its places."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    entry = tl.load(order + place, mask=inside, other=0) if SORTED else place
    height = tl.load(levels + entry, mask=inside, other=0)
    survives = height > 0
    if SORTED:
        row = place.to(tl.int32)
    else:
        row = tl.load(starts + height, mask=survives, other=0)
        row += tl.atomic_add(cursors + height, 1, mask=survives, sem="relaxed")
        tl.store(order + row, entry, mask=survives)
    slot = tl.load(slots + entry, mask=survives, other=0)
    record = (entry // (T * K) * T + entry % T) * K + slot
    tl.store(rows + record, row, mask=survives)


@triton.jit
def locate(order, slots, row, inside, T, K: tl.constexpr):
    """Where survivors are: entry (beam, step), sequence, beam, step, and record (step, slot)."""
    entry = tl.load(order + row, mask=inside, other=0)
    t = (entry % T).to(tl.int32)
    beam = (entry // T % K).to(tl.int32)
    sequence = (entry // (T * K)).to(tl.int32)
    slot = tl.load(slots + entry, mask=inside, other=0)
    return entry, sequence, beam, t, (sequence * T + t) * K + slot


@triton.jit
def gradient_row(rows, sequence, node, mask, B, n, K: tl.constexpr):
    """The gradient row of a node id."""
    made = tl.load(rows + sequence * (n - 1) * K + node - n, mask=mask & (node >= n), other=0)
    return tl.where(node < n, sequence * n + node, B * n + made)


@triton.jit
def sizes(table):
    """B, n and the number N of survivors."""
    return at.number(table, at.BATCH), at.number(table, at.LENGTH), at.number(table, at.SURVIVORS)


@triton.jit
def clear(words, count, BLOCK: tl.constexpr):
    """Set `count` words to zero."""
    for first in range(tl.program_id(0) * BLOCK, count, tl.num_programs(0) * BLOCK):
        place = first + tl.arange(0, BLOCK)
        tl.store(words + place, tl.zeros([BLOCK], words.dtype.element_ty), mask=place < count)


@triton.jit
def clear_kernel(table, D: tl.constexpr, K: tl.constexpr, H: tl.constexpr, BLOCK: tl.constexpr):
    """Start all rows without parents and without gradients."""
    B, n, N = sizes(table)
    rows = (B * n + N).to(tl.int64)
    clear(at.integers(table, at.TREE_PARENTS), rows * K, BLOCK)
    clear(at.floats(table, at.GRAD_PROJECTIONS), rows * (2 * H), BLOCK)
    clear(at.floats(table, at.GRADIENTS), rows * D, BLOCK)


@triton.jit
def link_kernel(
    table, D: tl.constexpr, K: tl.constexpr, S: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Give the children their parents, as 1 + 2 · the parent's row + side; gather the children's vectors into
    `pairs`, and the features that the scorer reads, of survivors and leaves, into `slices`. The first tiles
    are of survivors, the others of leaves."""
    B, n, N = sizes(table)
    slots, rows = at.integers(table, at.SLOTS), at.integers(table, at.ROWS)
    links = at.integers(table, at.LINKS)
    order, parents = at.longs(table, at.ORDER), at.integers(table, at.TREE_PARENTS)
    nodes, pairs, slices = at.floats(table, at.NODES), at.floats(table, at.PAIRS), at.floats(table, at.SLICES)
    tiles = tl.cdiv(N, BLOCK_M)
    for tile in range(tl.program_id(0), tiles + tl.cdiv(B * n, BLOCK_M), tl.num_programs(0)):
        row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        inside = row < N
        _, sequence, beam, _, record = locate(order, slots, row, inside, n - 1, K)
        link = links + record.to(tl.int64) * 4
        base = sequence.to(tl.int64) * (n + (n - 1) * K)  # the sequence's first row in the node store
        made = base + n + (record - sequence * (n - 1) * K)
        for side in tl.static_range(2):
            child = tl.load(link + 1 + side, mask=inside, other=0)
            child_row = gradient_row(rows, sequence, child, inside, B, n, K)
            # In the tree of one beam a child has one parent, so no two parents write to the same place.
            tl.store(parents + child_row.to(tl.int64) * K + beam, 1 + 2 * row + side, mask=inside)
            for first in range(0, D, BLOCK_D):
                feature = first + tl.arange(0, BLOCK_D)
                mask = inside[:, None] & (feature < D)[None, :]
                x = tl.load(nodes + (base + child)[:, None] * D + feature[None, :], mask=mask, other=0.0)
                target = pairs + row[:, None].to(tl.int64) * (2 * D) + side * D + feature[None, :]
                tl.store(target, x, mask=mask)
        leaf = (tile - tiles) * BLOCK_M + tl.arange(0, BLOCK_M)
        is_leaf = (leaf >= 0) & (leaf < B * n)
        source = tl.where(is_leaf, leaf // n * (n + (n - 1) * K).to(tl.int64) + leaf % n, made)
        place = tl.where(is_leaf, leaf, B * n + row).to(tl.int64)
        for first in range(0, S, BLOCK_D):
            feature = first + tl.arange(0, BLOCK_D)
            mask = (inside | is_leaf)[:, None] & (feature < S)[None, :]
            x = tl.load(nodes + source[:, None] * D + feature[None, :], mask=mask, other=0.0)
            tl.store(slices + place[:, None] * S + feature[None, :], x, mask=mask)


@triton.jit
def roots_kernel(table, D: tl.constexpr, K: tl.constexpr, BLOCK_D: tl.constexpr):
    """Add the gradient of each final beam's root to the root's row; without a merge the root is the leaf."""
    B, n, _ = sizes(table)
    slots, rows = at.integers(table, at.SLOTS), at.integers(table, at.ROWS)
    grad_roots, gradients = at.floats(table, at.GRAD_ROOTS), at.floats(table, at.GRADIENTS)
    relative = at.floats(table, at.RELATIVE)
    for number in range(tl.program_id(0), B * K, tl.num_programs(0)):
        beam = tl.cast(number, tl.int64)
        sequence = (beam // K).to(tl.int32)
        length = at.length_of(table, sequence, True)
        if tl.load(relative + beam) != float("-inf"):
            last = tl.maximum(length - 2, 0)
            merged = length > 1
            slot = tl.load(slots + beam * (n - 1) + last, mask=merged, other=0)
            made = tl.load(rows + (sequence * (n - 1) + last) * K + slot, mask=merged, other=0)
            row = tl.where(merged, B * n + made, sequence * n).to(tl.int64)
            for first in range(0, D, BLOCK_D):
                feature = first + tl.arange(0, BLOCK_D)
                grad = tl.load(grad_roots + beam * D + feature, mask=feature < D, other=0.0)
                target = gradients + row * D + feature
                tl.store(target, tl.load(target, mask=feature < D, other=0.0) + grad, mask=feature < D)


@triton.jit
def slope_of_score(
    lineage, energy, left, right, t, n, CHOSEN: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr
):
    """∂S/∂e of a pair that step t ended: [chosen] − Σ_life exp(e − log Z). It lived from the step after its
    younger node was made up to step t."""
    youngest = tl.maximum(left, right)
    birth = tl.where(youngest < n, 0, (youngest - n) // K + 1)
    mass = tl.zeros([BLOCK], tl.float32)
    for first in range(birth, t + 1, BLOCK):
        step = first + tl.arange(0, BLOCK)
        z = tl.load(lineage + step, mask=step <= t, other=float("inf"))
        mass += tl.exp(energy - z)
    slope = -tl.sum(mass, 0)
    if CHOSEN:
        slope += 1.0
    return slope


@triton.jit
def pair_kernel(
    table, pair_rows, pair_grads,
    K: tl.constexpr, H: tl.constexpr, UNITS: tl.constexpr, ATOMIC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The three pairs that a survivor's merge ended: ∂L/∂e = weight · ∂S/∂e, and from there the gradients of
    the two nodes' projections. These are added atomically; without ATOMIC they are stored, as `pair_grads`
    (N, 3, H), with the rows of the two nodes, `pair_rows` (N, 3, 2)."""
    B, n, N = sizes(table)
    T = n - 1
    slots, rows = at.integers(table, at.SLOTS), at.integers(table, at.ROWS)
    links = at.integers(table, at.LINKS)
    order, weights = at.longs(table, at.ORDER), at.floats(table, at.ENTRY_WEIGHTS)
    energies, log_z = at.floats(table, at.ENERGIES), at.floats(table, at.LOG_Z)
    projections, grad_projections = at.floats(table, at.PROJECTIONS), at.floats(table, at.GRAD_PROJECTIONS)
    activity, grad_energies = at.floats(table, at.ACTIVITY), at.floats(table, at.GRAD_ENERGIES)
    unit = tl.arange(0, UNITS)
    real = unit < H
    used = unit < tl.where(N > 0, H, 0)  # an empty table has no weights
    bias = tl.load(at.floats(table, at.SCORER_B1) + unit, mask=used, other=0.0)
    w2 = tl.load(at.floats(table, at.SCORER_W2) + unit, mask=used, other=0.0)
    for number in range(tl.program_id(0), N, tl.num_programs(0)):
        row = tl.cast(number, tl.int64)
        entry, sequence, beam, t, record = locate(order, slots, row, True, T, K)
        weight = tl.load(weights + entry)
        lineage = log_z + (sequence * K + beam).to(tl.int64) * T  # log Z at each step of the owner's history
        active = tl.zeros([UNITS], tl.float32)
        sum_of_grads = 0.0
        for which in tl.static_range(3):  # 0: left neighbour, left child; 1: the chosen pair; 2: on the right
            left = tl.load(links + record.to(tl.int64) * 4 + which)
            right = tl.load(links + record.to(tl.int64) * 4 + which + 1)
            if (left >= 0) & (right >= 0):
                energy = tl.load(energies + record.to(tl.int64) * 4 + which)
                grad = weight * slope_of_score(lineage, energy, left, right, t, n, which == 1, K, BLOCK)
                sum_of_grads += grad
                left_row = gradient_row(rows, sequence, left, True, B, n, K).to(tl.int64)
                right_row = gradient_row(rows, sequence, right, True, B, n, K).to(tl.int64)
                to_left, to_right = left_row * (2 * H) + unit, right_row * (2 * H) + H + unit
                a = tl.load(projections + to_left, mask=real, other=0.0)
                b = tl.load(projections + to_right, mask=real, other=0.0)
                h = a + b + bias
                active += grad * gelu(h)
                to_hidden = grad * w2 * gelu_slope(h)
                if ATOMIC:
                    tl.atomic_add(grad_projections + to_left, to_hidden, mask=real, sem="relaxed")
                    tl.atomic_add(grad_projections + to_right, to_hidden, mask=real, sem="relaxed")
                else:
                    pair = row * 3 + which
                    tl.store(pair_grads + pair * H + unit, to_hidden, mask=real)
                    tl.store(pair_rows + pair * 2, left_row)
                    tl.store(pair_rows + pair * 2 + 1, right_row)
        tl.store(activity + row * H + unit, active, mask=real)
        tl.store(grad_energies + row, sum_of_grads)


@triton.jit
def inner_gradients_kernel(
    table, D: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Add to each survivor's row the gradients of its node as an inner node of all beams that have it."""
    B, n, N = sizes(table)
    T = n - 1
    order, slots = at.longs(table, at.ORDER), at.integers(table, at.SLOTS)
    gradients, grad_inner = at.floats(table, at.GRADIENTS), at.floats(table, at.GRAD_INNER)
    for tile in range(tl.program_id(0), tl.cdiv(N, BLOCK_M), tl.num_programs(0)):
        row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        inside = row < N
        _, sequence, _, t, record = locate(order, slots, row, inside, T, K)
        mine = record - (sequence * T + t) * K
        for first in range(0, D, BLOCK_D):
            feature = first + tl.arange(0, BLOCK_D)
            mask = inside[:, None] & (feature < D)[None, :]
            target = gradients + (B * n + row)[:, None].to(tl.int64) * D + feature[None, :]
            total = tl.load(target, mask=mask, other=0.0)
            for beam in range(K):
                entry = (sequence * K + beam).to(tl.int64) * T + t
                owns = tl.load(slots + entry, mask=inside, other=-1) == mine
                sent = grad_inner + entry[:, None] * D + feature[None, :]
                total += tl.load(sent, mask=mask & owns[:, None], other=0.0)
            tl.store(target, total, mask=mask)
