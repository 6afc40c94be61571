"""Examples as padded batches of similar length: shuffled, bucketed, sorted, cut, and shuffled again.

The order depends only on (seed, epoch). Every process gets its share of the same global batches, so the mean
loss of an optimiser step does not depend on the number of processes.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from beamtree.data.task import Example, Tokens
from beamtree.data.vocabulary import PAD, Vocabulary
from beamtree.errors import BeamtreeError

Integers = NDArray[np.int64]
_PREPARED_AHEAD = 8  # batches


@dataclass(frozen=True)
class Batch:
    """What one process passes through the model at once; rows b, b+B, … are the S sentences of example b.

    An optimiser step ends with the batch that has `ends_step`; its batches hold `step_size` examples over all
    processes. A process whose share would be empty gets one example with `counted` False, so that every
    process runs the same number of forward passes.
    """

    ids: Tensor  # (S·B, n) int64
    key_padding_mask: Tensor  # (S·B, n) bool, True = padding
    labels: Tensor  # (B,) int64, −1 if unlabelled
    rows: Tensor  # (B,) int64: which examples these are
    counted: Tensor  # (B,) bool, False for a stand-in
    gold_merges: Tensor | None = None  # (S·B, n−1) int64, −1 after the last merge
    step: int = 0
    step_size: int = 1
    ends_step: bool = True

    def part_of_mean(self, losses: Tensor) -> Tensor:
        """Return this batch's part of the mean loss of its optimiser step, from the losses (B,).

        The parts of a step's batches in all processes add up to the mean. DistributedDataParallel averages
        gradients instead of adding them: multiply by the number of processes before `backward`.
        """
        return torch.where(self.counted, losses, 0).sum() / self.step_size

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on another device."""
        # Only copies to a GPU are ordered with the operations that read them.
        return self._with_tensors(lambda tensor: tensor.to(device, non_blocking=device.type == "cuda"))

    def pin_memory(self) -> "Batch":
        """Return the batch in pinned memory."""
        return self._with_tensors(Tensor.pin_memory)

    def _with_tensors(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        changed: dict[str, Any] = {k: change(v) for k, v in values.items() if isinstance(v, Tensor)}
        return replace(self, **changed)


@dataclass(frozen=True)
class EncodedExamples:
    """Examples in a few flat arrays, so that a batch is quickly cut out and a split takes little memory."""

    tokens: NDArray[np.intc]  # the ids of all sentences, one after another
    starts: Integers  # (N, S): where each sentence begins in `tokens`
    lengths: Integers  # (N, S)
    labels: Integers  # (N,)
    merges: NDArray[np.intc] | None  # aligned with `tokens`: n−1 gold merges and a −1 for each sentence

    @classmethod
    def encode(
        cls,
        examples: Iterable[Example],
        vocabulary: Vocabulary,
        labels: Tokens | None,
        *,
        gold_merges: Callable[[Tokens], list[int]] | None = None,
    ) -> "EncodedExamples":
        """Encode all examples: without `labels` they are unlabelled, with `gold_merges` they have trees."""
        numbers = None if labels is None else {label: number for number, label in enumerate(labels)}
        # Lists would take twice the memory, and LRA's training split has a hundred million tokens.
        tokens, merges = array("i"), array("i")
        lengths: list[list[int]] = []
        classes: list[int] = []
        for row, example in enumerate(examples, start=1):
            if not all(example.sentences):
                raise BeamtreeError(f"example {row} has a sentence without tokens")
            if numbers is not None and example.label not in numbers:
                raise BeamtreeError(
                    f"example {row} has label {example.label!r}, not one of {', '.join(numbers)}"
                )
            classes.append(-1 if numbers is None else numbers[example.label])
            numbered = [vocabulary.encode(sentence) for sentence in example.sentences]
            lengths.append([len(ids) for ids in numbered])
            for sentence, ids in zip(example.sentences, numbered, strict=True):
                tokens.extend(ids)
                if gold_merges is not None:
                    merges.extend(gold_merges(sentence))
                    merges.append(-1)
        if not classes:
            raise BeamtreeError("there are no examples")
        length = np.array(lengths, dtype=np.int64)
        return cls(
            tokens=np.frombuffer(tokens, dtype=np.intc),
            starts=(np.cumsum(length) - length.reshape(-1)).reshape(length.shape),
            lengths=length,
            labels=np.array(classes, dtype=np.int64),
            merges=None if gold_merges is None else np.frombuffer(merges, dtype=np.intc),
        )

    def __len__(self) -> int:
        return len(self.labels)

    def collate(self, rows: Integers) -> Batch:
        """Return these rows as a batch, padded on the right to the longest of their sentences."""
        starts, lengths = self.starts[rows].T.reshape(-1, 1), self.lengths[rows].T.reshape(-1, 1)  # (S·B, 1)
        place = np.arange(lengths.max())
        padding = place >= lengths  # (S·B, n)
        where = np.where(padding, 0, starts + place)
        ids = np.where(padding, PAD, self.tokens[where])
        merges = None if self.merges is None else np.where(padding, -1, self.merges[where])[:, :-1]
        return Batch(
            ids=torch.from_numpy(ids.astype(np.int64)),
            key_padding_mask=torch.from_numpy(padding),
            labels=torch.from_numpy(self.labels[rows]),
            rows=torch.from_numpy(rows.copy()),
            counted=torch.ones(len(rows), dtype=torch.bool),
            gold_merges=None if merges is None else torch.from_numpy(merges.astype(np.int64)),
            step_size=len(rows),
        )


@dataclass(frozen=True)
class BucketedBatches:
    """Batches of similar length from encoded examples, for one process of `num_processes`.

    `batch_size` examples (over all processes) make an optimiser step; `micro_batch_size` of them go through
    the model at once, fewer if a process would get more than `max_padded_tokens` tokens, padding included.
    `shuffle` is for training; without it, buckets are cut from the examples in their order.
    """

    examples: EncodedExamples
    batch_size: int
    bucket: int = 5
    micro_batch_size: int | None = None
    max_padded_tokens: int | None = None
    shuffle: bool = False
    seed: int = 0
    rank: int = 0
    num_processes: int = 1

    def __post_init__(self) -> None:
        for name in ("batch_size", "bucket", "micro_batch_size", "max_padded_tokens", "num_processes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BeamtreeError(f"{name} must be at least 1, got {value}")
        if self.micro_batch_size is not None and self.micro_batch_size > self.batch_size:
            raise BeamtreeError(
                f"micro_batch_size {self.micro_batch_size} is larger than batch_size {self.batch_size}"
            )
        if not 0 <= self.rank < self.num_processes:
            raise ValueError(f"rank must be from 0 to {self.num_processes - 1}, got {self.rank}")

    def plan(self, epoch: int) -> list[list[Integers]]:
        """Return the rows of an epoch for all processes: optimiser steps, each a list of micro-batches."""
        # numpy has frozen the stream of this legacy generator: the same order in every version.
        random = np.random.RandomState(np.random.MT19937(np.random.SeedSequence([self.seed, epoch])))
        rows = np.arange(len(self.examples))
        if self.shuffle:
            rows = random.permutation(rows)
        size = self.micro_batch_size or self.batch_size
        total_lengths = self.examples.lengths.sum(1)
        micro_batches: list[Integers] = []
        for first in range(0, len(rows), size * self.bucket):
            bucket = rows[first : first + size * self.bucket]
            bucket = bucket[np.argsort(total_lengths[bucket], kind="stable")]
            micro_batches += [bucket[i : i + size] for i in range(0, len(bucket), size)]

        steps: list[list[Integers]] = []
        seen = self.batch_size
        for i in random.permutation(len(micro_batches)):
            if seen >= self.batch_size:
                steps.append([])
                seen = 0
            steps[-1] += self._fitting(micro_batches[i])
            seen += len(micro_batches[i])
        return steps

    def epoch(
        self, epoch: int, *, first_step: int = 0, device: torch.device | str = "cpu"
    ) -> Iterator[Batch]:
        """Yield this process's batches on `device`; a thread prepares them ahead.

        `first_step` skips the optimiser steps already taken: (epoch, first_step) is where to resume.
        """
        device = torch.device(device)
        on_gpu = device.type == "cuda"
        if on_gpu and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        shares = (
            (step, micro_batch, sum(map(len, micro_batches)), i == len(micro_batches))
            for step, micro_batches in enumerate(self.plan(epoch))
            if step >= first_step
            for i, micro_batch in enumerate(micro_batches, start=1)
        )
        waiting: deque[Future[Batch]] = deque()
        # Pinned memory belongs to the current device, which a new thread does not inherit.
        prepare_thread = (torch.cuda.set_device, (device,)) if on_gpu else (None, ())
        with ThreadPoolExecutor(1, "batches", *prepare_thread) as thread:
            try:
                for share in shares:
                    waiting.append(thread.submit(self._prepare, *share, pin=on_gpu))
                    if len(waiting) > _PREPARED_AHEAD:
                        yield waiting.popleft().result().to(device)
                while waiting:
                    yield waiting.popleft().result().to(device)
            finally:
                for batch in waiting:
                    batch.cancel()

    def _prepare(
        self, step: int, micro_batch: Integers, step_size: int, ends_step: bool, *, pin: bool
    ) -> Batch:
        # With a stride, because the rows are sorted by length: every process gets the same amount of work.
        share = micro_batch[self.rank :: self.num_processes]
        batch = self.examples.collate(share if len(share) else micro_batch[:1])
        batch = replace(batch, step=step, step_size=step_size, ends_step=ends_step)
        if not len(share):
            batch = replace(batch, counted=torch.zeros_like(batch.counted))
        return batch.pin_memory() if pin else batch

    def _fitting(self, micro_batch: Integers) -> list[Integers]:
        """Split a micro-batch so that no process gets more than `max_padded_tokens` tokens."""
        if self.max_padded_tokens is None:
            return [micro_batch]
        lengths = self.examples.lengths[micro_batch]
        places = lengths.shape[1] * int(lengths.max())
        most = max(1, self.max_padded_tokens // places) * self.num_processes
        return np.array_split(micro_batch, -(-len(micro_batch) // most))
