"""SST5 and IMDB: phrases of trees, reviews by length, the releases' own formats."""

import shutil
from collections import Counter
from pathlib import Path

import pytest
from small_language import write_corpora

from beamtree.data.corpora import IMDB, SST5, phrases_of
from beamtree.data.task import BadRows
from beamtree.errors import BeamtreeError
from beamtree.files.lines import MissingFileError

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def test_every_phrase_of_a_tree_is_an_example_and_the_sentence_is_the_last() -> None:
    found = phrases_of("(3 (2 It) (4 (1 's) (0 -LRB-)))")
    phrases = [(" ".join(example.sentences[0]), example.label) for example in found]
    assert phrases == [
        ("it", "neutral"),
        ("'s", "negative"),
        ("(", "very negative"),
        ("'s (", "very positive"),
        ("it 's (", "positive"),
    ]
    (word,) = phrases_of("(2 and\\/or)")
    assert word.sentences == (("and/or",),)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("(5 (2 a) (2 b))", "the label is '5', not one of 0, 1, 2, 3, 4"),
        ("(x a)", "the label is 'x'"),
        ("(" + "9" * 5000 + " a)", "the label is '99999"),
        ("(2 (2 a) (2 b)", "unbalanced brackets: 1 never closed"),
        ("(2 a))", "unbalanced brackets: ')' stands outside the tree"),
        ("(2 a) (2 b)", "a second tree in the line"),
        ("(2 a) b", "unbalanced brackets: 'b' stands outside the tree"),
        ("(2 (2 ) (2 b))", "a phrase has no words"),
        ("", "no tree"),
        ("(2 a\x01)", "there is a control character"),
        ("(2 " + "a " * 10_001 + ")", "a sentence has more than 10,000 words"),
    ],
)
def test_a_line_that_is_no_tree_is_told_or_skipped(line: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "test.txt"
    path.write_text(f"(2 (2 a) (3 b))\n{line}\n(1 (2 a) (3 b))\n")
    with pytest.raises(BeamtreeError) as caught:
        list(SST5.read(tmp_path, "test"))
    assert str(caught.value).startswith(f"{path}, line 2: {reason}")
    skipped = BadRows(skip=True)
    assert [example.label for example in SST5.read(tmp_path, "test", skipped)] == ["neutral", "negative"]
    assert skipped.count == 1


def test_training_has_the_phrases_dev_and_test_the_sentences(tmp_path: Path) -> None:
    write_corpora(tmp_path)
    counts = {split: len(list(SST5.read(tmp_path / "sst5", split))) for split in SST5.splits}
    assert counts == {"train": 52, "train-sentences": 8, "dev": 8, "test": 8}
    with pytest.raises(BeamtreeError, match="sst5 has no split 'tset'; did you mean 'test'"):
        list(SST5.read(tmp_path / "sst5", "tset"))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the corpora are not at hand")
def test_the_treebank_has_as_many_phrases_as_published() -> None:
    assert sum(1 for _ in SST5.read(SHARED / "sst5", "train")) == 318_582
    for split in ("dev", "test"):
        assert sum(1 for _ in SST5.read(SHARED / "sst5", split)) == SST5.published[split]


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    """Two reviews of every length around the limits, the part they are of their only word."""
    lengths = (1, 199, 200, 201, 300, 301)
    for part in ("train", "test"):
        rows = [f"{label}\t{f'{part} ' * length}" for length in lengths for label in (0, 1)]
        (tmp_path / f"{part}.tsv").write_text("\n".join(["label\ttext", *rows]) + "\n")
    return tmp_path


def test_reviews_go_to_splits_by_their_length(reviews: Path) -> None:
    def lengths(split: str, part: str) -> list[int]:
        sentences = [example.sentences[0] for example in IMDB.read(reviews, split)]
        assert all(set(words) == {part} for words in sentences)
        return sorted({len(words) for words in sentences})

    assert lengths("train", "train") == lengths("test", "test") == [1, 199, 200]
    assert lengths("dev", "train") == [201, 300]
    assert lengths("test-long", "test") == [1, 199, 200, 201, 300, 301]
    assert len(list(IMDB.read_file(reviews / "test.tsv"))) == 12
    (reviews / "test.tsv").write_text("label\ttext\n2\tgood\n")
    with pytest.raises(BeamtreeError, match="line 2: the label is '2', not one of 0, 1, Negative, Positive"):
        list(IMDB.read_file(reviews / "test.tsv"))


def test_dev_has_the_contrast_pairs_where_they_are_there(reviews: Path) -> None:
    before = len(list(IMDB.read(reviews, "dev")))
    for kind in ("original", "contrast"):
        (reviews / f"dev_{kind}.tsv").write_text("Sentiment\tText\nPositive\tGood.\nNegative\tBad.\n")
    assert len(list(IMDB.read(reviews, "dev"))) == before + 4
    with pytest.raises(MissingFileError, match=r"has no test_contrast\.tsv or IMDb/data/test_contrast\.tsv"):
        list(IMDB.read(reviews, "contrast"))


def test_the_release_is_read_from_its_folders_without_the_lists_of_addresses(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for name, text in (("pos", "Good!<br /><br />Very\tgood."), ("neg", "Bad.")):
            folder = tmp_path / "aclImdb" / part / name
            folder.mkdir(parents=True)
            (folder / "0_9.txt").write_text(text)
        (tmp_path / "aclImdb" / part / "urls_pos.txt").write_text("http://example.org\n")
    for split in ("train", "test"):
        found = {example.label: example.sentences[0] for example in IMDB.read(tmp_path, split)}
        assert found == {"negative": ("bad", "."), "positive": ("good", "!", "very", "good", ".")}
    broken = tmp_path / "aclImdb" / "train" / "neg" / "1_1.txt"
    broken.write_bytes(b"Caf\xe9")
    with pytest.raises(BeamtreeError, match=r"neg/1_1\.txt, line 1: the byte 0xe9 is not UTF-8"):
        list(IMDB.read(tmp_path, "train"))
    assert len(list(IMDB.read(tmp_path, "train", BadRows(skip=True)))) == 2
    assert list(IMDB.read(tmp_path, "dev", BadRows(skip=True))) == []
    shutil.rmtree(tmp_path / "aclImdb" / "test" / "neg")
    with pytest.raises(BeamtreeError, match=r"has no test\.tsv or aclImdb/test/\{neg,pos\}"):
        list(IMDB.read(tmp_path, "test"))


def test_line_breaks_of_a_review_are_blanks() -> None:
    assert IMDB.tokenize("Good.<br />Bad<br>.") == ("good", ".", "bad", ".")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the corpora are not at hand")
def test_the_edited_reviews_are_as_many_as_published() -> None:
    for split in ("contrast", "counterfactual"):
        labels = Counter(example.label for example in IMDB.read(SHARED / "imdb", split))
        assert labels == {"negative": 245, "positive": 243}
