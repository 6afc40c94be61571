"""Small corpora of the language tasks as tables, and word vectors for some of their words."""

from itertools import cycle, islice
from pathlib import Path

import numpy as np

from beamtree.data.own import own_task
from beamtree.data.task import Example, Task, find_task
from beamtree.data.words import Words, find_words

TASKS = ("sst5", "imdb", "snli", "mnli", "qqp")
WIDTH = 6

TREES = (
    "(3 (2 It) (4 (4 (2 's) (4 (3 lovely) (2 film))) (2 .)))",
    "(1 (2 (2 A) (1 dull)) (2 (2 film) (2 -RRB-)))",
    "(0 (1 awful))",
)
REVIEWS = (
    ("1", "A lovely film.<br /><br />I liked it!"),
    ("0", "A dull film; I didn't like it..."),
    ("1", 'They said "lovely", and it is.'),
    ("0", "Awful."),
)
PAIRS = (
    ("entailment", "A man sleeps.", "A person sleeps."),
    ("contradiction", "A man sleeps on the bench", "The man doesn't sleep!"),
    ("neutral", "Two women talk.", "They are sisters."),
)
QUESTIONS = (
    ("1", "How do I sleep well?", "How can I sleep better ?"),
    ("0", "What is a film?", "Who is a man?"),
)


def write_corpora(root: Path, *, vectors: bool = True) -> Path:
    """A folder for each task, and one of vectors, as `$BEAMTREE_DATA` has them."""
    for name in ("train", "dev", "test"):
        _write(root / "sst5" / f"{name}.txt", _repeat(TREES, 8))
    reviews = ["\t".join(row) for row in _repeat(REVIEWS, 12)]
    long = f"1\t{'a very long film ' * 55}"
    _write(root / "imdb" / "train.tsv", ["label\ttext", *reviews, long, long])
    for name in ("test", "test_contrast", "test_counterfactual"):
        _write(root / "imdb" / f"{name}.tsv", ["label\ttext", *reviews])
    pairs = ["label\tpremise\thypothesis", *("\t".join(row) for row in _repeat(PAIRS, 24))]
    for name in ("train", "dev", "test", "test_hard", "test_breaking_nli", "test_counterfactual"):
        _write(root / "snli" / f"{name}.tsv", pairs)
    for name in ("train", "dev_matched", "dev_mismatched", "dev_conjnli"):
        _write(root / "mnli" / f"{name}.tsv", pairs)
    questions = ["label\tquestion1\tquestion2", *("\t".join(row) for row in _repeat(QUESTIONS, 16))]
    for name in ("train", "dev", "test", "test_paws_qqp", "test_paws_wiki"):
        _write(root / "qqp" / f"{name}.tsv", questions)
    _write(root / "own" / "train.tsv", ["label\ttext", *("\t".join(row) for row in _repeat(REVIEWS, 40))])
    if vectors:
        write_vectors(root / "vectors")
    return root


def write_vectors(folder: Path) -> Path:
    """Vectors of words of the corpora, without `a` and `i`, beside the list of their words."""
    words = ["film", "lovely", "dull", "awful", "man", "sleeps", "sleep", "like", "is", "it", ".", "how"]
    _write(folder / "small_words.txt", words)
    table = np.random.RandomState(0).randn(len(words), WIDTH).astype(np.float16)
    np.save(folder / "small.npy", table)
    return folder / "small.npy"


def find_small(task: str, root: Path) -> Task:
    """The task of that name; data of one's own have the labels that are found in them."""
    return own_task(root / task) if task == "own" else find_task(task)


def examples_of(task: str, root: Path) -> tuple[list[Example], list[Example], Words]:
    """Training and dev examples of a small corpus, and their words."""
    found = find_small(task, root)
    train, dev = (list(found.read(root / task, split)) for split in ("train", "dev"))
    vectors = root / "vectors" / "small.npy"
    return train, dev, find_words(found, root / task, train, dev, vectors if vectors.exists() else None)


def _repeat(rows, count):
    return list(islice(cycle(rows), count))


def _write(path: Path, lines) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
