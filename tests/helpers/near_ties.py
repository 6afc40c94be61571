"""By how much a set of trees misses an exact beam search: zero, or the gap of the choice where it left it."""

from itertools import pairwise

import torch
from torch import Tensor

from beamtree.parts.cell import GatedRecursiveCell
from beamtree.parts.scorer import SlicedScorer

# Scores are rounded at 24 + score in float32 (reference.py), 2⁻¹⁹ apart: a unit for each of up to 16 steps.
NEAR = 16 * 2.0**-19


def gap(leaves: Tensor, merges: Tensor, cell: GatedRecursiveCell, scorer: SlicedScorer, K: int) -> float:
    """Of one sequence: leaves (n, d), merges (K, n−1) best first with −1 where a beam is dead; all float64.

    A tree leaves the exact beams where its prefix is not among the K best: by the K-th score less its own. A
    beam lost by less before may be the reason, and need not be among the trees: the smaller gap counts.
    """
    wanted = [tuple(m) for m in merges.tolist() if m and m[0] >= 0]
    beams: dict[tuple[int, ...], tuple[float, Tensor]] = {(): (0.0, leaves)}
    closest = float("inf")
    for t in range(leaves.shape[0] - 1):
        found: dict[tuple[int, ...], float] = {}
        for prefix, (score, nodes) in beams.items():
            energies = scorer(nodes[:-1], nodes[1:]).log_softmax(0)
            found |= {(*prefix, i): score + e for i, e in enumerate(energies.tolist())}
        order = sorted(found, key=lambda prefix: -found[prefix])
        kept, last = order[:K], found[order[:K][-1]]
        closest = min([closest, *(last - found[prefix] for prefix in order[K : K + 1])])
        lost = [last - found[tree[: t + 1]] for tree in wanted if tree[: t + 1] not in kept]
        if lost:
            return min(max(lost), closest)
        beams = {prefix: (found[prefix], _merge(beams[prefix[:-1]][1], prefix[-1], cell)) for prefix in kept}
    if leaves.shape[0] > 1 and len(set(wanted)) != len(beams):
        return float("inf")  # a beam is dead, or there twice
    scores = [beams[tree][0] for tree in wanted]
    return max([0.0, *(b - a for a, b in pairwise(scores))])


def _merge(nodes: Tensor, i: int, cell: GatedRecursiveCell) -> Tensor:
    return torch.cat((nodes[:i], cell(nodes[i : i + 1], nodes[i + 1 : i + 2]), nodes[i + 2 :]))
