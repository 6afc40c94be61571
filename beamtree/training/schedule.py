"""What the dev score decides once an epoch: the best model, the learning rate, the end."""

from dataclasses import dataclass
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
        # The threshold is relative, as published: of a negative score it forgives a loss that hardly rises.
        self._plateau = ReduceLROnPlateau(
            self.optimizer, mode="max", factor=0.5, patience=self.settings.plateau_patience, threshold=1e-4
        )

    def score(self, loss: float, accuracy: float) -> float:
        """Higher is better: accuracy in percent, or minus the loss."""
        return -loss if self.settings.selection == "loss" else 100 * accuracy

    def judge(self, score: float) -> bool:
        """Take note of an epoch's dev score; whether it is the best so far."""
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
        """What JSON can hold of it; the rate itself belongs to the optimiser."""
        plateau = {key: getattr(self._plateau, key) for key in ("best", "num_bad_epochs", "last_epoch")}
        # Before the first epoch the best is −∞, which JSON has not.
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
