"""A recipe says everything that decides a training run: task, model, training; commented TOML on disk."""

import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from beamtree.classifier.model import ModelSettings
from beamtree.data.own import is_table
from beamtree.data.task import BAD_ROWS
from beamtree.data.tokenizers import MAX_WORDS, TOKENIZERS
from beamtree.errors import BeamtreeError, nearest
from beamtree.files.bounded import is_file, shown
from beamtree.files.settings import Table, assignment, from_table, merge_tables, read_toml, setting, to_toml

_DRAWN = 10_000_000  # expressions that a run may draw: they are all in memory
_LONGEST_CHAIN = 10  # of recipes that extend one another


@dataclass(frozen=True)
class SampledSettings:
    train: int = setting(
        0, "expressions to draw for training; 0 reads the task's files", least=0, most=_DRAWN
    )
    dev: int = setting(
        0, "expressions to draw for the held-out set, none of them in training", least=0, most=_DRAWN
    )
    min_length: int = setting(4, "tokens in the shortest; 4 leaves out lone digits", least=1)
    max_length: int = setting(50, "tokens in the longest", least=1, most=10_000)
    deep: int = setting(3, "half of the expressions nest operators at least so deep, half less deep", least=2)
    seed: int = setting(0, "the draw's own seed, so that the data stay the same from run to run", least=0)


@dataclass(frozen=True)
class OwnSettings:
    label: str = setting(
        "label", "column with the label; where there is no `label`: sentiment, class or target"
    )
    text: str = setting(
        "",
        "column with the text, or both of a pair with a comma between; empty: text, sentence or review, or "
        "text1 and text2",
    )
    tokenizer: str = setting(
        "words",
        "words: English in lower case; cased: the same in the letters they have; blanks: whatever stands "
        "between blanks; characters: each of them",
        choices=tuple(TOKENIZERS),
    )
    longest: int = setting(
        MAX_WORDS, "tokens; longer rows of train and dev are left out", least=1, most=MAX_WORDS
    )


@dataclass(frozen=True)
class TaskSettings:
    name: str = setting(
        "listops", "listops, logic, filters, sst5, imdb, snli, mnli, qqp, or own for your own files"
    )
    train: str = setting("train", "split to learn from")
    dev: str = setting("dev", "split that decides about learning rate, best model and early stopping")
    bad_rows: str = setting(
        "refuse", "what becomes of rows that cannot be read: refuse or skip", choices=BAD_ROWS
    )
    sampled: SampledSettings = field(
        default_factory=SampledSettings,
        metadata={"help": "ListOps drawn on the fly instead of read from files"},
    )
    own: OwnSettings = field(
        default_factory=OwnSettings, metadata={"help": "How files of your own are read (task own)"}
    )


@dataclass(frozen=True)
class WordSettings:
    vectors: str = setting(
        "auto",
        "file of ready-made vectors; auto: the one in the data's folder `vectors`, else shipped; "
        "shipped: those that come with beamtree; none: learn all",
    )
    tokens_from: str = setting(
        "",
        "folder of a Hugging Face encoder, or its name on the hub, that gives tokens their vectors instead; "
        "it is not trained, and of this section nothing else counts",
    )
    learn_missing: int = setting(
        -1,
        "words without a vector seen so often in training learn their own; 0: none; "
        "-1: 5 if the vectors lack even `a` and `i` or are shipped, else 0",
        least=-1,
    )
    every: bool = setting(
        False, "words of the data keep the vector that a file has for them however rare they are"
    )
    unit_deviation: bool = setting(False, "vectors are scaled so that their numbers have deviation 1")
    learning_rate: float = setting(
        0.0, "vectors of words seen in training learn at this rate; 0: they stay as they are", least=0
    )


@dataclass(frozen=True)
class TrainingSettings:
    seed: int = setting(0, "decides initial weights, order of batches, dropout and noise", least=0)
    seeds: int = setting(
        1,
        "models trained one after another, with this seed and the next ones; several are kept as an ensemble",
        least=1,
        most=100,
    )
    batch_size: int = setting(128, "examples in a step, over all processes", least=1)
    micro_batch_size: int = setting(0, "examples in one forward pass; 0 takes the whole batch", least=0)
    bucket: int = setting(5, "batches that are sorted by length together", least=1)
    optimizer: str = setting(
        "ranger", "ranger, as in all the paper's tables, or adamw", choices=("ranger", "adamw")
    )
    learning_rate: float = setting(1e-3, "halved when the dev score stops rising", least=0)
    weight_decay: float = setting(1e-2, "decoupled, on every parameter", least=0)
    clip: float = setting(1.0, "largest 2-norm of a step's gradient; 0 sets no limit", least=0)
    max_epochs: int = setting(100, "passes over the training split at most", least=1)
    selection: str = setting(
        "loss",
        "what the dev score is: loss (lower is better), accuracy, macro_f1 (the mean F1 of the labels), or "
        "auto: macro_f1 where one label has over 70 % of the rows and class_weights are none, else loss",
        choices=("loss", "accuracy", "macro_f1", "auto"),
    )
    class_weights: str = setting(
        "none",
        "balanced: labels are learnt as if all were equally frequent, and have the same part in the dev loss",
        choices=("none", "balanced"),
    )
    patience: int = setting(4, "epochs in a row without a better dev score that are tolerated", least=0)
    plateau_patience: int = setting(2, "such epochs that are tolerated before the rate is halved", least=0)
    averaging: float = setting(
        0.0,
        "the model kept is the running mean of the weights with this decay a step, e.g. 0.999; 0: none",
        least=0,
        most=0.999999,
    )
    precision: str = setting("float32", "float32, tf32 or bf16", choices=("float32", "tf32", "bf16"))
    deterministic: bool = setting(False, "same bytes from the same seed on a GPU too; slower")
    checkpoint_minutes: float = setting(5.0, "time between checkpoints inside an epoch", least=0)


@dataclass(frozen=True)
class Recipe:
    task: TaskSettings = field(
        default_factory=TaskSettings, metadata={"help": "What is learnt, and from which splits."}
    )
    model: ModelSettings = field(default_factory=ModelSettings, metadata={"help": "What learns it."})
    training: TrainingSettings = field(
        default_factory=TrainingSettings, metadata={"help": "How it is learnt."}
    )
    words: WordSettings = field(
        default_factory=WordSettings, metadata={"help": "Where the words of a language get their vectors."}
    )

    def to_toml(self) -> str:
        return to_toml(self, "Every setting of this run, so that it can be repeated or resumed.")


SHIPPED = Path(__file__).resolve().parent / "recipes"

# What may change between an interruption and its continuation: when to stop and how often to save.
RESUMABLE = ("max_epochs", "patience", "checkpoint_minutes")


def shipped_recipes() -> tuple[str, ...]:
    """The names of the recipes that come with the package."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.toml")))


def load_recipe(name_or_path: str | Path, changes: Iterable[str] = ()) -> Recipe:
    """The recipe of a shipped name or a file, with `section.key=value` changes on top."""
    table = _read_table(str(name_or_path), Path.cwd(), ())
    recipe = from_table(Recipe, table, source=f"recipe {name_or_path}")
    for change in changes:
        table = _put_on_top(table, assignment(change))
        recipe = from_table(Recipe, table, source=f"--set {change}")
    return recipe


def same_but_for_stopping(recipe: Recipe, other: Recipe) -> bool:
    """Whether a run begun with one recipe may be continued with the other."""
    kept = {name: getattr(other.training, name) for name in RESUMABLE}
    return replace(recipe, training=replace(recipe.training, **kept)) == other


def by_seed(recipe: Recipe) -> dict[str, Recipe]:
    """The recipe of every seed alone, by the name of its folder; none if there is only one."""
    first, count = recipe.training.seed, recipe.training.seeds
    if count == 1:
        return {}
    return {
        f"seed{seed}": replace(recipe, training=replace(recipe.training, seed=seed, seeds=1))
        for seed in range(first, first + count)
    }


def without_tree(recipe: Recipe) -> Recipe:
    """The same for a model that reads the tokens alone."""
    return replace(recipe, model=replace(recipe.model, readout="tokens"))


def _read_table(name: str, folder: Path, extended_by: tuple[Path, ...]) -> Table:
    path = _find(name, folder)
    if path in extended_by:
        chain = " extends ".join(str(link) for link in (*extended_by, path))
        raise BeamtreeError(f"recipes extend each other in a circle: {chain}")
    if len(extended_by) == _LONGEST_CHAIN:
        raise BeamtreeError(f"more than {_LONGEST_CHAIN} recipes extend one another, the last is {path}")
    table = read_toml(path)
    base = table.pop("extends", None)
    if base is None:
        return table
    if not isinstance(base, str):
        raise BeamtreeError(
            f"{path}: extends must be text in quotes, the name of a recipe, got {shown(base)}"
        )
    try:
        return _put_on_top(_read_table(base, path.parent, (*extended_by, path)), table)
    except BeamtreeError as error:
        if extended_by:
            raise
        raise BeamtreeError(f"{path} extends {shown(base)}: {error}") from error


def _put_on_top(base: Table, over: Table) -> Table:
    """`over` on `base`; an encoder's options do not outlive it."""
    merged = merge_tables(base, over)
    old, new = base.get("model"), over.get("model")
    if (
        isinstance(old, dict)
        and isinstance(new, dict)
        and new.get("encoder", old.get("encoder")) != old.get("encoder")
    ):
        merged["model"] = {**merged["model"], "options": new.get("options", {})}
    return merged


def _find(name: str, folder: Path) -> Path:
    if name in shipped_recipes():
        return SHIPPED / f"{name}.toml"
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
