"""The training loop: the same code for a CPU, a GPU, or many under `torchrun` and `accelerate launch`.

No step waits for a GPU. Losses are summed there and read a few times a second, as is the gradient norm of
every step, which shows afterwards at which step the loss stopped being finite.
"""

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from beamtree.classifier.model_folder import save_model
from beamtree.data.batching import Batch
from beamtree.errors import BeamtreeError, MissingExtraError
from beamtree.files.atomic import replace_file
from beamtree.nn.heads import class_losses
from beamtree.printable import write_json
from beamtree.training.display import Display
from beamtree.training.examples import LearningData
from beamtree.training.processes import Processes, failing_together
from beamtree.training.recipe import Recipe, TrainingSettings
from beamtree.training.run import Run, add_up
from beamtree.training.run_folder import RunFolder
from beamtree.training.schedule import Stopping

if TYPE_CHECKING:
    from accelerate import Accelerator

LOOK_SECONDS = 0.25  # how often a single process reads the sums from its GPU
LOOK_STEPS = 20  # several processes have to read together, so they count steps


@dataclass(frozen=True)
class TrainingEnd:
    """How a run ended: `finished`, or stopped and ready to be resumed."""

    finished: bool
    reason: str
    history: list[dict[str, Any]]


def create_accelerator() -> "Accelerator":
    """The accelerator of this process, connected to the others of the run if there are several."""
    try:
        from accelerate import Accelerator
    except ImportError as error:
        raise MissingExtraError("training", "train") from error
    on_gpu, processes = torch.cuda.is_available(), Processes.from_environment()
    if processes.count > 1 and not torch.distributed.is_initialized():
        if on_gpu:
            torch.cuda.set_device(processes.local_rank % torch.cuda.device_count())
        processes.connect("nccl" if on_gpu else "gloo")
    return Accelerator(cpu=not on_gpu)


def fit(
    recipe: Recipe,
    folder: RunFolder,
    data: LearningData,
    *,
    accelerator: "Accelerator | None" = None,
    stopping: Stopping | None = None,
    display: Display | None = None,
) -> TrainingEnd:
    """Train in a run folder that has begun, from its checkpoint if it has one, until finished or stopped."""
    accelerator = accelerator or create_accelerator()
    with stopping or Stopping() as stopping, display or Display() as display, _arithmetic(recipe.training):
        main = accelerator.is_main_process
        with failing_together():
            run = Run(recipe, folder, data, accelerator, display)
            if main:  # only now, so that a run that cannot continue as asked stays unchanged
                folder.keep_recipe(recipe)
                folder.write_data_place(data.place)
                folder.write_metrics(run.position.history)
                folder.failure_file.unlink(missing_ok=True)
        with _event_writer(folder, run.position.total_steps) if main else nullcontext() as writer:
            stop = None
            while (over := run.over) is None:
                if stop is not None:
                    return TrainingEnd(False, stop, run.position.history)
                epoch = _Epoch(run, stopping, writer)
                stop = epoch.train()
                if epoch.complete:
                    _end_epoch(run, epoch.tokens, writer)
                else:
                    run.save()
        return TrainingEnd(True, over, run.position.history)


def _end_epoch(run: Run, tokens: int, writer: Any) -> None:
    position = run.position
    began = time.monotonic()
    train_loss, train_accuracy = run.means(run.sums, len(run.train_batches.examples))
    dev_loss, dev_accuracy, dev_macro_f1 = run.evaluate()
    with failing_together():
        if not math.isfinite(dev_loss):
            raise BeamtreeError(
                f"the dev loss is not finite after epoch {position.epochs + 1}: stopped; "
                "the last good checkpoint and best/ are kept; start again with a lower training.learning_rate"
            )
    rate = run.schedule.learning_rate
    best = run.schedule.judge(run.schedule.score(dev_loss, dev_accuracy, dev_macro_f1))
    record = {
        "epoch": position.epochs + 1,
        "step": position.total_steps,
        "train_loss": train_loss,
        "train_accuracy": train_accuracy,
        "dev_loss": dev_loss,
        "dev_accuracy": dev_accuracy,
        **({} if dev_macro_f1 is None else {"dev_macro_f1": dev_macro_f1}),
        "learning_rate": rate,
        "best": best,
        "tokens_per_second": tokens / position.epoch_seconds,
        "seconds": position.epoch_seconds + time.monotonic() - began,
    }
    position.history.append(record)
    position.epochs, position.steps, position.epoch_seconds = position.epochs + 1, 0, 0.0
    run.sums.zero_()
    with failing_together():
        if best and run.main:
            save_model(run.kept, run.folder.best, record)
    run.save()
    if run.main:
        for name, figure in record.items():
            if name.startswith(("train_", "dev_", "learning_rate")):
                writer.add_scalar(f"epoch/{name}", figure, position.total_steps)
        writer.flush()
    run.display.end_epoch(record, run.settings.max_epochs)


class _Epoch:
    """One pass over the training split, starting from the run's position."""

    def __init__(self, run: Run, stopping: Stopping, writer: Any) -> None:
        self.run, self.stopping, self.writer = run, stopping, writer
        batches, position = run.train_batches, run.position
        self.plan = batches.plan(position.epochs)
        lengths = batches.examples.lengths.sum(1)
        self.step_tokens = [int(sum(lengths[rows].sum() for rows in step)) for step in self.plan]
        self.step_examples = [sum(map(len, step)) for step in self.plan]
        self.tokens = sum(self.step_tokens)
        self.norms = torch.zeros(len(self.plan), device=run.device)
        self.began = time.monotonic() - position.epoch_seconds
        self.looked_at, self.looked_step = time.monotonic(), position.steps

    @property
    def complete(self) -> bool:
        return self.run.position.steps == len(self.plan)

    def train(self) -> str | None:
        """Run to the end of the epoch, or until there is a reason to stop; return that reason."""
        run, position = self.run, self.run.position
        run.display.begin_epoch(position.epochs + 1, run.settings.max_epochs, len(self.plan), position.steps)
        run.wrapped.train()
        stop = None
        for batch in run.train_batches.epoch(position.epochs, first_step=position.steps, device=run.device):
            self._forward_backward(batch)
            if not batch.ends_step:
                continue
            self._update()
            stop = self.stopping.reason
            if self._time_to_look(stop):
                stop, save = self._agree(stop)
                self._look()
                if stop is not None:
                    break
                if save and not self.complete:
                    run.save()
        self._look()
        return stop

    def _forward_backward(self, batch: Batch) -> None:
        run = self.run
        with nullcontext() if batch.ends_step else run.accelerator.no_sync(run.wrapped):
            with run.autocast():
                logits = run.wrapped(batch.ids, batch.key_padding_mask, batch.gold_merges)
            learnt = losses = class_losses(logits, batch.labels)
            if run.class_offsets is not None:
                learnt = class_losses(logits + run.class_offsets, batch.labels)
            # Gradients are averaged over the processes, but parts of a mean must be added up.
            run.accelerator.backward(batch.part_of_mean(learnt) * run.processes)
        add_up(run.sums, batch, run.weigh(losses, batch.labels), logits)

    def _update(self) -> None:
        run, position = self.run, self.run.position
        norm = torch.nn.utils.clip_grad_norm_(run.model.parameters(), run.settings.clip or math.inf)
        self.norms[position.steps].copy_(norm)
        run.optimizer.step()
        run.optimizer.zero_grad()
        if run.averaged is not None:
            run.averaged.update_parameters(run.model)
        position.steps += 1
        position.total_steps += 1
        self.stopping.steps_taken += 1
        position.epoch_seconds = time.monotonic() - self.began

    def _time_to_look(self, stop: str | None) -> bool:
        run = self.run
        if run.device.type == "cpu" or self.complete:
            return True
        if run.processes > 1:
            return run.position.steps % LOOK_STEPS == 0 or self.stopping.steps_taken == self.stopping.steps
        return stop is not None or time.monotonic() - self.looked_at >= LOOK_SECONDS

    def _agree(self, stop: str | None) -> tuple[str | None, bool]:
        """The reason to stop and whether to save; all processes do what any of them wants."""
        run = self.run
        due = time.monotonic() - run.saved_at >= 60 * run.settings.checkpoint_minutes
        wishes = torch.tensor([stop is not None, due], dtype=torch.int64, device=run.device)
        any_stop, any_due = (run.accelerator.reduce(wishes, "sum") > 0).tolist()
        return (stop or "another process was stopped") if any_stop else None, any_due

    def _look(self) -> None:
        """Show the sums so far, and fail if a gradient norm since the last time is not finite."""
        run, first, steps = self.run, self.looked_step, self.run.position.steps
        if first == steps:
            return
        sums = run.accelerator.reduce(run.sums, "sum")
        loss, correct, *norms = torch.cat((sums, self.norms[first:steps].double())).tolist()
        for step, norm in enumerate(norms, start=first):
            if not math.isfinite(norm):
                with failing_together():
                    self._fail(step)
        now = time.monotonic()
        speed = sum(self.step_tokens[first:steps]) / max(now - self.looked_at, 1e-9)
        examples = sum(self.step_examples[:steps])
        run.display.show(steps, loss / examples, correct / examples, speed)
        if self.writer is not None:
            self.writer.add_scalar("step/mean_train_loss", loss / examples, run.position.total_steps)
            self.writer.add_scalar("step/gradient_norm", norms[-1], run.position.total_steps)
        self.looked_at, self.looked_step = now, steps

    def _fail(self, step: int) -> None:
        run = self.run
        rows = [int(row) for micro_batch in self.plan[step] for row in micro_batch]
        epoch = run.position.epochs + 1
        where = run.folder.failure_file
        if run.main:
            replace_file(where, write_json({"epoch": epoch, "step": step + 1, "examples": rows}) + "\n")
        few = ", ".join(map(str, rows[:8])) + (", …" if len(rows) > 8 else "")
        raise BeamtreeError(
            f"the loss or its gradient is not finite in epoch {epoch}, step {step + 1} (training examples "
            f"{few}; all {len(rows)} in {where}): stopped; the last good checkpoint and best/ are kept; "
            "start again with a lower training.learning_rate"
        )


@contextmanager
def _arithmetic(settings: TrainingSettings) -> Iterator[None]:
    """Apply the recipe's precision and determinism while the run lasts."""
    precision = torch.get_float32_matmul_precision()
    switch = settings.deterministic and not torch.are_deterministic_algorithms_enabled()
    if switch:  # and only then: the call imports torch's compiler, which takes seconds
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required by cuBLAS
        torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("high" if settings.precision == "tf32" else "highest")
    try:
        yield
    finally:
        if switch:
            torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision(precision)


@contextmanager
def _event_writer(folder: RunFolder, total_steps: int) -> Iterator[Any]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtraError("writing TensorBoard events", "train") from error
    # Drops what an interrupted run wrote after its last checkpoint, as it will be written again.
    writer = SummaryWriter(folder.tensorboard, purge_step=total_steps + 1 if total_steps else None)
    try:
        yield writer
    finally:
        writer.close()
