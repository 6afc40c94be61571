"""Published corpora: the releases' own formats beside tables, splits by rule or length, rebuilt ones."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from small_language import PAIRS, write_corpora

from beamtree.data import corpora
from beamtree.data.corpora import IMDB, MNLI, QQP, SNLI, SST5, phrases_of
from beamtree.data.task import BadRows, find_task
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
        ("(2 a))", "unbalanced brackets: ')' is outside the tree"),
        ("(2 a) (2 b)", "a second tree in the line"),
        ("(2 a) b", "unbalanced brackets: 'b' is outside the tree"),
        ("(2 (2 ) (2 b))", "a phrase has no words"),
        ("", "no tree"),
        ("(2 a\x01)", "there is a control character"),
        ("(2 " + "a " * 10_001 + ")", "a sentence has more than 10,000 words"),
    ],
)
def test_a_line_that_is_no_tree_is_an_error_or_skipped(line: str, reason: str, tmp_path: Path) -> None:
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


def test_dev_has_the_contrast_pairs_if_they_exist(reviews: Path) -> None:
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


def json_pairs(path: Path, count: int = 3) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {"gold_label": label, "sentence1": premise, "sentence2": hypothesis}
        for label, premise, hypothesis in (PAIRS * count)[:count]
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("folder", ["", "snli_1.0/"])
def test_snli_is_read_from_its_release(folder: str, tmp_path: Path) -> None:
    for part in ("train", "dev", "test", "test_hard"):
        json_pairs(tmp_path / f"{folder}snli_1.0_{part}.jsonl")
    json_pairs(tmp_path / "data" / "dataset.jsonl")
    revised = tmp_path / "NLI" / "revised_combined" / "test.tsv"
    revised.parent.mkdir(parents=True)
    revised.write_text("sentence1\tsentence2\tgold_label\nA man.\tA dog.\tneutral\n")
    for split in ("train", "dev", "test", "hard", "break"):
        assert [example.label for example in SNLI.read(tmp_path, split)] == [row[0] for row in PAIRS]
    (edited,) = SNLI.read(tmp_path, "counterfactual")
    assert edited.sentences == (("a", "man", "."), ("a", "dog", "."))


def test_long_sentences_are_for_testing_only(tmp_path: Path) -> None:
    rows = [f"neutral\tdog\t{'dog ' * length}" for length in (149, 150)]
    for part in ("train", "test"):
        (tmp_path / f"{part}.tsv").write_text("\n".join(["label\tpremise\thypothesis", *rows]) + "\n")
    assert [len(example.sentences[1]) for example in SNLI.read(tmp_path, "train")] == [149]
    assert [len(example.sentences[1]) for example in SNLI.read(tmp_path, "test")] == [149, 150]
    rows = [f"0\tdog\t{'dog ' * length}" for length in (150, 151)]
    for part in ("train", "test", "test_paws_wiki"):
        (tmp_path / f"{part}.tsv").write_text("\n".join(["label\tquestion1\tquestion2", *rows]) + "\n")
    for split in ("train", "test"):
        assert [len(example.sentences[1]) for example in QQP.read(tmp_path, split)] == [150]
    assert len(list(QQP.read(tmp_path, "paws-wiki"))) == 2


def test_mnli_holds_out_a_tenth_of_a_small_file_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "multinli_1.0" / "multinli_1.0_train.jsonl"
    path.parent.mkdir()
    rows = [{"gold_label": "neutral", "sentence1": f"man {i}", "sentence2": "dog"} for i in range(50)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    train, dev = (
        [example.sentences[0][1] for example in MNLI.read(tmp_path, split)] for split in ("train", "dev")
    )
    assert (len(train), len(dev)) == (45, 5)
    assert sorted(train + dev, key=int) == [str(i) for i in range(50)]
    # Frozen: with another draw a model of today would be judged by what it has learnt from.
    assert dev == ["37", "14", "21", "32", "22"]


def test_missing_stress_tests_are_rebuilt_by_the_published_rule(tmp_path: Path) -> None:
    rows = ["label\tpremise\thypothesis", "neutral\tA man sleeps.\tHe dreams", "neutral\tA man\tHe dreams?"]
    for name in ("dev_matched", "dev_mismatched"):
        (tmp_path / f"{name}.tsv").write_text("\n".join(rows) + "\n")
    truth = " and true is true" * 5
    for genres in ("matched", "mismatched"):
        negated = [" ".join(example.sentences[1]) for example in MNLI.read(tmp_path, f"negation-{genres}")]
        assert negated == ["he dreams and false is not true", "he dreams and false is not true ?"]
        longer = [" ".join(example.sentences[0]) for example in MNLI.read(tmp_path, f"length-{genres}")]
        assert longer == [f"a man sleeps{truth} .", f"a man{truth}"]
    json_pairs(tmp_path / "Negation" / "multinli_0.9_negation_matched.jsonl")
    assert len(list(MNLI.read(tmp_path, "negation-matched"))) == 3
    json_pairs(
        tmp_path / "Stress Tests" / "Length_Mismatch" / "multinli_0.9_length_mismatch_matched.jsonl", 2
    )
    assert len(list(MNLI.read(tmp_path, "length-matched"))) == 2
    with pytest.raises(MissingFileError, match=r"has no dev_conjnli\.tsv or conj_dev\.tsv"):
        list(MNLI.read(tmp_path, "conjnli"))


def test_conjnli_is_read_behind_its_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "conj_dev.tsv").write_text("\ufeffPremise\tHypothesis\tLabel\nA or b\tA\tneutral\n")
    (example,) = MNLI.read(tmp_path, "conjnli")
    assert (example.sentences, example.label) == ((("a", "or", "b"), ("a",)), "neutral")


def quora(path: Path, duplicates: int, others: int) -> None:
    rows = ['"id"\t"qid1"\t"qid2"\t"question1"\t"question2"\t"is_duplicate"']
    for i in range(duplicates + others):
        rows.append(f'"{i}"\t"1"\t"2"\t"What is {i}?"\t"Who is {i}?"\t"{int(i < duplicates)}"')
    path.write_text("\n".join(rows) + "\n")


def test_quoras_file_is_split_with_dev_and_test_balanced_and_nothing_lost(tmp_path: Path) -> None:
    quora(tmp_path / "quora_duplicate_questions.tsv", 40, 60)
    found = {split: list(QQP.read(tmp_path, split)) for split in ("train", "dev", "test")}
    labels = {split: Counter(example.label for example in examples) for split, examples in found.items()}
    assert labels["dev"] == labels["test"] == {"duplicate": 4, "different": 6}
    numbers = [int(example.sentences[0][2]) for examples in found.values() for example in examples]
    assert sorted(numbers) == list(range(100))
    # Frozen: with another draw a model of today would be judged by what it has learnt from.
    assert numbers[-20:] == [18, 16, 36, 25, 90, 46, 91, 94, 93, 74, 26, 30, 20, 1, 72, 71, 61, 44, 83, 87]
    quora(tmp_path / "quora_duplicate_questions.tsv", 0, 2)
    with (tmp_path / "quora_duplicate_questions.tsv").open("a") as file:
        file.write('"2"\t"1"\t"2"\t"What?"\t"Who?"\t"maybe"\n')
    with pytest.raises(BeamtreeError, match=r"line 4: the label is 'maybe', not one of 0, 1$"):
        list(QQP.read(tmp_path, "train"))


def test_qqp_is_read_from_tables_and_paws_from_its_release(tmp_path: Path) -> None:
    write_corpora(tmp_path)
    for split in ("train", "dev", "test", "paws-qqp", "paws-wiki"):
        assert len(list(QQP.read(tmp_path / "qqp", split))) == 16
    (tmp_path / "qqp" / "final").mkdir()
    (tmp_path / "qqp" / "final" / "dev.tsv").write_text(
        "id\tsentence1\tsentence2\tlabel\n1\tA b .\tB a .\t0\n"
    )
    (example,) = QQP.read(tmp_path / "qqp", "paws-wiki-dev")
    assert example.label == "different"
    for task in ("snli", "mnli", "qqp"):
        file = next((tmp_path / task).glob("train.tsv"))
        assert list(find_task(task).read_file(file))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the corpora are not at hand")
@pytest.mark.parametrize(
    ("task", "split"),
    [("snli", "break"), ("snli", "counterfactual"), ("mnli", "conjnli"), ("qqp", "paws-qqp")],
)
def test_test_sets_are_as_large_as_published(task: str, split: str) -> None:
    found = find_task(task)
    assert sum(1 for _ in found.read(SHARED / task, split)) == found.published[split]


def test_a_review_of_many_lines_is_bounded_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("neg/1_1.txt", "dull\nfilm\n"), ("pos/1_9.txt", "good\n" * 30)):
        path = tmp_path / "test" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    assert len(list(IMDB.read(tmp_path, "test"))) == 2
    monkeypatch.setattr(corpora, "LONGEST_LINE", 100)
    with pytest.raises(BeamtreeError, match=r"1_9\.txt has 150 bytes, more than the 100"):
        list(IMDB.read(tmp_path, "test"))
