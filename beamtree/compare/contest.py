"""The rules of a fair comparison: models, splits, learning rates, seeds, steps.

Every model sees the same data for at most the same number of steps, with the same early stopping. Its
learning rate is the best of the same three on dev, each tried with one seed and a fifth of the steps; then
it is trained with every seed. Test splits are used once, after training.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from beamtree.compare.outcome import Outcome
from beamtree.data.task import Task
from beamtree.errors import BeamtreeError, nearest
from beamtree.training.recipe import Recipe, load_recipe
from beamtree.zoo.by_name import compared_encoder_names, count_parameters, encoder_names, equal_sized_options

TREE_MODEL = "ebt-grc"  # the others have its size
MODELS = (
    "bilstm",
    "rotary-transformer",
    "universal-transformer",
    "s4d",
    "mamba",
    "ssm-ebt-grc",
    TREE_MODEL,
    "gold-grc",
)
QUICK_MODELS = ("bilstm", TREE_MODEL, "gold-grc")
QUICK_STEPS = 2400
QUICK_EPOCHS = 100
TRIAL_SHARE = 5  # a trial of a learning rate gets a fifth of the steps
TRAINING = "train"  # the name under which training examples are measured


@dataclass(frozen=True)
class Contest:
    """The comparison on one task: where models are measured, and how long they train.

    `points` maps places on the picture's axis to splits; the first `inside` of them are like training. Of a
    larger split only `most_…` examples are used.
    """

    task: str
    points: Mapping[str, str]
    inside: int
    axis: str
    by_depth: bool = False  # also draw accuracy by nesting depth, over all test examples
    d_model: int = 128
    batch_size: int = 128
    rates: tuple[float, ...] = (3e-4, 1e-3, 3e-3)
    steps: int = 12_500
    most_epochs: int | None = None  # for a small table, on which `steps` would take hours
    dropout: float | None = None  # None: as in the task's recipe
    optimizer: str | None = None
    most_train: int | None = None
    most_dev: int | None = None
    most_test: int | None = None
    measured_of_train: int = 2000
    changes: tuple[str, ...] = ()  # section.key=value, to how the task's recipe reads data

    def epochs(self, examples: int) -> int:
        """The number of passes over the training examples that take about `steps` steps."""
        epochs = max(1, round(self.steps / math.ceil(examples / self.batch_size)))
        return min(epochs, self.most_epochs or epochs)


_CONTESTS = {
    "filters": Contest(
        "filters",
        {str(depth): f"depth{depth}" for depth in range(1, 11)},
        inside=4,
        axis="depth of brackets",
    ),
    "logic": Contest(
        "logic",
        {str(count): f"test{count}" for count in range(1, 13)},
        inside=6,
        axis="operators in the longer formula",
    ),
    "listops": Contest(
        "listops",
        {
            "near-IID": "near-iid",
            **{f"{low}–{low + 100}": f"{low}-{low + 100}" for low in (200, 300, 500, 700, 900)},
        },
        inside=1,
        axis="tokens",
        by_depth=True,
    ),
}


def find_contest(
    task: Task, tests: Sequence[str] = (), *, quick: bool = False, changes: Sequence[str] = ()
) -> Contest:
    """The contest on a task; `tests` are the user's files to test on instead of the task's splits, `changes`
    are made to how its data are read."""
    for change in changes:
        if not change.startswith(("task.", "words.")):
            raise BeamtreeError(
                f"--set {change}: a comparison can only change task.… and words.…; model and training are "
                "the same for all, as docs/why.md says"
            )
    contest = _CONTESTS.get(task.name)
    if contest is None or tests:
        splits = [name for name in task.splits if name not in ("train", "dev") and "train" not in name]
        base = contest or Contest(task.name, {}, 0, "split")
        points = dict(zip(_short(tests) if tests else splits, tests or splits, strict=True))
        contest = replace(base, points=points, inside=0, axis="split", by_depth=False)
    contest = replace(contest, changes=tuple(changes))
    if quick:
        contest = replace(
            contest,
            d_model=64,
            batch_size=64,
            rates=(1e-3,),
            optimizer="adamw",
            dropout=0.0,  # it slows learning, and so few steps do not overfit
            steps=QUICK_STEPS,
            most_epochs=QUICK_EPOCHS,
            most_train=19_200,
            most_dev=800,
            most_test=300,
            measured_of_train=500,
        )
    return contest


def _short(files: Sequence[str]) -> list[str]:
    """The file names without folder and suffix, if these are distinct."""
    stems = [Path(name).stem for name in files]
    return stems if len(set(stems)) == len(stems) else list(files)


@dataclass(frozen=True)
class Entry:
    """One run: a trial of a learning rate, or a seed at the chosen rate."""

    model: str
    seed: int = 0
    trial: float | None = None  # the rate to try

    @property
    def name(self) -> str:
        return f"{self.model}-seed{self.seed}" if self.trial is None else f"{self.model}-rate{self.trial:g}"


def plan(contest: Contest, models: Sequence[str], seeds: int) -> list[Entry]:
    """All runs, trials first, as the others wait for them. A single rate needs no trial."""
    rates = contest.rates if len(contest.rates) > 1 else ()
    trials = [Entry(model, trial=rate) for model in models for rate in rates]
    return trials + [Entry(model, seed) for seed in range(seeds) for model in models]


def trials_of(contest: Contest, model: str) -> list[Entry]:
    return plan(contest, [model], seeds=0)


def choose_rate(trials: Sequence[Outcome]) -> float:
    """The learning rate of the trial with the best dev accuracy; of equally good ones the lowest."""
    best = min(trials, key=lambda trial: (-trial.dev_accuracy, trial.learning_rate))
    return best.learning_rate


def choose_models(task: Task, names: Sequence[str], *, quick: bool) -> tuple[str, ...]:
    """The models named, or all of a contest, without gold-grc if the task has no gold trees."""
    known = (*encoder_names(), *compared_encoder_names())
    for name in names:
        if name not in known:
            raise BeamtreeError(f"there is no encoder {name!r} to compare{nearest(name, known)}")
        if name == "gold-grc" and task.gold_merges is None:
            raise BeamtreeError(
                f"gold-grc follows gold trees, and the task {task.name!r} has none: leave it out"
            )
    if names:
        return tuple(dict.fromkeys(names))
    wanted = QUICK_MODELS if quick else MODELS
    return tuple(name for name in wanted if name != "gold-grc" or task.gold_merges is not None)


def recipe_for(contest: Contest, entry: Entry, rate: float, examples: int) -> Recipe:
    """The recipe of a run: the task's, with the settings that are the same for all models on top."""
    base = load_recipe(contest.task, contest.changes)  # of the tree model
    epochs = contest.epochs(examples)
    if entry.trial is not None:
        epochs = max(1, round(epochs / TRIAL_SHARE))
    d, drop = contest.d_model, contest.dropout
    if drop is not None:
        base = replace(base, model=replace(base.model, input_dropout=drop, dropout=drop, output_dropout=drop))
    model = replace(
        base.model,
        encoder=entry.model,
        d_model=d,
        embedding_size=d,
        classifier_hidden=d,
        readout="root",
        word_pairs=0,
        tree_tokens=0,
        word_dropout=0.0,  # in a formal language every word counts
        options=dict(_model_options(contest.task, entry.model, d)),
    )
    training = replace(
        base.training,
        seed=entry.seed,
        batch_size=contest.batch_size,
        micro_batch_size=0,
        optimizer=contest.optimizer or base.training.optimizer,
        learning_rate=rate,
        max_epochs=epochs,
        selection="accuracy",
        patience=max(1, epochs // 2),
        plateau_patience=3,
    )
    return replace(base, model=model, training=training)


@cache
def _model_options(task: str, model: str, d_model: int) -> dict[str, Any]:
    """For the tree model, the options of the task's recipe; for others, those that give them its size."""
    search = load_recipe(task).model.options
    if model == TREE_MODEL:
        return search
    wanted = count_parameters(TREE_MODEL, d_model, **search)
    return equal_sized_options(model, d_model, wanted, **(search if model == "ssm-ebt-grc" else {}))
