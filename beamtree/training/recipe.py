"""A recipe holds every setting of a training run: task, model, training and words, as commented TOML."""

import os
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from beamtree.classifier.model import ModelSettings
from beamtree.data.own import is_table
from beamtree.data.task import BAD_ROWS
from beamtree.data.tokenizers import MAX_WORDS, TOKENIZERS
from beamtree.errors import BeamtreeError, nearest
from beamtree.files.bounded import is_file, shown
from beamtree.files.settings import Table, assignment, from_table, read_toml, setting, to_toml
from beamtree.training.recipes import NO_SETTINGS, put_on_top, shipped_recipes

_DRAWN = 10_000_000  # expressions that a run may draw: they are all in memory
_LONGEST_CHAIN = 10  # of recipes that extend one another


@dataclass(frozen=True)
class SampledSettings:
    train: int = setting(
        0, "expressions to draw for training; 0: read the task's files", least=0, most=_DRAWN
    )
    dev: int = setting(
        0, "expressions to draw for dev; none of them is in the training set", least=0, most=_DRAWN
    )
    min_length: int = setting(4, "tokens in the shortest expression; 4 excludes single digits", least=1)
    max_length: int = setting(50, "tokens in the longest expression", least=1, most=10_000)
    deep: int = setting(3, "half of the expressions have at least this depth, half less", least=2)
    seed: int = setting(0, "seed of the draw, separate from that of training", least=0)


@dataclass(frozen=True)
class OwnSettings:
    label: str = setting("label", "column with the label; if there is no `label`: sentiment, class or target")
    text: str = setting(
        "",
        "column with the text, or two columns with a comma between them for pairs; empty: text, sentence or "
        "review, or text1 and text2",
    )
    tokenizer: str = setting(
        "words",
        "words: English words in lower case; cased: the same without lower-casing; blanks: split at blanks; "
        "characters: one token per character",
        choices=tuple(TOKENIZERS),
    )
    longest: int = setting(
        MAX_WORDS, "most tokens in a row; longer rows of train and dev are left out", least=1, most=MAX_WORDS
    )


@dataclass(frozen=True)
class TaskSettings:
    name: str = setting(
        "listops", "listops, logic, filters, sst5, imdb, snli, mnli, qqp, or own for your own data"
    )
    train: str = setting("train", "split to learn from")
    dev: str = setting("dev", "split that determines learning rate, best model and early stopping")
    bad_rows: str = setting(
        "refuse", "what to do with rows that cannot be read: refuse or skip", choices=BAD_ROWS
    )
    sampled: SampledSettings = field(
        default_factory=SampledSettings,
        metadata={"help": "ListOps drawn on the fly instead of read from files"},
    )
    own: OwnSettings = field(
        default_factory=OwnSettings, metadata={"help": "How your own files are read (task own)"}
    )


@dataclass(frozen=True)
class WordSettings:
    vectors: str = setting(
        "auto",
        "file of pretrained vectors; auto: the file in the folder `vectors` of the data, else shipped; "
        "shipped: those that come with beamtree; none: learn all",
    )
    tokens_from: str = setting(
        "",
        "folder or hub name of a Hugging Face encoder that provides the token vectors instead; it is not "
        "trained, and the other settings of this section have no effect",
    )
    learn_missing: int = setting(
        -1,
        "words without a vector that occur this often in training learn one; 0: none; "
        "-1: 5 if the vectors lack even `a` and `i` or are shipped, else 0",
        least=-1,
    )
    every: bool = setting(False, "rare words of the data also use their vector in the file")
    unit_deviation: bool = setting(False, "scale the vectors to a standard deviation of 1")
    learning_rate: float = setting(
        0.0, "learning rate of the vectors of training words; 0: keep them fixed", least=0
    )


@dataclass(frozen=True)
class TrainingSettings:
    seed: int = setting(0, "determines initial weights, order of batches, dropout and noise", least=0)
    seeds: int = setting(
        1,
        "train this many models with consecutive seeds; several become an ensemble",
        least=1,
        most=100,
    )
    batch_size: int = setting(128, "examples per step, over all processes", least=1)
    micro_batch_size: int = setting(0, "examples per forward pass; 0: the whole batch", least=0)
    bucket: int = setting(5, "number of batches that are sorted by length together", least=1)
    optimizer: str = setting(
        "ranger", "ranger, as in all the paper's tables, or adamw", choices=("ranger", "adamw")
    )
    learning_rate: float = setting(1e-3, "halved when the dev score stops improving", least=0)
    weight_decay: float = setting(1e-2, "decoupled, on all parameters", least=0)
    clip: float = setting(1.0, "largest norm of the gradient; 0: no limit", least=0)
    max_epochs: int = setting(100, "largest number of epochs", least=1)
    selection: str = setting(
        "loss",
        "dev score: loss (lower is better), accuracy, macro_f1 (mean F1 over labels), or auto: macro_f1 if "
        "one label has over 70 % of the rows and class_weights is none, else loss",
        choices=("loss", "accuracy", "macro_f1", "auto"),
    )
    class_weights: str = setting(
        "none",
        "balanced: weight labels as if all were equally frequent, also in the dev loss",
        choices=("none", "balanced"),
    )
    patience: int = setting(
        4, "stop after more than this many epochs in a row without a better dev score", least=0
    )
    plateau_patience: int = setting(
        2, "halve the learning rate after more than this many such epochs", least=0
    )
    averaging: float = setting(
        0.0,
        "keep the running mean of the weights with this decay per step, e.g. 0.999; 0: off",
        least=0,
        most=0.999999,
    )
    precision: str = setting("float32", "float32, tf32 or bf16", choices=("float32", "tf32", "bf16"))
    deterministic: bool = setting(False, "same seed, same bytes, on a GPU too; slower")
    checkpoint_minutes: float = setting(5.0, "minutes between checkpoints within an epoch", least=0)


@dataclass(frozen=True)
class Recipe:
    task: TaskSettings = field(default_factory=TaskSettings, metadata={"help": "The task and its splits."})
    model: ModelSettings = field(default_factory=ModelSettings, metadata={"help": "The model."})
    training: TrainingSettings = field(
        default_factory=TrainingSettings, metadata={"help": "How it is trained."}
    )
    words: WordSettings = field(
        default_factory=WordSettings, metadata={"help": "Word vectors, for tasks with words of a language."}
    )

    def to_toml(self) -> str:
        return to_toml(self, "All settings of this run; it can be repeated or resumed with them.")


# Settings that may change when a run is resumed: when to stop and how often to save.
RESUMABLE = ("max_epochs", "patience", "checkpoint_minutes")


def load_recipe(name_or_path: str | Path, changes: Iterable[str] = ()) -> Recipe:
    """The recipe of a shipped name or a file, with `section.key=value` changes on top."""
    table = _read_table(str(name_or_path), Path.cwd(), ())
    recipe = from_table(Recipe, table, source=f"recipe {name_or_path}")
    for change in changes:
        table = put_on_top(table, assignment(change))
        recipe = from_table(Recipe, table, source=f"--set {change}")
    return recipe


def changed_settings(begun: Recipe, now: Recipe) -> dict[str, tuple[object, object]]:
    """What keeps a run from being resumed: settings other than RESUMABLE that differ, with both values.

    None stands for an option that one of them lacks.
    """
    before, after = (dict(_by_name(asdict(recipe), "")) for recipe in (begun, now))
    may_change = {f"training.{name}" for name in RESUMABLE}
    names = [name for name in dict.fromkeys((*before, *after)) if name not in may_change]
    return {
        name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)
    }


def _by_name(table: Table, prefix: str) -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _by_name(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def by_seed(recipe: Recipe) -> dict[str, Recipe]:
    """For several seeds, the recipe of each by the name of its folder; empty for a single seed."""
    first, count = recipe.training.seed, recipe.training.seeds
    if count == 1:
        return {}
    return {
        f"seed{seed}": replace(recipe, training=replace(recipe.training, seed=seed, seeds=1))
        for seed in range(first, first + count)
    }


def without_tree(recipe: Recipe) -> Recipe:
    """The same recipe for a model without a tree, which reads only the tokens."""
    return replace(recipe, model=replace(recipe.model, readout="tokens"))


def _read_table(name: str, folder: Path, extended_by: tuple[Path, ...]) -> Table:
    if name in shipped_recipes():
        return shipped_recipes()[name].settings
    path = _find(name, folder)
    if path in extended_by:
        chain = " extends ".join(str(link) for link in (*extended_by, path))
        raise BeamtreeError(f"recipes extend each other in a circle: {chain}")
    if len(extended_by) == _LONGEST_CHAIN:
        raise BeamtreeError(f"more than {_LONGEST_CHAIN} recipes extend one another, the last is {path}")
    table = read_toml(path)
    for name in NO_SETTINGS:  # in copies of shipped recipes
        table.pop(name, None)
    base = table.pop("extends", None)
    if base is None:
        return table
    if not isinstance(base, str):
        raise BeamtreeError(
            f"{path}: extends must be text in quotes, the name of a recipe, got {shown(base)}"
        )
    try:
        return put_on_top(_read_table(base, path.parent, (*extended_by, path)), table)
    except BeamtreeError as error:
        if extended_by:
            raise
        raise BeamtreeError(f"{path} extends {shown(base)}: {error}") from error


def _find(name: str, folder: Path) -> Path:
    path = folder / name
    if is_file(path):
        if is_table(path):
            command = shlex.join(["beamtree", "train", "own", "--data", name])
            raise BeamtreeError(f"{name} is no recipe: to train on a table, {command}")
        return Path(os.path.abspath(path))  # a link keeps its own name in messages
    if name.endswith(".toml"):
        raise BeamtreeError(f"there is no file {shown(name, most=400)}")  # a path is told by its end
    raise BeamtreeError(
        f"there is no recipe {shown(name)}, neither shipped nor a file{nearest(name, shipped_recipes())}"
    )
