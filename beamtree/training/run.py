"""The state of one run: model, data, optimiser and position, and how it is saved and restored."""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from beamtree.classifier.model import TreeClassifier, create_model
from beamtree.classifier.model_folder import save_model
from beamtree.data.batching import Batch, BucketedBatches, EncodedExamples
from beamtree.data.task import Example
from beamtree.files.bounded import machine_memory
from beamtree.nn.embedding import ContextualEmbedding, WordEmbedding
from beamtree.nn.heads import class_losses, predicted_classes
from beamtree.training.checkpoint import (
    Position,
    load_checkpoint,
    random_state,
    save_checkpoint,
    set_random_state,
)
from beamtree.training.classes import (
    IMBALANCED,
    Confusion,
    balanced_weights,
    largest_share,
    log_frequencies,
)
from beamtree.training.display import Display, EverySoOften
from beamtree.training.examples import LearningData
from beamtree.training.processes import failing_together
from beamtree.training.ranger import Ranger
from beamtree.training.recipe import Recipe, TrainingSettings
from beamtree.training.run_folder import RunFolder
from beamtree.training.schedule import Schedule

if TYPE_CHECKING:
    from accelerate import Accelerator

SECONDS_OF_READING = 20.0  # between two lines about how many texts an encoder has read
DEV_TOKENS = 1 << 15  # padded tokens in a dev batch, so that long expressions fit
DEV_BATCH = 4  # training batches in a dev batch: without gradients there is room, and launches are saved


class Run:
    """Model, optimiser, schedule, batches and position of one process; restored if there is a checkpoint."""

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        data: LearningData,
        accelerator: "Accelerator",
        display: Display,
    ) -> None:
        settings = self.settings = choose_selection(recipe.training, data.train)
        self.folder, self.accelerator, self.display = folder, accelerator, display
        self.main: bool = accelerator.is_main_process
        self.device: torch.device = accelerator.device
        rank, self.processes = accelerator.process_index, accelerator.num_processes
        torch.manual_seed(settings.seed)
        self.model = create_model(recipe.model, data.task, data.words)
        train = self.model.encode(data.train)
        if self.model.word_scores is not None:
            self.model.word_scores.count(train, len(data.task.labels))
        self.model.to(self.device)
        self.wrapped = accelerator.prepare(self.model)
        self.averaged: AveragedModel | None = None
        if settings.averaging:
            self.averaged = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(settings.averaging))
        self.optimizer = create_optimizer(self.model, recipe, self.device)
        self.schedule = Schedule(settings, self.optimizer)
        self.train_batches = BucketedBatches(
            train,
            batch_size=settings.batch_size,
            micro_batch_size=settings.micro_batch_size or None,
            bucket=settings.bucket,
            shuffle=True,
            seed=settings.seed,
            rank=rank,
            num_processes=self.processes,
        )
        self.dev_batches = BucketedBatches(
            self.model.encode(data.dev),
            batch_size=DEV_BATCH * settings.batch_size,
            bucket=settings.bucket,
            max_padded_tokens=DEV_TOKENS,
            rank=rank,
            num_processes=self.processes,
        )
        _read_texts_once(self.model, (self.train_batches.examples, self.dev_batches.examples), display)
        # Which label is taken for which is counted for a user's own data, or if macro-F1 is the dev score.
        self.counts_classes = data.task.own is not None or settings.selection == "macro_f1"
        self.class_weights: Tensor | None = None  # for the losses that are shown and compared
        self.class_offsets: Tensor | None = None  # added to the logits of the loss that is minimised
        if settings.class_weights == "balanced":
            counted = self.train_batches.examples.labels.tolist(), len(self.model.task.labels)
            self.class_weights = torch.tensor(balanced_weights(*counted), device=self.device)
            offsets = torch.tensor(log_frequencies(*counted), device=self.device)
            self.class_offsets = offsets.diff() if len(offsets) == 2 else offsets
        self.position = Position(data=_checksum(self.train_batches, self.dev_batches))
        self.sums = torch.zeros(2, dtype=torch.float64, device=self.device)  # this epoch's loss and correct
        self._seed_noise()
        if folder.checkpoint_file.is_file():
            self._restore()
        else:
            folder.refuse_if_records_alone()
        self.saved_at = time.monotonic()

    @property
    def over(self) -> str | None:
        """Why the run is finished, or None."""
        if self.schedule.exhausted:
            return f"the dev score has not risen for {self.schedule.epochs_without_improvement} epochs"
        if self.position.epochs >= self.settings.max_epochs:
            return f"all {self.settings.max_epochs} epochs are done"
        return None

    @property
    def kept(self) -> TreeClassifier:
        """The model that is evaluated and kept: the one that learns, or the running mean of its weights."""
        return self.model if self.averaged is None else cast(TreeClassifier, self.averaged.module)

    @torch.no_grad()
    def evaluate(self) -> tuple[float, float, float | None]:
        """Loss, accuracy and, if classes are counted, macro-F1 on the dev split."""
        model = self.kept.eval()
        sums = torch.zeros_like(self.sums)
        labels = model.task.labels
        counts = torch.zeros(len(labels) ** 2 if self.counts_classes else 0, device=self.device)
        for batch in self.dev_batches.epoch(0, device=self.device):
            with self.autocast():
                logits = model(batch.ids, batch.key_padding_mask, batch.gold_merges)
            add_up(sums, batch, self.weigh(class_losses(logits, batch.labels), batch.labels), logits)
            if self.counts_classes:
                places = batch.labels * len(labels) + predicted_classes(logits)
                counts.index_add_(0, places, batch.counted.to(counts.dtype))
        loss, accuracy = self.means(sums, len(self.dev_batches.examples))
        if not self.counts_classes:
            return loss, accuracy, None
        table = self.accelerator.reduce(counts, "sum").unflatten(0, (len(labels), -1)).long().tolist()
        return loss, accuracy, Confusion(labels, table).macro_f1

    def weigh(self, losses: Tensor, labels: Tensor) -> Tensor:
        """Losses (B,), weighted so that all labels have the same share if the recipe asks for it."""
        return losses if self.class_weights is None else losses * self.class_weights[labels]

    def means(self, sums: Tensor, examples: int) -> tuple[float, float]:
        """Loss and accuracy from the sums of all processes."""
        loss, correct = self.accelerator.reduce(sums, "sum").tolist()
        return loss / examples, correct / examples

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.precision == "bf16")

    def save(self) -> None:
        """Replace `last/`, the checkpoint and the metrics; every process must call this."""
        by_process = {
            "random": self.accelerator.gather(random_state(self.device).to(self.device)[None]),
            "sums": self.accelerator.gather(self.sums[None]),
        }
        with failing_together():
            if self.main:
                save_model(self.kept, self.folder.last)
                save_checkpoint(
                    self.folder.checkpoint_file,
                    model=self.model,
                    averaged=self.averaged,
                    optimizer=self.optimizer,
                    schedule=self.schedule,
                    position=self.position,
                    by_process=by_process,
                )
                self.folder.write_metrics(self.position.history)
        self.saved_at = time.monotonic()

    def _restore(self) -> None:
        path = self.folder.checkpoint_file
        position, by_process = load_checkpoint(
            path,
            model=self.model,
            averaged=self.averaged,
            optimizer=self.optimizer,
            schedule=self.schedule,
            data=self.position.data,
        )
        self.position = position
        rank, sums, states = self.accelerator.process_index, by_process["sums"], by_process["random"]
        if len(sums) == self.processes:
            self.sums.copy_(sums[rank])
            set_random_state(states[rank], self.device)
        else:
            if rank == 0:
                self.sums.copy_(sums.sum(0))
            self._seed_noise()
            self.display.say(
                f"begun by {len(sums)} and continued by {self.processes} processes: dropout and noise differ"
            )

    def _seed_noise(self) -> None:
        """Give every process its own dropout and noise."""
        place = (self.settings.seed, self.accelerator.process_index, self.position.total_steps)
        torch.manual_seed(int.from_bytes(hashlib.sha256(repr(place).encode()).digest()[:8], "little") >> 1)


def choose_selection(settings: TrainingSettings, train: Sequence[Example]) -> TrainingSettings:
    """Replace the selection `auto` by what suits the training rows."""
    if settings.selection != "auto":
        return settings
    uneven = settings.class_weights == "none" and largest_share(train)[1] > IMBALANCED
    return replace(settings, selection="macro_f1" if uneven else "loss")


def _read_texts_once(model: TreeClassifier, splits: Sequence[EncodedExamples], display: Display) -> None:
    """Let an encoder that does not learn read all texts once and keep the vectors, if there is room."""
    reader = next((part for part in model.modules() if isinstance(part, ContextualEmbedding)), None)
    if reader is None:
        return
    rows = reader.unread(splits)
    if reader.bytes_of(rows) > machine_memory() / 4:
        display.say("the vectors of all texts would take too much memory: the encoder reads them every epoch")
    elif rows:
        display.say(f"the encoder in {reader.encoder.place} reads {len(rows):,} texts once")
        log = EverySoOften(SECONDS_OF_READING, clock=display.clock)

        def advance(done: int) -> None:
            if done < len(rows) and log.due():
                display.say(f"{done:,} of {len(rows):,} texts")

        reader.remember(rows, next(model.parameters()).device, advance)


def create_optimizer(model: TreeClassifier, recipe: Recipe, device: torch.device) -> Optimizer:
    settings, groups = recipe.training, _groups(model, recipe.words.learning_rate)
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimizer == "ranger":
        return Ranger(groups, lr=rate, weight_decay=decay)
    # On a GPU a fused step updates many parameters in one kernel: the same rule, launched in less time.
    fused = True if device.type == "cuda" else None
    return torch.optim.AdamW(groups, lr=rate, weight_decay=decay, fused=fused)


def _groups(model: TreeClassifier, words_rate: float) -> list[dict[str, Any]]:
    """All parameters; the vectors of words in a separate group if they have their own learning rate."""
    apart = {
        id(row) for part in model.modules() if isinstance(part, WordEmbedding) for row in part.parameters()
    }
    if not words_rate or not apart:
        return [{"params": list(model.parameters())}]
    rest = [weight for weight in model.parameters() if id(weight) not in apart]
    rows = [weight for weight in model.parameters() if id(weight) in apart]
    return [{"params": rest}, {"params": rows, "lr": words_rate}]


def add_up(sums: Tensor, batch: Batch, losses: Tensor, logits: Tensor) -> None:
    """Add a batch's losses and correct predictions to the sums (2,), without waiting for the device."""
    sums[0] += torch.where(batch.counted, losses.detach(), 0).sum(dtype=sums.dtype)
    sums[1] += (batch.counted & (predicted_classes(logits) == batch.labels)).sum()


def _checksum(*splits: BucketedBatches) -> str:
    digest = hashlib.sha256()
    for split in splits:
        examples = split.examples
        for array in (examples.tokens, examples.lengths, examples.labels):
            digest.update(array.tobytes())
    return digest.hexdigest()
