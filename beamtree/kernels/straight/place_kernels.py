# mypy: allow-untyped-defs
"""The rows of pairs, merges and roots of straight-through trees, as straight_places.py names them."""

import triton
import triton.language as tl

from beamtree.kernels.search.entangled_kernels import name_of
from beamtree.kernels.straight.straight_kernels import gradient_row


@triton.jit(do_not_specialize=["B", "n"])
def places_kernel(
    links, lengths, pairs, pair_names, merged, merge_names, children, roots, B, n,
    ENTANGLED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
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
