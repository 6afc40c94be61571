"""Numbers by counter: the right laws, independent wherever a counter differs, the same bits however drawn.

Tolerances are five standard errors of the sample.
"""

import math

import pytest
import torch
from chi_square import chi_square_limit
from torch import Tensor

from beamtree.engine import randomness as numbers
from beamtree.engine.randomness import (
    DROPOUT,
    FIRST_SELECTION,
    SECOND_SELECTION,
    Draws,
    Randomness,
    draw_keep,
    draw_seed,
    gumbel,
    node_masks,
)
from beamtree.engine.record import Timeline

SEED = torch.tensor(20231215)
STREAMS = (DROPOUT, FIRST_SELECTION, SECOND_SELECTION)


def counters(steps: int, sequences: int, slots: int) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.arange(steps).view(-1, 1, 1),
        torch.arange(sequences).view(1, -1, 1),
        torch.arange(slots).view(1, 1, -1),
    )


def uniform(stream: int = FIRST_SELECTION, seed: Tensor = SEED, count: int = 20) -> Tensor:
    """(steps, sequences, slots, lanes) = (50, 40, 5, count), by inverting the Gumbel law."""
    return (-(-gumbel(seed, stream, *counters(50, 40, 5), count, torch.float64)).exp()).exp()


def test_gumbel_noise_has_the_mean_and_the_variance_of_its_law() -> None:
    draws = gumbel(SEED, FIRST_SELECTION, *counters(100, 100, 5), 20, torch.float64)
    N = draws.numel()
    variance = math.pi**2 / 6
    assert draws.isfinite().all()
    assert abs(float(draws.mean()) - 0.57721566) < 5 * math.sqrt(variance / N)
    assert abs(float(draws.var()) - variance) < 5 * variance * math.sqrt(4.4 / N)  # kurtosis 5.4


@pytest.mark.parametrize("stream", STREAMS)
def test_draws_are_uniform_beneath_the_law(stream: int) -> None:
    counts = uniform(stream).mul(100).long().flatten().bincount(minlength=100).double()
    expected = counts.sum() / 100
    assert float(((counts - expected) ** 2 / expected).sum()) < chi_square_limit(99)


@pytest.mark.parametrize("axis", [0, 1, 2, 3], ids=["steps", "sequences", "slots", "lanes"])
def test_draws_that_differ_in_one_counter_are_independent(axis: int) -> None:
    draws = uniform()
    one, other = draws.narrow(axis, 0, draws.shape[axis] - 1), draws.narrow(axis, 1, draws.shape[axis] - 1)
    assert_independent(one, other)


def test_streams_and_seeds_are_independent() -> None:
    assert_independent(uniform(FIRST_SELECTION), uniform(SECOND_SELECTION))
    assert_independent(uniform(FIRST_SELECTION), uniform(DROPOUT))
    assert_independent(uniform(), uniform(seed=SEED + 1))


def assert_independent(one: Tensor, other: Tensor) -> None:
    """No correlation, and every cell of a 10 × 10 table as full as chance makes it."""
    N = one.numel()
    correlation = torch.corrcoef(torch.stack((one.flatten(), other.flatten())))[0, 1]
    assert abs(float(correlation)) < 5 / math.sqrt(N)
    table = ((one * 10).long() * 10 + (other * 10).long()).flatten().bincount(minlength=100).double()
    assert float(((table - N / 100) ** 2 / (N / 100)).sum()) < chi_square_limit(99)


def test_no_two_rows_share_a_key() -> None:
    keys = [numbers._row_keys(SEED, stream, *counters(300, 64, 8)).flatten() for stream in STREAMS]
    together = torch.cat(keys)
    assert together.unique().numel() == together.numel() == 3 * 300 * 64 * 8


def splitmix64(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
    return x ^ (x >> 31)


def test_the_bits_are_splitmix64s() -> None:
    inputs = [0, 1, 2**63, 2**64 - 1, 0x123456789ABCDEF0, 0xFEDCBA9876543210]
    signed = torch.tensor([x - 2**64 if x >= 2**63 else x for x in inputs])
    assert [x % 2**64 for x in numbers._mix_(signed).tolist()] == [splitmix64(x) for x in inputs]


def test_the_numbers_are_those_of_every_release() -> None:
    """Recorded: a change here changes the results of every seed."""
    one = (torch.tensor(3), torch.tensor(1), torch.tensor(2))
    found = gumbel(torch.tensor(7), FIRST_SELECTION, *one, 3, torch.float64)
    assert found.tolist() == pytest.approx(
        [0.337606866932196, -0.670459831355145, 2.0230596234979], abs=1e-12
    )
    keep = draw_keep(torch.tensor(7), *one, 12, 0.5, torch.float32)
    assert keep.long().tolist() == [2, 0, 2, 2, 0, 2, 0, 2, 0, 2, 2, 2]


def test_a_prefix_of_the_draws_is_the_draws_of_the_prefix() -> None:
    rows = counters(4, 3, 2)
    long = gumbel(SEED, FIRST_SELECTION, *rows, 33, torch.float64)
    for count in (1, 2, 7, 32):
        assert torch.equal(gumbel(SEED, FIRST_SELECTION, *rows, count, torch.float64), long[..., :count])
    wide = draw_keep(SEED, *rows, 33, 0.3, torch.float32)
    for width in (1, 3, 4, 30):
        assert torch.equal(draw_keep(SEED, *rows, width, 0.3, torch.float32), wide[..., :width])


def test_single_precision_draws_are_the_double_ones_rounded() -> None:
    rows = counters(20, 10, 5)
    exact = gumbel(SEED, FIRST_SELECTION, *rows, 20, torch.float64)
    rounded = gumbel(SEED, FIRST_SELECTION, *rows, 20, torch.float32)
    assert rounded.isfinite().all()
    usual = exact < 5  # beyond, the uniform number is so near 1 that single precision tells it poorly
    torch.testing.assert_close(rounded[usual].double(), exact[usual], rtol=0, atol=1e-4)


@pytest.mark.parametrize("dropout", [0.1, 0.2, 0.5, 0.9])
def test_a_mask_keeps_its_share_and_has_mean_one(dropout: float) -> None:
    keep = draw_keep(SEED, *counters(50, 20, 5), 64, dropout, torch.float64)
    N = keep.numel()
    assert abs(float((keep > 0).double().mean()) - (1 - dropout)) < 5 * math.sqrt(dropout * (1 - dropout) / N)
    assert abs(float(keep.mean()) - 1) < 5 * math.sqrt(dropout / (1 - dropout) / N) + 2**-16
    zero, scale = keep.unique().tolist()
    assert zero == 0
    assert scale == pytest.approx(1 / (1 - dropout), rel=1e-3)


def test_masks_of_different_nodes_are_independent() -> None:
    keep = draw_keep(SEED, *counters(60, 40, 5), 64, 0.3, torch.float64)
    for axis in range(4):
        pair = torch.stack([keep.narrow(axis, shift, keep.shape[axis] - 1).flatten() for shift in (0, 1)])
        assert abs(float(torch.corrcoef(pair)[0, 1])) < 5 / math.sqrt(pair.shape[1])


@pytest.mark.parametrize("at_once", [1, 300, 1 << 17])
def test_the_same_numbers_come_whatever_the_size_of_a_block(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr("beamtree.engine.randomness._DRAWS_AT_ONCE", at_once)
    K, n, width = 3, 9, 10
    lengths = torch.tensor([4, 9, 6])
    timeline = Timeline(lengths, n, K)
    randomness = Randomness(SEED, True, 0.3, width)
    draws = Draws(randomness, timeline.order, K, n, torch.float64)
    for t, A in enumerate(timeline.running):
        first, second = draws.gumbel(t, A, n - 1 - t)
        row = (torch.tensor(t), timeline.order[:A, None], torch.arange(K))
        assert torch.equal(first, gumbel(SEED, FIRST_SELECTION, *row, n - 1 - t, torch.float64))
        assert torch.equal(second, gumbel(SEED, SECOND_SELECTION, *row, K, torch.float64))
        keep = draws.keep(t, A)
        assert torch.equal(keep.view(A, K, width), draw_keep(SEED, *row, width, 0.3, torch.float64))
        merges = t * timeline.per_step + torch.arange(A * K)
        assert torch.equal(keep, node_masks(randomness, timeline, merges, torch.float64))
    assert Draws(Randomness(SEED, True, 0.0, width), timeline.order, K, n, torch.float64).keep(0, 3) is None


def test_the_few_numbers_of_many_steps_are_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, words = [], numbers._words
    monkeypatch.setattr(numbers, "_words", lambda *wanted: drawn.append(wanted) or words(*wanted))
    draws = Draws(Randomness(SEED, True, 0.3, 10), torch.arange(3), 2, 9, torch.float64)
    for t in range(8):
        draws.gumbel(t, 3, 8 - t)
        draws.keep(t, 3)
    assert len(drawn) == 3  # both levels and the masks


def test_a_seed_comes_from_pytorchs_generator() -> None:
    torch.manual_seed(3)
    one, other = draw_seed(torch.device("cpu")), draw_seed(torch.device("cpu"))
    torch.manual_seed(3)
    assert one == draw_seed(torch.device("cpu"))
    assert one != other
    assert one.shape == ()
    assert one.dtype == torch.int64
