"""Loads examples: those that a recipe learns from, with their words (from a task's files, or ListOps drawn on
the fly), and the splits that a model is evaluated on.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from beamtree.data.folders import data_folder, vectors_folder
from beamtree.data.hugging_face import find_encoder
from beamtree.data.own import NAME as OWN
from beamtree.data.own import own_task, split_file
from beamtree.data.task import REFUSE, BadRows, Example, Task, find_task
from beamtree.data.vectors import SHIPPED_FILE, find_vectors
from beamtree.data.words import VectorUse, Words, find_words
from beamtree.errors import BeamtreeError, nearest
from beamtree.files.lines import MissingFileError
from beamtree.training.recipe import Recipe, SampledSettings, TaskSettings, WordSettings
from beamtree.training.seen_rows import count_repeated, hash_rows

SKIP = "--set task.bad_rows=skip"  # the option for training
_DECIMAL = re.compile(r"[+-]?\d*[.,]\d+")
_WORDS_OF_A_LABEL = 5
_MANY_UNKNOWN = 0.3  # of the words of a split


@dataclass(frozen=True)
class LearningData:
    """The data that a run learns from; `words` is None for a task with a fixed language."""

    task: Task
    train: Sequence[Example]
    dev: Sequence[Example]
    words: Words | None = None
    path: Path | None = None  # of a user's own files
    place: Path | None = None  # the --data that finds them again; None if they are drawn

    def facts(self, settings: TaskSettings) -> dict[str, Any]:
        """What a report says about the data, as JSON."""
        return {
            "train": {"split": settings.train, "examples": len(self.train)},
            "dev": {"split": settings.dev, "examples": len(self.dev)},
            "words": None if self.words is None else self.words.facts(),
            **({} if self.path is None else {"path": str(self.path)}),
        }

    def hashes(self) -> bytes:
        """Of a user's own data, the hashes of training and dev rows, by which `eval` recognises them."""
        return b"" if self.task.own is None else hash_rows(self.train) + hash_rows(self.dev)


def load_learning_data(
    recipe: Recipe, given: Path | None = None, say: Callable[[str], None] = lambda sentence: None
) -> LearningData:
    """Load examples and words; `say` is told of skipped rows and of the word vectors that were found."""
    settings, bad_rows = recipe.task, BadRows.chosen(recipe.task.bad_rows, SKIP)
    task, train, dev = load_examples(settings, given, bad_rows)
    words = None
    if task.own is not None:
        for sentence in _about_own(task, data_folder(task.name, given), settings.dev, train, dev):
            say(sentence)
    if recipe.words.tokens_from:
        if task.words is None:
            raise BeamtreeError(f"words.tokens_from is for texts; task {task.name!r} has tokens of its own")
        words = Words.read_by(find_encoder(recipe.words.tokens_from, download=True))
        say(words.describe())
    elif task.words is not None:
        vectors = _choose_vectors(recipe, given)
        if vectors is None:
            say(f"no word vectors: every word learns its own {recipe.model.embedding_size} features")
        words = find_words(
            task,
            data_folder(task.name, given),
            train,
            dev,
            vectors,
            vector_use(recipe.words),
            names=(settings.train, settings.dev),
            bad_rows=bad_rows,
        )
        say(words.describe())
        if task.own is not None and max(words.unknown.values(), default=0.0) > _MANY_UNKNOWN:
            say(
                "many words are unknown; if the language has no blanks between words, use "
                "--set task.own.tokenizer=characters"
            )
    for sentence in bad_rows.report():
        say(sentence)
    folder = data_folder(task.name, given)
    return LearningData(
        task,
        train,
        dev,
        words,
        path=None if task.own is None else folder,
        place=None if settings.sampled.train else given or folder,
    )


def _about_own(
    task: Task, folder: Path, split: str, train: Sequence[Example], dev: Sequence[Example]
) -> Iterator[str]:
    """What a user should know about own data before training; `split` is the one that serves as dev."""
    assert task.own is not None
    kind = "pairs of texts" if task.sentences == 2 else "texts"
    yield f"{kind} with {len(task.labels)} labels: {_named(task.labels)}"
    if split == "dev" and (file := split_file(folder, "dev")) == split_file(folder, "train"):
        rows = len(train) + len(dev)
        yield f"no dev file: {len(dev):,} of the {rows:,} rows of {file} are held out as dev"
    if (doubt := _doubt(Counter(example.label for example in (*train, *dev)))) is not None:
        column = task.own["label"]
        yield f"{doubt}: is {column!r} the right column? --set task.own.label=NAME chooses another"
    for name, examples, result in (
        ("training", train, "the model cannot learn them"),
        ("dev", dev, "results on dev ignore them"),
    ):
        present = {example.label for example in examples}
        if missing := [label for label in task.labels if label not in present]:
            yield f"no {name} row is labelled {_named(missing)}: {result}"
    if repeated := count_repeated(dev, train):
        yield (
            f"{repeated:,} of {len(dev):,} dev rows have the text of a training row: results on dev will "
            "look better than on new texts"
        )


def _named(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - 20} more" if len(labels) > 20 else ""
    return ", ".join(labels[:20]) + more


def _doubt(labels: Mapping[str, int]) -> str | None:
    """What suggests that the column of the labels holds something else, such as texts or ratings."""
    kinds: dict[str, Callable[[str], object]] = {
        "most labels occur once": lambda label: labels[label] == 1,
        "most labels are decimal numbers": _DECIMAL.fullmatch,
        "most labels are sentences": lambda label: len(label.split()) > _WORDS_OF_A_LABEL,
    }
    for kind, fits in kinds.items():
        if 2 * sum(bool(fits(label)) for label in labels) > len(labels):
            return kind
    return None


def vector_use(settings: WordSettings) -> VectorUse:
    return VectorUse(
        learn_missing=None if settings.learn_missing < 0 else settings.learn_missing,
        every=settings.every,
        tuned=settings.learning_rate > 0,
        unit=settings.unit_deviation,
    )


def _choose_vectors(recipe: Recipe, given: Path | None) -> Path | None:
    choice, settings = recipe.words.vectors, recipe.task
    if choice == "none":
        return None
    if choice == "shipped":
        return SHIPPED_FILE
    if choice == "auto":
        english = settings.name != OWN or settings.own.tokenizer == "words"
        return find_vectors(vectors_folder(given)) or (SHIPPED_FILE if english else None)
    path = Path(os.path.expanduser(choice))
    found = find_vectors(path) if path.is_dir() else path
    if found is None:
        raise BeamtreeError(f"{path} holds no word vectors (.npy with a list of words, .zip or .txt)")
    return found


def load_examples(
    settings: TaskSettings, given: Path | None = None, bad_rows: BadRows = REFUSE
) -> tuple[Task, list[Example], list[Example]]:
    """The task, its training and its dev examples."""
    folder = data_folder(settings.name, given)
    task = own_task(folder, **asdict(settings.own)) if settings.name == OWN else find_task(settings.name)
    if settings.sampled.train:
        if task.name != "listops":
            raise BeamtreeError(
                f"task.sampled draws ListOps only; for {task.name!r} set task.sampled.train = 0"
            )
        return task, *_sample(settings.sampled)
    remedy = (
        f"`beamtree data check {folder.parent}` says where to get them"
        if task.words
        else f"`beamtree data {task.name} --out {folder}` makes them"
    )
    if task.own is None and not folder.is_dir():
        raise BeamtreeError(
            f"there are no {task.name} data in {folder}: {remedy}, or name their folder with --data"
        )
    try:
        train, dev = (list(task.read(folder, split, bad_rows)) for split in (settings.train, settings.dev))
    except MissingFileError as error:
        raise BeamtreeError(f"{error}; {remedy}") from error
    for split, examples in ((settings.train, train), (settings.dev, dev)):
        if not examples:
            shared = task.own is not None and split_file(folder, "dev") == split_file(folder, "train")
            needed = f"at least ten rows of at most {settings.own.longest:,} tokens are needed"
            why = f": one row in ten is held out for dev, so {needed}" if shared else ""
            raise BeamtreeError(f"the split {split!r} of {task.name} in {folder} has no examples{why}")
    return task, train, dev


def _sample(settings: SampledSettings) -> tuple[list[Example], list[Example]]:
    """Deep and shallow expressions in turn, all distinct, so that every prefix is half and half."""
    from beamtree.data.listops import sample_expressions

    if settings.dev < 1:
        raise BeamtreeError("task.sampled.dev must be at least 1: a run needs held-out expressions")
    count = settings.train + settings.dev
    length = {"min_length": settings.min_length, "max_length": settings.max_length}
    deep = sample_expressions((count + 1) // 2, seed=settings.seed, min_nesting=settings.deep, **length)
    shallow = sample_expressions(count // 2, seed=settings.seed, max_nesting=settings.deep - 1, **length)
    examples = [example for pair in zip(deep, shallow, strict=False) for example in pair] + deep[
        len(shallow) :
    ]
    return examples[settings.dev :], examples[: settings.dev]


@dataclass(frozen=True)
class Source:
    """A split to evaluate: its name in the results, and how to read it."""

    name: str
    read: Callable[[], Iterator[Example]]


def find_sources(
    task: Task, data: Sequence[Path], splits: Sequence[str] = (), bad_rows: BadRows = REFUSE
) -> list[Source]:
    """The splits in folders and files: in each folder those asked for, or all that are not for training."""
    for split in splits:
        if split not in task.splits:
            raise BeamtreeError(f"task {task.name!r} has no split {split!r}{nearest(split, task.splits)}")
    sources: list[Source] = []
    for path in data:
        if path.is_file():
            if splits:
                raise BeamtreeError(f"--split chooses from a folder, but {path} is a file")
            namesakes = sum(other.name == path.name for other in data)
            name = path.name if namesakes == 1 else str(path)
            sources.append(Source(name, partial(task.read_file, path, bad_rows)))
        else:
            sources += _splits_of(task, data_folder(task.name, path), splits, bad_rows)
    return sources


def _splits_of(task: Task, folder: Path, splits: Sequence[str], bad_rows: BadRows) -> list[Source]:
    # In the task's order, which is that of the paper's table, in whatever order they were asked for.
    wanted = [split for split in task.splits if (split in splits if splits else "train" not in split)]
    found = []
    for split in wanted:
        try:
            next(task.read(folder, split, bad_rows), None)
        except MissingFileError:
            if splits:
                raise
            continue
        found.append(Source(split, partial(task.read, folder, split, bad_rows)))
    if not found:
        raise BeamtreeError(f"{folder} holds no split of task {task.name!r}; wanted {', '.join(wanted)}")
    return found
