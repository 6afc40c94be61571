"""Every order in which a short sequence can be merged, by brute force: the oracle of searches and pins."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

Span = tuple[int, int]


class MergeOrder(NamedTuple):
    """One way to merge a sequence, or the beginning of one."""

    merges: tuple[int, ...]
    made: tuple[Span, ...]
    log_score: Tensor
    nodes: list[Tensor]  # those that live
    spans: list[Span]  # of those that live

    @property
    def root(self) -> Tensor:
        return self.nodes[0]


def merge_orders(
    leaves: Tensor,  # (n, d)
    cell: nn.Module,
    scorer: nn.Module,
    pins: Sequence[Span] = (),
) -> list[MergeOrder]:
    """All (n−1)! of them, less those that cross a pin, with autograd through everything."""
    n = leaves.shape[0]
    orders = [MergeOrder((), (), leaves.new_zeros(()), [*leaves], [(i, i + 1) for i in range(n)])]
    for _ in range(n - 1):
        orders = [longer for order in orders for longer in continue_order(order, cell, scorer, pins)]
    return orders


def continue_order(
    order: MergeOrder, cell: nn.Module, scorer: nn.Module, pins: Sequence[Span] = ()
) -> Iterator[MergeOrder]:
    nodes, spans = order.nodes, order.spans
    joined = [(left[0], right[1]) for left, right in pairwise(spans)]
    permitted = [j for j, span in enumerate(joined) if not any(cross(span, pin) for pin in pins)]
    log_probs = torch.stack([scorer(nodes[j], nodes[j + 1]) for j in permitted]).log_softmax(0)
    for j, log_prob in zip(permitted, log_probs, strict=True):
        yield MergeOrder(
            (*order.merges, j),
            (*order.made, joined[j]),
            order.log_score + log_prob,
            [*nodes[:j], cell(nodes[j], nodes[j + 1]), *nodes[j + 2 :]],
            [*spans[:j], joined[j], *spans[j + 2 :]],
        )


def cross(one: Span, other: Span) -> bool:
    (a, b), (c, d) = sorted((one, other))
    return a < c < b < d
