"""What is compared, and the rules of fair play: models, splits, learning rates, seeds, steps.

Every model sees the same data for the same number of steps at most, with the same early stopping. Its
learning rate is chosen among the same three on dev, by one seed and a fifth of the steps, before it is
trained with every seed. Test splits are looked at once, after training.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from beamtree.data.task import Task
from beamtree.errors import BeamtreeError, nearest
from beamtree.training.recipe import Recipe, load_recipe
from beamtree.zoo.by_name import compared_encoder_names, count_parameters, encoder_names, equal_sized_options

TREE_MODEL = "ebt-grc"  # whose size the others have
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
TRIAL_SHARE = 5  # a trial of a learning rate has the fifth part of the steps
TRAINING = "train"  # the name under which training examples are measured


@dataclass(frozen=True)
class Contest:
    """One task: where models are measured, and how long they learn.

    `points` are places on the axis of the picture, each with its split; the first `inside` of them are like
    training. Examples beyond the limits are left out.
    """

    task: str
    points: Mapping[str, str]
    inside: int
    axis: str
    by_depth: bool = False  # a second picture, over the nesting of all examples
    d_model: int = 128
    batch_size: int = 128
    rates: tuple[float, ...] = (3e-4, 1e-3, 3e-3)
    steps: int = 12_500
    most_epochs: int | None = None  # of a small table, which so many steps would pass over for hours
    dropout: float | None = None  # None: as in the task's recipe
    optimizer: str | None = None
    most_train: int | None = None
    most_dev: int | None = None
    most_test: int | None = None
    measured_of_train: int = 2000
    changes: tuple[str, ...] = ()  # to how the task's recipe reads data: section.key=value

    def epochs(self, examples: int) -> int:
        """So many passes over the training examples take about as many steps as there may be."""
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
    """The contest on a task; `tests` are files of the user's that take the place of its test splits, and
    `changes` may be made to how its data are read."""
    for change in changes:
        if not change.startswith(("task.", "words.")):
            raise BeamtreeError(
                f"--set {change}: of a comparison task.… and words.… can be set; model and training are "
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
    """Their names without folder and ending, where these tell them apart."""
    stems = [Path(name).stem for name in files]
    return stems if len(set(stems)) == len(stems) else list(files)


@dataclass(frozen=True)
class Entry:
    """One run: a trial of a learning rate, or a seed at the rate that was chosen."""

    model: str
    seed: int = 0
    trial: float | None = None  # the rate

    @property
    def name(self) -> str:
        return f"{self.model}-seed{self.seed}" if self.trial is None else f"{self.model}-rate{self.trial:g}"


def plan(contest: Contest, models: Sequence[str], seeds: int) -> list[Entry]:
    """All runs, those first that others wait for. One rate needs no trial."""
    rates = contest.rates if len(contest.rates) > 1 else ()
    trials = [Entry(model, trial=rate) for model in models for rate in rates]
    return trials + [Entry(model, seed) for seed in range(seeds) for model in models]


def trials_of(contest: Contest, model: str) -> list[Entry]:
    return [entry for entry in plan(contest, [model], 0) if entry.trial is not None]


def choose_models(task: Task, names: Sequence[str], *, quick: bool) -> tuple[str, ...]:
    """The models named, or all of a contest that the task has the trees for."""
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
    """Everything that decides a run: the task's recipe, with what is the same for all models put on top."""
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
    """The tree model's of the task's recipe, and for others those that give them its size."""
    search = load_recipe(task).model.options
    if model == TREE_MODEL:
        return search
    wanted = count_parameters(TREE_MODEL, d_model, **search)
    return equal_sized_options(model, d_model, wanted, **(search if model == "ssm-ebt-grc" else {}))
