"""A sequence's result does not depend on padding, on batch mates or on its place in the batch, ties included.

Tokens come from two or three vectors, so that most sequences hold pairs with exactly equal scores.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_encoders import sharp_encoder
from torch import Tensor

from beamtree import BeamTreeEncoder, create_encoder
from beamtree.engine.choosing import stable_topk
from beamtree.parts.scorer import EntangledScorer

pytestmark = pytest.mark.usefixtures("in_c_and_in_pytorch")

D = 8
SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=5)
PROPERTY = settings(max_examples=40, deadline=None, derandomize=True)


def encoder(scale: float = 1.0, dtype: torch.dtype = torch.float64) -> BeamTreeEncoder:
    return sharp_encoder(D, scale, slice_size=5, dtype=dtype).eval()


def embed(sequences: list[list[int]], width: int = 0) -> tuple[Tensor, Tensor]:
    """Tokens (B, n, D), noise where padded, and the padding mask."""
    vectors = torch.randn(3, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    n = max(width, *map(len, sequences))
    x = torch.randn(len(sequences), n, D, dtype=torch.float64)
    is_padding = torch.arange(n) >= torch.tensor([[len(sequence)] for sequence in sequences])
    for b, sequence in enumerate(sequences):
        x[b, : len(sequence)] = vectors[sequence]
    return x, is_padding


def encode(model: BeamTreeEncoder, x: Tensor, is_padding: Tensor) -> list[list[Tensor]]:
    """For every sequence, cut to its length: root, merges, log-scores, gradient of the tokens."""
    x = x.clone().requires_grad_()
    root, trees = model(x, key_padding_mask=is_padding, need_trees=True)
    (gradient,) = torch.autograd.grad(root.square().sum(), x)
    lengths = (~is_padding).sum(1).tolist()
    return [
        [root[b].detach(), trees.merges[b, :, : n - 1], trees.log_scores[b].detach(), gradient[b, :n]]
        for b, n in enumerate(lengths)
    ]


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    assert torch.equal(found[1], expected[1])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@PROPERTY
@given(SEQUENCES, st.sampled_from([1.0, 10.0]))
def test_a_sequence_alone_gives_what_it_gives_in_a_batch(sequences: list[list[int]], scale: float) -> None:
    model = encoder(scale)
    together = encode(model, *embed(sequences))
    for sequence, found in zip(sequences, together, strict=True):
        x, _ = embed([sequence])
        alone = encode(model, x, torch.zeros(1, len(sequence), dtype=torch.bool))[0]
        assert_same(found, alone)
        torch.testing.assert_close(model(x)[0], alone[0], rtol=0, atol=1e-9)  # no mask at all


@PROPERTY
@given(SEQUENCES, st.integers(1, 30))
def test_more_padding_changes_nothing(sequences: list[list[int]], more: int) -> None:
    model = encoder()
    narrow = encode(model, *embed(sequences))
    wide = encode(model, *embed(sequences, width=more + max(map(len, sequences))))
    for found, expected in zip(wide, narrow, strict=True):
        assert_same(found, expected)


@PROPERTY
@given(SEQUENCES, st.randoms(use_true_random=False))
def test_the_order_of_the_batch_does_not_matter(sequences: list[list[int]], random) -> None:
    model = encoder()
    order = random.sample(range(len(sequences)), len(sequences))
    straight = encode(model, *embed(sequences))
    shuffled = encode(model, *embed([sequences[b] for b in order]))
    for found, b in zip(shuffled, order, strict=True):
        assert_same(found, straight[b])


def test_among_equal_pairs_the_first_is_merged() -> None:
    model = encoder()
    model.beam_size = 1
    for n in range(2, 14):
        _, trees = model(embed([[0] * n] * 3)[0], need_trees=True)
        assert trees.merges[:, 0, 0].tolist() == [0, 0, 0]


def test_one_repeated_token_is_merged_alike_whatever_the_batch() -> None:
    """All pairs tie, and a matrix product does not round all its rows alike: the ties must survive that."""
    model = encoder()
    for n in range(2, 14):
        alone = encode(model, *embed([[0] * n]))[0]
        for mates in ([[1, 0]], [[0] * 3, [2] * 13], [[0] * n] * 6):
            assert_same(encode(model, *embed([*mates, [0] * n]))[-1], alone)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ebt-grc", "ebt-grc-noslice", "bt-grc", "bt-grc-os", "gt-grc", "egt-grc"])
def test_in_single_precision_too_no_sequence_depends_on_its_batch(name: str) -> None:
    """Equal pairs must score equally to the last bit: rounding can put them on two sides of any line."""
    for threads, scale, seed in product((1, 2), (1.0, 10.0, 100.0), range(3)):
        torch.manual_seed(seed)
        model = create_encoder(name, 16).eval()
        last = model.scorer if isinstance(model.scorer, EntangledScorer) else model.scorer.out
        with torch.no_grad(), running_on(threads):
            last.weight *= scale
            lengths = torch.randint(1, 14, (12,))
            x = torch.randn(1 + seed, 16)[torch.randint(0, 1 + seed, (12, 13))]
            together = model(x, key_padding_mask=torch.arange(13) >= lengths[:, None])
            alone = torch.cat([model(row[None, :n]) for row, n in zip(x, lengths.tolist(), strict=True)])
        torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)


@contextmanager
def running_on(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def test_selection_takes_the_lower_index_among_values_equal_up_to_rounding() -> None:
    for dtype in (torch.float32, torch.float64):
        tiny = torch.finfo(dtype).eps
        values = torch.tensor([[0.5, 0.7 - tiny, 0.7, 0.7 + tiny, 0.1]], dtype=dtype)
        top, index = stable_topk(values, 3)
        assert index.tolist() == [[1, 2, 3]]
        assert torch.equal(top, values[:, 1:4])
        assert stable_topk(values, 5)[1].tolist() == [[1, 2, 3, 0, 4]]


def test_selection_tells_apart_what_differs_by_more_than_rounding() -> None:
    for dtype, step in ((torch.float32, 1e-5), (torch.float64, 1e-8)):
        values = torch.arange(20, dtype=dtype) * step
        assert stable_topk(values, 20)[1].tolist() == list(range(19, -1, -1))


def test_selection_puts_what_is_impossible_last() -> None:
    values = torch.tensor([[-torch.inf, 1.0, -torch.inf, 2.0]])
    top, index = stable_topk(values, 3)
    assert top.tolist() == [[2.0, 1.0, -torch.inf]]
    assert index[0, :2].tolist() == [3, 1]
