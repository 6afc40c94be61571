"""Steers and ends a run: by the dev score after each epoch, by a signal or the user's limit at any step."""

import signal
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from beamtree.training.recipe import TrainingSettings

BETTER_BY = 1e-4  # absolute: less than this is no improvement


@dataclass
class Schedule:
    """Halves the rate at a plateau, remembers the best score, says when patience is exhausted."""

    settings: TrainingSettings
    optimizer: Optimizer
    best_score: float | None = None
    epochs_without_improvement: int = 0

    def __post_init__(self) -> None:
        # The threshold is relative, as published: for a negative score, a loss may even rise slightly.
        self._plateau = ReduceLROnPlateau(
            self.optimizer, mode="max", factor=0.5, patience=self.settings.plateau_patience, threshold=1e-4
        )

    def score(self, loss: float, accuracy: float, macro_f1: float | None = None) -> float:
        """Higher is better: accuracy or macro-F1 in percent, or minus the loss."""
        if self.settings.selection == "macro_f1" and macro_f1 is not None:
            return 100 * macro_f1
        return -loss if self.settings.selection == "loss" else 100 * accuracy

    def judge(self, score: float) -> bool:
        """Take an epoch's dev score into account; return whether it is the best so far."""
        improved = self.best_score is None or score - self.best_score > BETTER_BY
        if improved:
            self.best_score, self.epochs_without_improvement = score, 0
        else:
            self.epochs_without_improvement += 1
        self._plateau.step(score)
        return improved

    @property
    def exhausted(self) -> bool:
        return self.epochs_without_improvement > self.settings.patience

    @property
    def learning_rate(self) -> float:
        rate: float = self.optimizer.param_groups[0]["lr"]
        return rate

    def state(self) -> dict[str, Any]:
        """The state as JSON; the learning rate itself is in the optimiser's."""
        plateau = {key: getattr(self._plateau, key) for key in ("best", "num_bad_epochs", "last_epoch")}
        # Before the first epoch the best is −∞, which JSON does not have.
        plateau["best"] = plateau["best"] if self.best_score is not None else None
        return {
            "best_score": self.best_score,
            "epochs_without_improvement": self.epochs_without_improvement,
            "plateau": plateau,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.best_score = state["best_score"]
        self.epochs_without_improvement = state["epochs_without_improvement"]
        known = {key: value for key, value in state["plateau"].items() if value is not None}
        self._plateau.load_state_dict(known)


class Stopping(AbstractContextManager["Stopping"]):
    """Stops a run before it is finished, to be resumed later: at a signal, or a limit on time or steps.

    Within the block a first SIGINT or SIGTERM asks for a clean stop; a second one interrupts at once.
    """

    def __init__(self, *, minutes: float | None = None, steps: int | None = None) -> None:
        self.minutes, self.steps = minutes, steps
        self.signal_number: int | None = None
        self.steps_taken = 0
        self._began = time.monotonic()
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Stopping":
        # Python lets only the main thread set handlers; in others, signals keep their usual effect.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @property
    def reason(self) -> str | None:
        """Why to stop after this step, or None to continue."""
        if self.signal_number is not None:
            return f"stopped by {signal.Signals(self.signal_number).name}"
        if self.steps is not None and self.steps_taken >= self.steps:
            return f"stopped after {self.steps_taken} steps, as asked"
        if self.minutes is not None and time.monotonic() - self._began >= 60 * self.minutes:
            return f"stopped after {self.minutes:g} minutes, as asked"
        return None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None:
            raise KeyboardInterrupt
        self.signal_number = number
