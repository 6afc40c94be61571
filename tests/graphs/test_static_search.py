"""The search with fixed sizes leaves the same tape as the search, whatever stood in its buffers before."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from beamtree.engine.randomness import Randomness
from beamtree.engine.record import Tape, find_lineages
from beamtree.engine.search import search
from beamtree.graphs import static_search
from beamtree.graphs.static_search import StaticSearch

D, DROPOUT = 4, 0.3
torch.manual_seed(0)
MIX, WEIGHT = torch.randn(2 * D, D).double() / 3, torch.randn(2 * D).double()


def compose(children: Tensor, keep: Tensor | None) -> Tensor:
    parents = torch.tanh(children.flatten(1) @ MIX.to(children.dtype))
    return parents if keep is None else parents * keep


def score(pairs: Tensor, keep: Tensor | None) -> Tensor:
    return pairs.flatten(1) @ WEIGHT.to(pairs.dtype)


def run(
    buffers: StaticSearch, leaves: Tensor, lengths: Tensor, randomness: Randomness | None, pins: Tensor | None
) -> tuple[Tape, Tensor]:
    steps = int(lengths.max()) - 1
    buffers.load(leaves, lengths, score, randomness, pins)
    for t in range(steps):
        if buffers.steps_drawn and t % buffers.steps_drawn == 0:
            buffers.draw()
        buffers.step(compose, score)
    return buffers.tape(steps)


def assert_same(found: Tape, plain: Tape, lengths: Tensor, n: int) -> None:
    made = plain.links.any(1).nonzero().squeeze(1)  # finished sequences leave anything in unused numbers
    assert len(made) == plain.roots.shape[1] * int((lengths - 1).sum())
    known = torch.cat((torch.arange(1 + lengths.shape[0] * n), 1 + lengths.shape[0] * n + made))
    assert torch.equal(found.roots, plain.roots)
    assert torch.equal(found.links[made], plain.links[made])
    for mine, other in (
        (found.nodes[known], plain.nodes[known]),
        (found.ended[made], plain.ended[made]),
        (found.relative, plain.relative),
        (found.offset, plain.offset),
    ):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-11)
    ours, theirs = (find_lineages(tape.links, tape.roots, lengths, n) for tape in (found, plain))
    assert torch.equal(ours, theirs)


@settings(deadline=None, max_examples=40)
@given(
    batches=st.lists(st.lists(st.integers(1, 9), min_size=3, max_size=3), min_size=2, max_size=3),
    padding=st.integers(0, 2),
    K=st.integers(1, 5),
    noisy=st.booleans(),
    masked=st.booleans(),
    pinned=st.booleans(),
)
def test_it_leaves_the_tape_of_the_search_batch_after_batch(
    batches: list[list[int]], padding: int, K: int, noisy: bool, masked: bool, pinned: bool
) -> None:
    n = max(map(max, batches)) + padding
    dropout = DROPOUT if masked else 0.0
    leaves = torch.empty(3, n, D, dtype=torch.float64)
    options = {"noisy": noisy, "dropout": dropout, "hidden_size": D, "pins": 1 if pinned else None}
    buffers = StaticSearch(leaves, K, **options)
    for seed, given_lengths in enumerate(batches):
        torch.manual_seed(seed)
        lengths = torch.tensor(given_lengths)
        leaves = torch.randn(3, n, D, dtype=torch.float64)
        randomness = Randomness(torch.tensor(seed), noisy, dropout, D) if noisy or masked else None
        pins = torch.stack((lengths // 3, lengths), 1).unsqueeze(1) if pinned else None
        tape, heights = run(buffers, leaves, lengths, randomness, pins)
        plain = search(leaves, lengths, compose, score, beam_size=K, randomness=randomness, pins=pins)
        assert_same(tape, plain, lengths, n)
        children = tape.links[: K * int((lengths - 1).sum()), 2:4]
        made = torch.arange(children.shape[0]) + 1 + 3 * n
        assert torch.equal(heights[made], heights[children].amax(1) + 1 if len(children) else heights[made])
        assert not heights[: 1 + 3 * n].any()


@pytest.mark.parametrize("at_once", [1, 200, 1 << 22])
def test_draws_do_not_depend_on_how_many_steps_are_drawn_at_once(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(static_search, "DRAWS_AT_ONCE", at_once)
    torch.manual_seed(0)
    leaves, lengths = torch.randn(2, 8, D, dtype=torch.float64), torch.tensor([5, 8])
    randomness = Randomness(torch.tensor(3), True, DROPOUT, D)
    buffers = StaticSearch(leaves, 3, noisy=True, dropout=DROPOUT, hidden_size=D)
    assert buffers.steps_drawn == {1: 1, 200: 2, 1 << 22: 7}[at_once]
    plain = search(leaves, lengths, compose, score, beam_size=3, randomness=randomness)
    assert_same(run(buffers, leaves, lengths, randomness, None)[0], plain, lengths, 8)


def test_its_size_counts_every_buffer() -> None:
    leaves = torch.empty(2, 8, D)
    plain = StaticSearch(leaves, 3)
    assert plain.nbytes > plain.nodes.nbytes + plain.links.nbytes + plain.ended.nbytes
    noisy = StaticSearch(leaves, 3, noisy=True)
    assert noisy.nbytes - plain.nbytes >= sum(part.nbytes for part in noisy.noise or ()) > 0
    pinned = StaticSearch(leaves, 3, pins=4)
    assert pinned.fence is not None
    assert pinned.nbytes - plain.nbytes >= pinned.fence.spans.nbytes
