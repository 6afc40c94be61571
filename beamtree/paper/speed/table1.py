"""The paper's Table 1 on this machine: one training epoch over 100 ListOps expressions of a range of lengths,
batch 1, forward, backward, clipping and optimiser step.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import torch

from beamtree.classifier.model import ModelSettings, TreeClassifier, create_model
from beamtree.data.batching import Batch
from beamtree.data.listops import TASK, sample_expressions
from beamtree.data.task import Example
from beamtree.nn.heads import class_losses
from beamtree.paper.published import TABLE_1, Efficiency
from beamtree.paper.speed.fresh_process import Result, call_on, noting_lack_of_memory
from beamtree.paper.speed.measure import FIRST_LENGTH, PeakMemory, Progress
from beamtree.paper.speed.workload import NAIVE, find_variant, wait_for
from beamtree.training.ranger import Ranger

PAPER_SAMPLES = 100
DEFAULT_MODELS = (*TABLE_1, NAIVE)
_CLIP = 1.0
_OPTIONS = {"om": {"memory_dropout": 0.1}}

Expression = tuple[str, str]  # tokens separated by spaces, label


class Range(NamedTuple):
    """A range of lengths in tokens, both bounds included, drawn like the split that the paper used."""

    min_length: int
    max_length: int
    max_depth: int = 20
    max_args: int = 5

    def sample(self, count: int) -> list[Expression]:
        examples = sample_expressions(count, seed=0, **self._asdict())
        return [(" ".join(example.sentences[0]), example.label) for example in examples]


RANGES = {
    "200-250": Range(201, 250),
    "500-600": Range(501, 599),
    "900-1000": Range(901, 999),
    "1500-2000": Range(1500, 1999, max_depth=10, max_args=10),  # the Long Range Arena's
}


@dataclass
class RangeResult(Result):
    """A model in a range of lengths, with the seconds for each expression that it was trained on."""

    model: str
    range: str
    mean_length: float
    seconds: list[float] = field(default_factory=list)

    @property
    def minutes(self) -> float | None:
        """For 100 expressions."""
        return mean(self.seconds) * PAPER_SAMPLES / 60 if self.seconds else None

    @property
    def milliseconds(self) -> float | None:
        """Per expression."""
        return 1e3 * mean(self.seconds) if self.seconds else None

    @property
    def extrapolated(self) -> bool:
        return 0 < len(self.seconds) < PAPER_SAMPLES

    @property
    def published(self) -> Efficiency | None:
        row = TABLE_1.get(self.model)
        return row and row.figures.get(self.range)

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "minutes": self.minutes,
            "extrapolated": self.extrapolated,
            "published": self.published and self.published._asdict(),
        }


def measure_table(
    models: Sequence[str],
    ranges: Sequence[str],
    device: torch.device,
    *,
    samples: int,
    max_seconds: float,
    into: list[RangeResult],
    progress: Progress = lambda share, doing: None,
) -> None:
    """Measure all models, one range after another; after an interruption, `into` has the finished cells."""
    total = len(models) * len(ranges)
    for name in ranges:
        progress(len(into) / total, f"drawing expressions of {name} tokens")
        expressions = RANGES[name].sample(samples)
        length = mean(len(text.split()) for text, _ in expressions)
        for model in models:
            progress(len(into) / total, f"{model}, {name} tokens")
            cell = RangeResult(model, name, length)
            with noting_lack_of_memory(cell):
                given = {"model": model, "expressions": expressions, "max_seconds": max_seconds}
                found = call_on(device, train_on, **given)
                cell.seconds, cell.peak_bytes = found["seconds"], found["peak_bytes"]
            into.append(cell)


def train_on(
    model: str, expressions: Sequence[Expression], max_seconds: float, device: str
) -> dict[str, Any]:
    """Train one step on every expression in this process, until `max_seconds` have passed."""
    place = torch.device(device)
    examples = [Example((tuple(text.split()),), label) for text, label in expressions]
    first = examples[0]
    beginning = Example((first.sentences[0][:FIRST_LENGTH],), first.label)
    peak = PeakMemory(place)
    trainer = Trainer(model, place)
    trainer.train([beginning] if place.type == "cpu" else [first, first], max_seconds)
    peak.warmed_up()
    seconds = trainer.train(examples, max_seconds)
    return {"seconds": seconds, "peak_bytes": peak.bytes()}


class Trainer:
    """A ListOps classifier and its optimiser, with the paper's settings."""

    def __init__(self, model: str, device: torch.device) -> None:
        variant = find_variant(model)
        settings = ModelSettings(
            encoder=variant.encoder,
            d_model=variant.d_model or 128,
            options={**variant.options, **_OPTIONS.get(model, {})},
        )
        self.device = device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.classifier: TreeClassifier = create_model(settings, TASK)
        self.classifier.encoder = variant.changed(self.classifier.encoder)
        self.classifier.to(device).train()
        self.optimizer = Ranger(self.classifier.parameters(), lr=1e-3, weight_decay=1e-2)

    def train(self, examples: Sequence[Example], max_seconds: float = float("inf")) -> list[float]:
        encoded = self.classifier.encode(examples)
        seconds: list[float] = []
        for row in range(len(examples)):
            wait_for(self.device)
            began = time.perf_counter()
            self._step(encoded.collate(np.array([row])).to(self.device))
            wait_for(self.device)
            seconds.append(time.perf_counter() - began)
            if sum(seconds) > max_seconds:
                break
        return seconds

    def _step(self, batch: Batch) -> None:
        logits = self.classifier(batch.ids, batch.key_padding_mask, batch.gold_merges)
        class_losses(logits, batch.labels).mean().backward()
        torch.nn.utils.clip_grad_norm_(self.classifier.parameters(), _CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
