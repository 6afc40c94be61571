"""Batches hold every example once, in an order fixed by (seed, epoch), whatever the number of processes."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from beamtree.data.batching import Batch, BucketedBatches, EncodedExamples
from beamtree.data.task import Example, Tokens
from beamtree.data.vocabulary import PAD, Vocabulary
from beamtree.errors import BeamtreeError

VOCABULARY = Vocabulary(tuple("abcdef"))
LABELS = ("no", "yes")


def left_to_right(tokens: Tokens) -> list[int]:
    return [0] * (len(tokens) - 1)


def make_examples(count: int, *, sentences: int = 1, longest: int = 9, seed: int = 0) -> list[Example]:
    random = np.random.RandomState(seed)
    return [
        Example(
            tuple(
                tuple("abcdef"[i] for i in random.randint(6, size=random.randint(1, longest + 1)))
                for _ in range(sentences)
            ),
            LABELS[random.randint(2)],
        )
        for _ in range(count)
    ]


def encode(
    examples: list[Example], gold_merges: Callable[[Tokens], list[int]] | None = None
) -> EncodedExamples:
    return EncodedExamples.encode(examples, VOCABULARY, LABELS, gold_merges=gold_merges)


def make_batches(count: int = 50, batch_size: int = 8, sentences: int = 1, **options: Any) -> BucketedBatches:
    return BucketedBatches(encode(make_examples(count, sentences=sentences)), batch_size, **options)


def same(a: Batch, b: Batch) -> bool:
    return torch.equal(a.ids, b.ids) and torch.equal(a.labels, b.labels) and torch.equal(a.rows, b.rows)


def test_a_batch_is_its_examples_padded_on_the_right() -> None:
    examples = [Example((tuple("abc"),), "yes"), Example((tuple("d"),), "no"), Example((tuple("ef"),), "yes")]
    batch = encode(examples, left_to_right).collate(np.array([2, 0, 1]))
    assert batch.ids.tolist() == [[7, 8, PAD], [3, 4, 5], [6, PAD, PAD]]
    assert batch.key_padding_mask.tolist() == [[False, False, True], [False] * 3, [False, True, True]]
    assert batch.labels.tolist() == [1, 1, 0]
    assert batch.rows.tolist() == [2, 0, 1]
    assert batch.gold_merges is not None
    assert batch.gold_merges.tolist() == [[0, -1], [0, 0], [-1, -1]]
    assert (batch.ids.dtype, batch.key_padding_mask.dtype) == (torch.int64, torch.bool)


def test_a_pair_is_padded_to_a_common_width_and_stacked_on_the_batch_axis() -> None:
    examples = [Example((("a",), tuple("bcd")), "no"), Example((tuple("ef"), ("a",)), "yes")]
    batch = encode(examples, left_to_right).collate(np.array([0, 1]))
    assert batch.ids.tolist() == [[3, 0, 0], [7, 8, 0], [4, 5, 6], [3, 0, 0]]
    assert batch.labels.tolist() == [0, 1]
    assert batch.gold_merges is not None
    assert batch.gold_merges.tolist() == [[-1, -1], [0, -1], [0, 0], [-1, -1]]


def test_single_tokens_make_a_batch_of_width_one_without_merges() -> None:
    batch = encode([Example((("a",),), "no")], left_to_right).collate(np.array([0]))
    assert batch.ids.tolist() == [[3]]
    assert batch.gold_merges is not None
    assert batch.gold_merges.shape == (1, 0)


def test_without_labels_every_label_is_minus_one() -> None:
    encoded = EncodedExamples.encode([Example((("a",),), "anything")], VOCABULARY, None)
    assert encoded.collate(np.array([0])).labels.tolist() == [-1]
    assert encoded.collate(np.array([0])).gold_merges is None


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 60),
    batch_size=st.integers(1, 12),
    micro=st.integers(1, 12),
    bucket=st.integers(1, 4),
    limit=st.none() | st.integers(1, 60),
    processes=st.integers(1, 4),
    sentences=st.integers(1, 2),
    shuffle=st.booleans(),
)
def test_over_all_processes_every_example_counts_once_and_steps_agree(
    count: int,
    batch_size: int,
    micro: int,
    bucket: int,
    limit: int | None,
    processes: int,
    sentences: int,
    shuffle: bool,
) -> None:
    examples = make_examples(count, sentences=sentences)
    ranks = [
        BucketedBatches(
            encode(examples),
            batch_size,
            bucket=bucket,
            micro_batch_size=min(micro, batch_size),
            max_padded_tokens=limit,
            shuffle=shuffle,
            rank=rank,
            num_processes=processes,
        )
        for rank in range(processes)
    ]
    shares = [list(rank.epoch(3)) for rank in ranks]
    assert len({tuple((b.step, b.step_size, b.ends_step) for b in share) for share in shares}) == 1
    batches = [batch for share in shares for batch in share]
    counted = torch.cat([batch.rows[batch.counted] for batch in batches])
    assert sorted(counted.tolist()) == list(range(count))
    for batch in batches:
        B = len(batch.labels)
        assert len(batch.ids) == sentences * B
        assert batch.counted.all() or B == 1
        if limit is not None:
            assert batch.ids.numel() <= limit or B == 1
        for b, row in enumerate(batch.rows.tolist()):
            assert LABELS[batch.labels[b]] == examples[row].label
            for s in range(sentences):
                real = batch.ids[s * B + b][~batch.key_padding_mask[s * B + b]]
                assert VOCABULARY.decode(real.tolist()) == examples[row].sentences[s]
    losses = torch.arange(count, dtype=torch.float64)
    steps = len(ranks[0].plan(3))
    means = [sum(b.part_of_mean(losses[b.rows]) for b in batches if b.step == step) for step in range(steps)]
    for step, rows in enumerate(ranks[0].plan(3)):
        torch.testing.assert_close(means[step], losses[np.concatenate(rows)].mean())


@pytest.mark.parametrize("processes", [2, 3, 5])
def test_the_steps_of_many_processes_are_those_of_one(processes: int) -> None:
    one = make_batches(shuffle=True, micro_batch_size=4, max_padded_tokens=20)
    many = replace(one, num_processes=processes, rank=1)
    steps = [[sorted(np.concatenate(step)) for step in batches.plan(2)] for batches in (one, many)]
    assert steps[0] == steps[1]


def test_a_stand_in_neither_counts_in_the_loss_nor_lets_a_nan_through() -> None:
    batches = make_batches(1, shuffle=True, rank=1, num_processes=2)
    (batch,) = batches.epoch(0)
    assert batch.counted.tolist() == [False]
    assert batch.part_of_mean(torch.tensor([float("nan")])) == 0


def test_the_order_is_fixed_by_seed_and_epoch() -> None:
    batches = make_batches(shuffle=True, seed=7)
    assert all(same(a, b) for a, b in zip(batches.epoch(2), batches.epoch(2), strict=True))
    order = [
        np.concatenate([np.concatenate(s) for s in b.plan(e)]).tolist()
        for b, e in ((batches, 2), (batches, 3), (replace(batches, seed=8), 2))
    ]
    assert order[0] != order[1]
    assert order[0] != order[2]
    assert order[1] != order[2]


def test_the_order_never_changes_with_a_release() -> None:
    batches = make_batches(10, 4, bucket=2, shuffle=True, seed=1)
    assert [[rows.tolist() for rows in step] for step in batches.plan(1)] == [
        [[6, 4], [2, 1, 5, 8]],
        [[0, 7, 9, 3]],
    ]


@pytest.mark.parametrize("first_step", [0, 1, 6, 7])
def test_an_epoch_resumed_at_a_step_gives_the_remaining_batches(first_step: int) -> None:
    batches = make_batches(shuffle=True, micro_batch_size=4)
    rest = [batch for batch in batches.epoch(5) if batch.step >= first_step]
    resumed = list(batches.epoch(5, first_step=first_step))
    assert len(resumed) == len(rest)
    assert all(same(a, b) and a.step == b.step for a, b in zip(resumed, rest, strict=True))


def test_batches_are_cut_from_sorted_buckets() -> None:
    batches = make_batches(200, 8, bucket=5, sentences=2, shuffle=True)
    total = batches.examples.lengths.sum(1)
    spread = []
    for step in batches.plan(0):
        lengths = total[np.concatenate(step)]
        assert (np.diff(lengths) >= 0).all()
        spread.append(lengths[-1] - lengths[0])
    unsorted = [np.ptp(total[i : i + 8]) for i in range(0, 200, 8)]
    assert np.mean(spread) < 0.5 * np.mean(unsorted)


def test_without_shuffling_buckets_are_cut_from_the_examples_in_their_order() -> None:
    batches = make_batches(50, 8, bucket=2)
    micro_batches = [rows.tolist() for step in batches.plan(0) for rows in step]
    for rows in micro_batches:
        assert len({row // 16 for row in rows}) == 1
    first_rows = [min(rows) for rows in micro_batches]
    assert first_rows != sorted(first_rows)


def test_a_step_is_taken_when_batch_size_more_examples_were_seen_or_the_epoch_ends() -> None:
    batches = make_batches(30, 8, micro_batch_size=4, bucket=2, shuffle=True)
    for epoch in range(8):
        sizes = [[len(rows) for rows in step] for step in batches.plan(epoch)]
        assert sum(map(sum, sizes)) == 30
        for step in sizes[:-1]:
            assert sum(step[:-1]) < 8 <= sum(step)
    flags = [batch.ends_step for batch in batches.epoch(0)]
    assert flags.count(True) == len(batches.plan(0))
    assert flags[-1]


def test_a_token_limit_splits_passes_but_not_steps() -> None:
    whole = make_batches(40, 8, shuffle=True, sentences=2)
    split = replace(whole, max_padded_tokens=30)
    assert max(batch.ids.numel() for batch in whole.epoch(0)) > 30
    assert all(batch.ids.numel() <= 30 or len(batch.rows) == 1 for batch in split.epoch(0))
    assert [np.concatenate(step).tolist() for step in whole.plan(0)] == [
        np.concatenate(step).tolist() for step in split.plan(0)
    ]


def test_leaving_an_epoch_early_ends_the_thread() -> None:
    def preparing() -> int:
        return sum(thread.name.startswith("batches") for thread in threading.enumerate())

    epoch = make_batches(50, 1).epoch(0)
    next(epoch)
    assert preparing() == 1
    epoch.close()  # type: ignore[attr-defined]
    assert preparing() == 0


def test_an_error_while_preparing_reaches_the_reader() -> None:
    batches = make_batches()
    broken = replace(batches, examples=replace(batches.examples, tokens=batches.examples.tokens[:5]))
    with pytest.raises(IndexError):
        list(broken.epoch(0))


def test_a_batch_moves_with_all_its_tensors() -> None:
    batch = encode(make_examples(3), left_to_right).collate(np.arange(3)).to(torch.device("meta"))
    assert batch.gold_merges is not None
    for tensor in (
        batch.ids,
        batch.key_padding_mask,
        batch.labels,
        batch.rows,
        batch.counted,
        batch.gold_merges,
    ):
        assert tensor.is_meta
    assert batch.step_size == 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_batches_for_a_gpu_arrive_there(device: str) -> None:
    batches = make_batches(shuffle=True)
    for there, here in zip(batches.epoch(0, device=device), batches.epoch(0), strict=True):
        assert there.ids.is_cuda
        assert same(there.to(torch.device("cpu")), here)


def test_examples_that_cannot_be_encoded_are_refused_by_number() -> None:
    good = Example((("a",),), "no")
    with pytest.raises(BeamtreeError, match="example 2 has label 'maybe', not one of no, yes"):
        encode([good, replace(good, label="maybe")])
    with pytest.raises(BeamtreeError, match="example 3 has a sentence without tokens"):
        encode([good, good, replace(good, sentences=((),))])
    with pytest.raises(BeamtreeError, match="example 1 has a sentence without tokens"):
        encode([replace(good, sentences=(("a",), ()))])
    with pytest.raises(BeamtreeError, match="there are no examples"):
        encode([])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"bucket": 0}, "bucket must be at least 1, got 0"),
        ({"micro_batch_size": 0}, "micro_batch_size must be at least 1, got 0"),
        ({"max_padded_tokens": 0}, "max_padded_tokens must be at least 1, got 0"),
        ({"num_processes": 0}, "num_processes must be at least 1, got 0"),
        ({"micro_batch_size": 9}, "micro_batch_size 9 is larger than batch_size 8"),
        ({"rank": 2, "num_processes": 2}, "rank must be from 0 to 1, got 2"),
    ],
)
def test_impossible_sizes_are_refused_by_name(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_batches(**options)
