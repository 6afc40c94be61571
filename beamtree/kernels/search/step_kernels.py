# mypy: allow-untyped-defs
"""The kernels of a search step, and those that run before the first step.

A step is three kernels. Each does a part of the critical path and, in other programs, work off that path:

    hidden_kernel   the cell's first product       splice: the lists after the merge, the history
    gates_kernel    the cell's second product      rank, add_up: the old pairs of the new lists
    choose_kernel   the scorer, the next choice    draw: random numbers of the step after

With a wide scorer its first layer is a fourth kernel, `project_kernel`, before `choose_kernel`. Everything
that varies from call to call is read from the table, so that one graph serves every length and no length
makes anything compile.
"""

import triton
import triton.language as tl
from triton.language.extra import cuda

from beamtree.kernels.cell_kernels import drawn_mask, hidden_tile, mixed_tile
from beamtree.kernels.entangled_kernels import score_parents, settle
from beamtree.kernels.runtime import address_kernels as at
from beamtree.kernels.runtime.random_kernels import name_of
from beamtree.kernels.search.choose_kernels import (
    NONE,
    children_of,
    choose,
    node_row,
    pair_score,
    project,
)
from beamtree.kernels.search.list_kernels import add_up, draw, rank, splice


@triton.jit
def clock(table, step, CHAINED: tl.constexpr):
    """The step's number. A chained kernel may be launched before the one it depends on has ended, so it waits
    here."""
    if CHAINED:
        cuda.gdc_launch_dependents()  # the next kernel may be launched now
        cuda.gdc_wait()  # until the kernel before has ended and its writes can be seen
    return at.number(table, at.BASE) + step


@triton.jit(do_not_specialize=["step", "products"])
def hidden_kernel(
    table, step, products,
    D: tl.constexpr, K: tl.constexpr, UNITS: tl.constexpr, ENTANGLED: tl.constexpr, DROPS: tl.constexpr,
    CHUNKS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """The first `products` programs each make a tile of the cell's hidden layer u, the others splice."""
    t = clock(table, step, CHAINED)
    program = tl.program_id(0)
    if t < at.number(table, at.LENGTH) - 1:
        if program < products:
            BLOCKS: tl.constexpr = (UNITS + BLOCK_N - 1) // BLOCK_N
            row = program // BLOCKS * BLOCK_M + tl.arange(0, BLOCK_M)
            inside = row < at.number(table, at.BATCH) * (2 * K if ENTANGLED else K)
            active, sequence, left, right = children_of(table, row, inside, K, ENTANGLED)
            base = node_row(table, sequence, K)
            nodes = at.floats(table, at.NODES)
            unit = program % BLOCKS * BLOCK_N + tl.arange(0, BLOCK_N)
            u = hidden_tile(
                nodes + (base + left) * D, nodes + (base + right) * D, active if ENTANGLED else inside,
                at.floats(table, at.W1), at.floats(table, at.B1), unit, D, UNITS, BLOCK_K, PRECISION, "",
            )  # fmt: skip
            place = row[:, None].to(tl.int64) * UNITS + unit[None, :]
            mask = active[:, None] & (unit < UNITS)[None, :]
            if DROPS:
                dropped = at.number(table, at.DROPPED)
                if ENTANGLED:  # a mask belongs to a pair and is drawn here
                    n = at.number(table, at.LENGTH)
                    u *= drawn_mask(
                        at.seed(table), name_of(left, n), sequence, name_of(right, n), unit, dropped
                    )
                else:  # a mask belongs to a merge and was drawn beforehand
                    first_row = (t & 1) * (at.number(table, at.BATCH) * K)
                    keep = at.bytes(table, at.KEEP) + first_row.to(tl.int64) * UNITS + place
                    keep = tl.load(keep, mask=inside[:, None] & (unit < UNITS)[None, :], other=0) != 0
                    u = tl.where(keep, u * (65536.0 / (65536 - dropped)), 0.0)
            tl.store(at.floats(table, at.HIDDEN) + place, u, mask=mask)
        else:
            splice(table, t, program - products, K, CHUNKS, CHUNK, ROWS)


@triton.jit(do_not_specialize=["step", "products", "lists"])
def gates_kernel(
    table, step, products, lists,
    D: tl.constexpr, K: tl.constexpr, UNITS: tl.constexpr, ENTANGLED: tl.constexpr, NOISY: tl.constexpr,
    CHUNKS: tl.constexpr, CHUNK: tl.constexpr, BEAMS: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """The first `products` programs each make a tile of the new nodes before their layer norm, the next
    `lists` rank, the others add up."""
    t = clock(table, step, CHAINED)
    program = tl.program_id(0)
    if t < at.number(table, at.LENGTH) - 1:
        if program < products:
            BLOCKS: tl.constexpr = (D + BLOCK_F - 1) // BLOCK_F
            row = program // BLOCKS * BLOCK_M + tl.arange(0, BLOCK_M)
            inside = row < at.number(table, at.BATCH) * (2 * K if ENTANGLED else K)
            active, sequence, left, right = children_of(table, row, inside, K, ENTANGLED)
            base = node_row(table, sequence, K)
            nodes = at.floats(table, at.NODES)
            first = program % BLOCKS * BLOCK_F
            mixed = mixed_tile(
                at.floats(table, at.HIDDEN) + row.to(tl.int64) * UNITS,
                nodes + (base + left) * D, nodes + (base + right) * D, active if ENTANGLED else inside,
                at.floats(table, at.W2), at.floats(table, at.B2), first,
                D, UNITS, BLOCK_F, BLOCK_K, PRECISION, "",
            )  # fmt: skip
            feature = first + tl.arange(0, BLOCK_F)
            target = at.floats(table, at.SUMS) + row[:, None].to(tl.int64) * D + feature[None, :]
            tl.store(target, mixed, mask=active[:, None] & (feature < D)[None, :])
        elif program < products + lists:
            rank(table, t, program - products, K, NOISY, CHUNKS, CHUNK, BEAMS, ROWS)
        else:
            add_up(table, t, program - products - lists, K, CHUNKS, CHUNK, ROWS)


@triton.jit(do_not_specialize=["step"])
def project_kernel(
    table, step,
    D: tl.constexpr, K: tl.constexpr, S: tl.constexpr, H: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """For a wide scorer: normalise the new nodes and apply its first layer."""
    t = clock(table, step, CHAINED)
    if t < at.number(table, at.LENGTH) - 1:
        row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
        active = row < at.number(table, at.BATCH) * K
        active = active & (t < at.length_of(table, row // K, active) - 1)
        first = tl.program_id(1) * BLOCK_N
        project(table, t, row, active, first, first + BLOCK_N, first == 0,
                D, K, S, H, False, BLOCK_M, BLOCK_N, BLOCK_K, BLOCK_D)  # fmt: skip


@triton.jit(do_not_specialize=["step", "choices"])
def choose_kernel(
    table, step, choices,
    D: tl.constexpr, K: tl.constexpr, S: tl.constexpr, H: tl.constexpr, UNITS: tl.constexpr,
    ENTANGLED: tl.constexpr, NOISY: tl.constexpr, DROPS: tl.constexpr, CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr, BEAMS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, PROJECTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_H: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """The first `choices` programs each choose for one sequence, the others draw for the step after."""
    t = clock(table, step, CHAINED)
    program = tl.program_id(0)
    if t < at.number(table, at.LENGTH) - 1:
        if program < choices:
            length = at.length_of(table, program, True)
            if PROJECTS or ENTANGLED:  # noqa: SIM102 a constant, unlike the next condition
                if (t > 0) & (t < length - 1):  # there are nodes made by step t − 1, and a choice to come
                    if ENTANGLED:
                        score_parents(table, t, program, D, K, 2 * BEAMS, BLOCK_D)
                    else:
                        slot = tl.arange(0, BLOCK_M)
                        row = program * K + slot
                        project(table, t, row, slot < K, 0, 2 * H, True,
                                D, K, S, H, False, BLOCK_M, BLOCK_N, BLOCK_K, BLOCK_D)  # fmt: skip
                    tl.debug_barrier()
            choose(table, t, program, K, H, NOISY, CHUNKS, CHUNK, BEAMS, WIDTH, BLOCK_H)
            if ENTANGLED:  # noqa: SIM102 a constant, unlike the next condition
                if t < length:  # also just after the last merge, to clear the lists of pairs
                    tl.debug_barrier()
                    settle(table, t, program, D, K, BEAMS, BLOCK_D)
        else:
            draw(table, t + 1, program - choices, K, UNITS, NOISY, DROPS, CHUNKS, CHUNK, BEAMS, ROWS)


@triton.jit(do_not_specialize=["steps"])
def advance_kernel(table, steps):
    """At the end of a graph: add its steps to the number from which the next graph counts."""
    tl.store(table + at.BASE, tl.load(table + at.BASE) + steps)


@triton.jit
def leaves_kernel(
    table,
    D: tl.constexpr, K: tl.constexpr, S: tl.constexpr, H: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Copy the leaves into the node store and apply the scorer's first layer to them."""
    rows = at.number(table, at.BATCH) * at.number(table, at.LENGTH)
    for tile in range(tl.program_id(0), (rows + BLOCK_M - 1) // BLOCK_M, tl.num_programs(0)):
        row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        project(
            table, 0, row, row < rows, 0, 2 * H, True, D, K, S, H, True, BLOCK_M, BLOCK_N, BLOCK_K, BLOCK_D
        )


@triton.jit
def leaf_lists_kernel(
    table, K: tl.constexpr, H: tl.constexpr, BEAMS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_H: tl.constexpr
):
    """The state before the first step: only beam 0 is alive; its list has the leaves and the scores of their
    pairs. With an entangled scorer (H = 0) the scores are there already."""
    n = at.number(table, at.LENGTH)
    blocks = (n + BLOCK - 1) // BLOCK
    for task in range(tl.program_id(0), at.number(table, at.BATCH) * blocks, tl.num_programs(0)):
        sequence = task // blocks
        index = task % blocks * BLOCK + tl.arange(0, BLOCK)
        length = at.length_of(table, sequence, True)
        row = node_row(table, sequence, K) + index
        place = sequence * K * n + index
        if H == 0:
            score = tl.load(at.floats(table, at.PAIR_SCORES) + place, mask=index < length - 1, other=NONE)
        else:
            score = pair_score(table, row, row + 1, index < length - 1, H, BLOCK, BLOCK_H)
        tl.store(at.integers(table, at.IDS) + place, index, mask=index < length)
        tl.store(at.floats(table, at.PAIR_SCORES) + place, score, mask=index < length)
        if task % blocks == 0:
            beam = tl.arange(0, BEAMS)
            target = at.floats(table, at.SCORES) + sequence * K + beam
            tl.store(target, tl.where(beam == 0, 0.0, NONE), mask=beam < K)
            fresh = at.integers(table, at.FRESH) + (sequence * K + beam) * 4
            tl.store(fresh, n, mask=beam < K)  # no newest node: a position beyond the list, no neighbours
            tl.store(fresh + 1, -1, mask=beam < K)
            tl.store(fresh + 2, -1, mask=beam < K)
