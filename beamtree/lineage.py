"""Which merges made each surviving beam, read off the search's linked record."""

import torch
from torch import Tensor

from beamtree.search import BEFORE, NONE, POSITION


def find_lineages(links: Tensor, roots: Tensor, lengths: Tensor, n: int) -> Tensor:
    """The merge made at each step in the history of each beam, (B, K, n−1) rows of `links`; −1 where none.

    The chain of merges before a root is unrolled by doubling: once the first L links of a chain are known,
    stepping L back from each of them gives the next L.
    """
    B, K = roots.shape
    first = 1 + B * n
    made = links.shape[0]
    back = torch.cat((links[:, BEFORE] - first, links.new_full((1,), -1)))  # the last entry: no merge
    back = torch.where(back < 0, made, back)
    last = torch.where(roots < first, made, roots - first)
    chain = last.unsqueeze(-1)  # (B, K, L), newest first
    while chain.shape[-1] < n - 1:
        chain = torch.cat((chain, back[chain]), -1)
        back = back[back]
    newest_first = (lengths - 2).view(B, 1, 1) - torch.arange(n - 1, device=links.device)  # (B, 1, n−1)
    by_step = chain.gather(-1, newest_first.clamp(min=0).expand(B, K, n - 1))
    return torch.where((newest_first < 0) | (by_step == made), -1, by_step)


def inner_nodes(nodes: Tensor, lineages: Tensor, wanted: bool) -> Tensor:
    """Vectors of the nodes each beam made, (B, K, n−1, d), zero where none; (B, K, 0, d) if not wanted."""
    B, K, steps = lineages.shape
    if not wanted:
        return nodes.new_empty(B, K, 0, nodes.shape[1])
    first = 1 + B * (steps + 1)
    return nodes[torch.where(lineages < 0, NONE, lineages + first)]


def merge_positions(links: Tensor, lineages: Tensor) -> Tensor:
    """The position merged at each step of each beam, (B, K, n−1), −1 where none."""
    return torch.where(lineages < 0, -1, links[lineages, POSITION])
