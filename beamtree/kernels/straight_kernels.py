# mypy: allow-untyped-defs
"""The gradient of a straight-through tree on a GPU, from the last merge back to the first.

The algorithm is that of zoo/straight_through.py: y is a step's choice, h the list before the step, D = ∂L/∂h′
the gradient of the list after it, p the parent. The gradient of the choice is

    ∂L/∂y_i = ⟨D_i, p_i − h_i⟩ + ⟨∂L/∂l, h_i⟩ + ⟨∂L/∂r, h_{i+1}⟩ − Σ_{j≤i} ⟨D_j, h_{j+1} − h_j⟩ + constant

With a sliced scorer only the chosen pair's parent is made, from children l and r that the choice selects: so
p_i = p, and two terms go through l and r. With an entangled scorer every pair has its own p_i, and these
terms are absent.

A step has three phases with barriers between them: the gradient of the new nodes goes to the cell's hidden
layer, then to their children, then the choice is differentiated. In the third phase one program takes a
sequence: two scalar products for each pair, a running sum, the softmax, and from each score to its two nodes.

Gradient rows are the B·n leaves, then the merges, by step, then sequence.
"""

import triton
import triton.language as tl

from beamtree.kernels import cell_kernels as cell
from beamtree.kernels.replay.level_kernels import keep_node_gradient, wait_for_all
from beamtree.kernels.runtime.random_kernels import FIRST_SELECTION, gumbel, name_of, row_key


@triton.jit
def gradient_row(node, sequence, B, n):
    """The gradient row of a node id."""
    row = tl.where(node < n, sequence * n + node, B * n + (node - n) * B + sequence)
    return row.to(tl.int64)


@triton.jit
def pair_row(left, right, sequence, n):
    """The row of a pair. In each sequence the pairs of leaves come first, then the two that each merge
    made."""
    youngest = tl.maximum(left, right)
    made = n - 1 + 2 * (youngest - n) + (youngest == left).to(tl.int32)
    return (sequence * (3 * (n - 1)) + tl.where(youngest < n, left, made)).to(tl.int64)


@triton.jit
def node_gradient(
    gradients, grad_inner, child_grads, normed, scales, gamma, totals, sums, lengths, sequence, t, B, n,
    D: tl.constexpr, ALL_D: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """∂L of the node that step t made in a sequence, and of its sum before the layer norm; zero if there is
    none. All later steps are done, so its gradient row is complete."""
    one = sequence + tl.arange(0, 1)
    feature = tl.arange(0, ALL_D)
    row = t * B + one
    inside = one < B
    made = t < tl.load(lengths + one, mask=inside, other=0) - 1
    mask = made[:, None] & (feature < D)[None, :]
    place = row[:, None].to(tl.int64) * D + feature[None, :]
    # Other programs write this during the launch: bypass the first-level cache.
    total = tl.load(gradients + B.to(tl.int64) * n * D + place, mask=mask, other=0.0, cache_modifier=".cg")
    if INNER:
        own = (one * (n - 1) + t)[:, None].to(tl.int64) * D + feature[None, :]
        total += tl.load(grad_inner + own, mask=mask, other=0.0)
    y = tl.load(normed + place, mask=mask, other=0.0)
    scale = tl.load(scales + row, mask=inside, other=0.0)
    scaled = total * tl.load(gamma + feature, mask=feature < D, other=0.0)[None, :]
    through = tl.where(mask, cell.through_norm(scaled, y, scale, D), 0.0)
    keep_node_gradient(totals, sums, child_grads, total, through, row, inside, feature, D)


@triton.jit
def send_to_children(
    hidden, child_grads, gradients, children, w1, start, end, tile, block,
    D: tl.constexpr, UNITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of rows × 2·d: store the gradients of the children in their gradient rows. Nothing else has
    reached these yet: after the step the children are in no list."""
    row = (start + tile * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    inside = row < end
    column = block * BLOCK_N + tl.arange(0, BLOCK_N)
    total = cell.to_children_tile(hidden, child_grads, w1, row, inside, column, D, UNITS, BLOCK_K, PRECISION)
    mask = inside[:, None] & (column < 2 * D)[None, :]
    child = tl.load(children + row[:, None] * 2 + (column // D)[None, :], mask=mask, other=-1)
    tl.store(gradients + child * D + (column % D)[None, :], total, mask=child >= 0)


@triton.jit
def restore(live, links, position, pairs, BLOCK: tl.constexpr):
    """Undo a merge in a sequence's list of live nodes."""
    index = tl.arange(0, BLOCK)
    stays = (index <= pairs) & (index != position) & (index != position + 1)
    node = tl.load(live + index - (index > position).to(tl.int32), mask=stays, other=0)
    node = tl.where(index == position, tl.load(links + 1), node)
    node = tl.where(index == position + 1, tl.load(links + 2), node)
    tl.debug_barrier()  # all threads have read before any writes
    tl.store(live + index, node, mask=index <= pairs)
    tl.debug_barrier()


@triton.jit
def measure(
    gradients, nodes, candidates, live, choices, links, position, pairs, sequence, t, B, n,
    D: tl.constexpr, ALL_D: tl.constexpr, ENTANGLED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """For each pair the two products of the formula above: ⟨D_i, p_i − h_i⟩, with the terms of l and r, and
    ⟨D_i, h_{i+1} − h_i⟩."""
    feature = tl.arange(0, ALL_D)
    real = (feature < D)[None, :]
    one = tl.arange(0, 1)
    nodes += sequence.to(tl.int64) * (2 * n - 1) * D
    if not ENTANGLED:
        parent = tl.load(
            nodes + (n + t + one)[:, None].to(tl.int64) * D + feature[None, :], mask=real, other=0.0
        )
        l_row = gradient_row(tl.load(links + 1 + one), sequence, B, n)[:, None] * D + feature[None, :]
        r_row = gradient_row(tl.load(links + 2 + one), sequence, B, n)[:, None] * D + feature[None, :]
        to_l = tl.load(gradients + l_row, mask=real, other=0.0, cache_modifier=".cg")
        to_r = tl.load(gradients + r_row, mask=real, other=0.0, cache_modifier=".cg")
    for first in range(0, pairs, ROWS):
        index = first + tl.arange(0, ROWS)
        inside = index < pairs
        mask = inside[:, None] & real
        left = tl.load(live + index, mask=inside, other=0)
        right = tl.load(live + index + 1, mask=inside, other=0)
        # The node at this place after the step; the gradient there is D.
        after = tl.where(index < position, left, tl.where(index == position, n + t, right))
        grad = gradients + gradient_row(after, sequence, B, n)[:, None] * D + feature[None, :]
        grad = tl.load(grad, mask=mask, other=0.0, cache_modifier=".cg")
        h = tl.load(nodes + left[:, None].to(tl.int64) * D + feature[None, :], mask=mask, other=0.0)
        following = tl.load(nodes + right[:, None].to(tl.int64) * D + feature[None, :], mask=mask, other=0.0)
        if ENTANGLED:
            place = pair_row(left, right, sequence, n)[:, None] * D + feature[None, :]
            to_choice = grad * (tl.load(candidates + place, mask=mask, other=0.0) - h)
        else:
            to_choice = grad * (parent - h) + to_l * h + to_r * following
        tl.store(choices + index, tl.sum(to_choice, 1), mask=inside)
        tl.store(choices + n + index, tl.sum(grad * (following - h), 1), mask=inside)
    tl.debug_barrier()


@triton.jit
def judge(
    scores, score_grads, live, choices, seed, pairs, sequence, t, n, NOISY: tl.constexpr, BLOCK: tl.constexpr
):
    """From the gradient of the choice to that of its scores, through the softmax, which ignores a constant. A
    pair's gradient is also added to its sum over steps, for the scorer's parameters."""
    index = tl.arange(0, BLOCK)
    inside = index < pairs
    total = tl.load(choices + index, mask=inside, other=0.0)
    total -= tl.cumsum(tl.load(choices + n + index, mask=inside, other=0.0), 0)
    left = tl.load(live + index, mask=inside, other=0)
    right = tl.load(live + index + 1, mask=inside, other=0)
    pair = pair_row(left, right, sequence, n)
    logit = tl.load(scores + pair, mask=inside, other=0.0)
    if NOISY:
        logit += gumbel(row_key(tl.load(seed), FIRST_SELECTION, t, sequence, sequence * 0), index)
    logit = tl.where(inside, logit, float("-inf"))
    chance = tl.exp(logit - tl.max(logit, 0))
    chance = chance / tl.sum(chance, 0)
    grad = chance * (total - tl.sum(chance * total, 0))
    sofar = tl.load(score_grads + pair, mask=inside, other=0.0)
    tl.debug_barrier()
    tl.store(score_grads + pair, sofar + grad, mask=inside)
    tl.store(choices + index, grad, mask=inside)
    tl.debug_barrier()


@triton.jit
def spread(
    gradients, slopes, live, choices, pairs, sequence, B, n,
    D: tl.constexpr, S: tl.constexpr, ALL_S: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """From the scores to the nodes: each node is in a pair with the one before it and in one with the
    next."""
    feature = tl.arange(0, ALL_S)
    for first in range(0, pairs + 1, ROWS):
        index = first + tl.arange(0, ROWS)
        has_next, has_last = index < pairs, (index > 0) & (index <= pairs)
        node = tl.load(live + index, mask=index <= pairs, other=0)
        following = tl.load(live + index + 1, mask=has_next, other=0)
        last = tl.load(live + index - 1, mask=has_last, other=0)
        by_next = tl.load(choices + index, mask=has_next, other=0.0)
        by_last = tl.load(choices + index - 1, mask=has_last, other=0.0)
        real = (feature < S)[None, :]
        place = pair_row(node, following, sequence, n)[:, None] * (2 * S) + feature[None, :]
        total = by_next[:, None] * tl.load(slopes + place, mask=has_next[:, None] & real, other=0.0)
        place = pair_row(last, node, sequence, n)[:, None] * (2 * S) + S + feature[None, :]
        total += by_last[:, None] * tl.load(slopes + place, mask=has_last[:, None] & real, other=0.0)
        target = gradients + gradient_row(node, sequence, B, n)[:, None] * D + feature[None, :]
        mask = (index <= pairs)[:, None] & real
        total += tl.load(target, mask=mask, other=0.0, cache_modifier=".cg")
        tl.store(target, total, mask=mask)
    tl.debug_barrier()


@triton.jit
def choice_gradient(
    gradients, nodes, candidates, slopes, scores, score_grads, links, merges, lengths, live, choices, seed,
    sequence, t, B, n,
    D: tl.constexpr, S: tl.constexpr, ALL_D: tl.constexpr, ALL_S: tl.constexpr, ENTANGLED: tl.constexpr,
    NOISY: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Third phase of a step, for one sequence: differentiate the choice."""
    pairs = (tl.load(lengths + sequence) - 1 - t).to(tl.int32)
    if pairs > 0:
        record = sequence * (n - 1) + t
        position = tl.load(merges + record).to(tl.int32)
        links += record.to(tl.int64) * 4
        live += sequence.to(tl.int64) * n
        choices += sequence.to(tl.int64) * 2 * n
        restore(live, links, position, pairs, BLOCK)
        if pairs > 1:
            measure(
                gradients, nodes, candidates, live, choices, links, position, pairs, sequence, t, B, n,
                D, ALL_D, ENTANGLED, ROWS,
            )  # fmt: skip
            judge(scores, score_grads, live, choices, seed, pairs, sequence, t, n, NOISY, BLOCK)
            spread(gradients, slopes, live, choices, pairs, sequence, B, n, D, S, ALL_S, ROWS)


@triton.jit(do_not_specialize=["B", "n"])
def sweep_kernel(
    gradients, grad_inner, child_grads, normed, scales, gamma, gates, hidden, w1, w2, totals, sums,
    nodes, candidates, slopes, scores, score_grads, links, merges, children, lengths, live, choices, seed,
    counter, B, n,
    D: tl.constexpr, S: tl.constexpr, UNITS: tl.constexpr, ALL_D: tl.constexpr, ALL_S: tl.constexpr,
    ENTANGLED: tl.constexpr, NOISY: tl.constexpr, INNER: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """All steps, the last one first, in one cooperative launch with barriers between phases. The third phase
    also takes the nodes of the step before through their layer norm."""
    UNIT_BLOCKS: tl.constexpr = (UNITS + BLOCK_N - 1) // BLOCK_N
    COLUMNS: tl.constexpr = (2 * D + BLOCK_N - 1) // BLOCK_N
    programs = tl.num_programs(0)
    tiles = (B + BLOCK_M - 1) // BLOCK_M
    # The nodes of the last step, through their layer norm. Then, for each step, the three phases.
    for first in range(0, B, programs):
        node_gradient(
            gradients, grad_inner, child_grads, normed, scales, gamma, totals, sums, lengths,
            first + tl.program_id(0), n - 2, B, n, D, ALL_D, INNER,
        )  # fmt: skip
    goal = programs
    wait_for_all(counter, goal)
    for down in range(0, n - 1):
        t = n - 2 - down
        # First phase: ∂L/∂h of the cell.
        for job in range(tl.program_id(0), tiles * UNIT_BLOCKS, programs):
            cell.to_hidden_tile(
                sums, gates, hidden, w2, t * B, t * B + B, job // UNIT_BLOCKS, job % UNIT_BLOCKS,
                D, UNITS, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION,
            )  # fmt: skip
        goal += programs
        wait_for_all(counter, goal)
        # Second phase: the gradients of the children.
        for job in range(tl.program_id(0), tiles * COLUMNS, programs):
            send_to_children(
                hidden, child_grads, gradients, children, w1, t * B, t * B + B,
                job // COLUMNS, job % COLUMNS, D, UNITS, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION,
            )  # fmt: skip
        goal += programs
        wait_for_all(counter, goal)
        # Third phase: the choice, and the node of the step before.
        for first in range(0, B, programs):
            sequence = first + tl.program_id(0)
            if sequence < B:
                choice_gradient(
                    gradients, nodes, candidates, slopes, scores, score_grads, links, merges, lengths,
                    live, choices, seed, sequence, t, B, n,
                    D, S, ALL_D, ALL_S, ENTANGLED, NOISY, BLOCK, ROWS,
                )  # fmt: skip
            if t > 0:
                node_gradient(
                    gradients, grad_inner, child_grads, normed, scales, gamma, totals, sums, lengths,
                    sequence, t - 1, B, n, D, ALL_D, INNER,
                )  # fmt: skip
        goal += programs
        wait_for_all(counter, goal)


@triton.jit(do_not_specialize=["B", "n"])
def places_kernel(
    links, lengths, pairs, pair_names, merged, merge_names, children, roots, B, n,
    ENTANGLED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fill the tensors of `PairPlaces`. A program takes a block of records (sequence, step); record t also
    writes the pair of the leaves t and t + 1."""
    steps = n - 1
    record = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = record < B * steps
    sequence, t = record // steps, record % steps
    length = tl.load(lengths + sequence, mask=inside, other=0).to(tl.int32)
    base = sequence * (2 * n - 1)
    made = n + t
    link = links + record.to(tl.int64) * 4
    before = tl.maximum(tl.load(link, mask=inside, other=0), 0)
    behind = tl.maximum(tl.load(link + 3, mask=inside, other=0), 0)
    first = sequence * (3 * steps)
    for which in tl.static_range(3):
        left = t if which == 0 else (before if which == 1 else made)
        right = t + 1 if which == 0 else (made if which == 1 else behind)
        row = (first + t if which == 0 else first + steps + 2 * t + which - 1).to(tl.int64)
        tl.store(pairs + row * 2, (base + left).to(tl.int64), mask=inside)
        tl.store(pairs + row * 2 + 1, (base + right).to(tl.int64), mask=inside)
        tl.store(pair_names + row * 3, sequence.to(tl.int64), mask=inside)
        tl.store(pair_names + row * 3 + 1, name_of(left, n), mask=inside)
        tl.store(pair_names + row * 3 + 2, name_of(right, n), mask=inside)
    row = (t * B + sequence).to(tl.int64)
    exists = t < length - 1
    for side in tl.static_range(2):
        child = tl.load(link + 1 + side, mask=inside, other=0)
        tl.store(merged + row * 2 + side, (base + child).to(tl.int64), mask=inside)
        place = tl.where(exists, gradient_row(child, sequence, B, n), -1)
        tl.store(children + row * 2 + side, place, mask=inside)
        if ENTANGLED:
            name = name_of(child, n)
        else:
            name = t.to(tl.int64) * (1 - side)
        tl.store(merge_names + row * 3 + 1 + side, name, mask=inside)
    tl.store(merge_names + row * 3, sequence.to(tl.int64), mask=inside)
    top = gradient_row(tl.where(length > 1, n + length - 2, 0), sequence, B, n)
    tl.store(roots + sequence, top, mask=inside & (t == 0))
