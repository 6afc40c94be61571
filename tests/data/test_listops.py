"""The ListOps files: generated as published, read with every label checked, refused with the line named."""

import gzip
import hashlib
import lzma
import statistics
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from chi_square import assert_same_law
from published import brackets

from beamtree.data.formal import nesting
from beamtree.data.listops import TASK, generate_listops, read, read_file
from beamtree.data.listops import draws as listops_draws
from beamtree.data.listops.draws import DRAWS, Draw
from beamtree.data.listops.language import evaluate
from beamtree.data.listops.process import Choice, Tree, free_process
from beamtree.data.listops.splits import SPLITS
from beamtree.data.task import Example, Tokens
from beamtree.errors import BeamtreeError

SOUND = "9\t( ( ( [MAX 2 ) 9 ) ] )\n"


def tokens_of(line: str) -> Tokens:
    return tuple(line.split("\t")[1].replace("( ", "").replace(" )", "").split())


class CountedRoot:
    def __init__(self, root: Choice[Tree]) -> None:
        self.root, self.draws = root, 0

    def draw(self, getrandbits) -> Tree:
        self.draws += 1
        return self.root.draw(getrandbits)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The base set of a fresh seed at full size, and how many expressions were drawn for it."""
    folder = tmp_path_factory.mktemp("base")
    roots: list[CountedRoot] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            listops_draws,
            "free_process",
            lambda process: roots.append(CountedRoot(free_process(process))) or roots[-1],
        )
        generate_listops(folder, seed=2023, splits=["train", "dev", "near-iid"])
    return folder, roots[0].draws


def test_base_set_is_100000_distinct_expressions_in_two_files(base: tuple[Path, int]) -> None:
    train = (base[0] / "train_d20s.tsv").read_text().splitlines()
    test = (base[0] / "test_d20s.tsv").read_text().splitlines()
    assert (len(train), len(test)) == (90_000, 10_000)
    assert len({*train, *test}) == 100_000
    assert sum(len(tokens_of(line)) == 1 for line in [*train, *test]) == 10


def test_dev_is_the_head_of_the_train_file_and_train_its_short_rest(base: tuple[Path, int]) -> None:
    lines = (base[0] / "train_d20s.tsv").read_text().splitlines()
    expected = [Example((tokens_of(line),), line[0]) for line in lines]
    assert list(read(base[0], "dev")) == expected[:1000]
    train = list(read(base[0], "train"))
    assert train == [example for example in expected[1000:] if len(example.sentences[0]) <= 100]
    assert max(len(example.sentences[0]) for example in train) == 100
    # 89.35 % of 89,000; four standard deviations are 370.
    assert abs(len(train) - 79_520) < 370


def test_base_set_agrees_with_the_figures_of_the_published_test_file(base: tuple[Path, int]) -> None:
    folder, draws = base
    examples = list(read(folder, "near-iid"))
    lengths = [len(example.sentences[0]) for example in examples]
    # Two samples of 10,000: a difference has √2 times the deviation of one; four of these are allowed.
    two_samples = 4 * (2 / 10_000) ** 0.5
    assert abs(statistics.mean(lengths) - 42.8) < two_samples * statistics.stdev(lengths)
    assert abs(statistics.median(lengths) - 16) <= 1
    share = sum(length <= 100 for length in lengths) / 10_000
    assert abs(share - 0.893) < two_samples * (share * (1 - share)) ** 0.5
    assert 600 < max(lengths) < 1500
    assert lengths.count(1) <= 5
    # A rerun of the original process took about 515,000; the deviation is some hundreds.
    assert abs(draws - 515_000) < 5_000

    published = [2093, 2339, 1429, 893, 611, 519, 404, 287, 230, 185, 158, 113, 104, 88, 81, 48, 61, 32, 324]
    depths = Counter(nesting(example.sentences[0]) for example in examples)
    assert max(depths) == 19
    assert_same_law(depths, dict(enumerate(published, start=1)))
    short = {length: count for length, count in Counter(lengths).items() if 4 <= length <= 10}
    assert_same_law(short, dict(enumerate([51, 423, 860, 917, 328, 450, 501], start=4)))
    labels = Counter(int(example.label) for example in examples)
    assert_same_law(labels, dict(enumerate([1127, 1038, 967, 978, 991, 969, 895, 930, 964, 1141])))


def test_both_files_of_the_base_set_have_one_law(base: tuple[Path, int]) -> None:
    train = (base[0] / "train_d20s.tsv").read_text().splitlines()[:10_000]
    test = (base[0] / "test_d20s.tsv").read_text().splitlines()
    assert_same_law(
        Counter(len(tokens_of(line)) for line in train), Counter(len(tokens_of(line)) for line in test)
    )


def small(draw: Draw) -> Draw:
    """The same draw with few lines, and expressions whose law is quickly made."""
    lines = {"train_d20s.tsv": 1300}
    lengths = draw.lengths and (draw.lengths[0], min(draw.lengths[1], draw.lengths[0] + 60))
    return replace(draw, files={file: lines.get(file, 30) for file in draw.files}, lengths=lengths)


@pytest.fixture
def small_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ("test_400", "test_500", "test_600", "test_700", "test_800", "test_900")
    draws = [small(draw) for draw in DRAWS if not min(draw.files).startswith(kept)]
    monkeypatch.setattr(listops_draws, "DRAWS", draws)


ALL_BUT_LONG = [
    name for name in SPLITS if name not in {f"{low}-{low + 100}" for low in range(400, 1000, 100)}
]
CONDITIONS = {
    "train": (1, 100, 0, 19, 5),
    "dev": (1, 5000, 0, 19, 5),
    "near-iid": (1, 5000, 0, 19, 5),
    "200-300": (201, 299, 0, 19, 5),
    "300-400": (301, 399, 0, 19, 5),
    "5-args": (100, 1000, 0, 8, 5),
    "10-args": (100, 1000, 0, 8, 10),
    "15-args": (100, 1000, 0, 8, 15),
    "lra-train": (501, 1999, 0, 9, 10),
    "lra-valid": (501, 1999, 0, 9, 10),
    "lra-test": (501, 1999, 0, 9, 10),
    "depth-train": (20, 100, 0, 6, 5),
    "depth-dev": (20, 100, 7, 7, 5),
    "depth-test": (20, 100, 8, 19, 5),
}


def most_arguments(tokens: Tokens) -> int:
    counts, most = [0], 0
    for token in tokens:
        if token.startswith("["):
            counts.append(0)
            continue
        if token == "]":
            most = max(most, counts.pop())
        counts[-1] += 1
    return most


@pytest.mark.usefixtures("small_draws")
def test_every_split_is_written_under_its_published_name_and_keeps_its_condition(tmp_path: Path) -> None:
    files = generate_listops(tmp_path, seed=1, splits=ALL_BUT_LONG)
    assert files == {split: tmp_path / SPLITS[split].file for split in ALL_BUT_LONG}
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in files.values()}
    most_of: dict[int, int] = {}
    for split, (shortest, longest, shallowest, deepest, arguments) in CONDITIONS.items():
        examples = list(read(tmp_path, split))
        assert len(set(examples)) == len(examples) >= 30 - 1
        for example in examples:
            (tokens,) = example.sentences
            assert shortest <= len(tokens) <= longest
            assert shallowest <= nesting(tokens) <= deepest
            most_of[arguments] = max(most_of.get(arguments, 0), most_arguments(tokens))
            assert example.label == str(evaluate(tokens))
    assert most_of == {5: 5, 10: 10, 15: 15}
    assert set(CONDITIONS) == set(ALL_BUT_LONG)


@pytest.mark.usefixtures("small_draws")
def test_bytes_depend_on_the_seed_and_on_nothing_else(tmp_path: Path) -> None:
    together = generate_listops(tmp_path / "a", seed=1, splits=["dev", "200-300", "300-400", "depth-dev"])
    for split, path in together.items():
        alone = generate_listops(tmp_path / split, seed=1, splits=[split])[split]
        assert alone.read_bytes() == path.read_bytes()
        assert [file.name for file in alone.parent.iterdir()] == [path.name]
    other = generate_listops(tmp_path / "b", seed=2, splits=["200-300"])["200-300"]
    assert other.read_bytes() != together["200-300"].read_bytes()


def test_bytes_of_seed_0_are_frozen(tmp_path: Path) -> None:
    files = generate_listops(tmp_path, seed=0, splits=["200-300", "depth-dev", "depth-test"])
    digests = {split: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for split, path in files.items()}
    assert digests == {
        "200-300": "a8eb62c8ec7f239d",
        "depth-dev": "b703c5afbf08f6f5",
        "depth-test": "78f943bdc7c0502f",
    }
    assert [len(set(read(tmp_path, split))) for split in files] == [2000, 2000, 2000]


@pytest.mark.usefixtures("small_draws")
def test_files_are_in_the_published_formats(tmp_path: Path) -> None:
    files = generate_listops(tmp_path, seed=1, splits=["lra-test", "depth-dev"])
    header, *lines = files["lra-test"].read_text().splitlines()
    assert (header, len(lines)) == ("Source\tTarget", 30)
    expression, label = lines[0].split("\t")
    other_label, other_expression = files["depth-dev"].read_text().splitlines()[0].split("\t")
    assert {label, other_label} <= set("0123456789")
    for text in (expression, other_expression):
        assert text.startswith("( ( ( ")
        assert text.endswith(" ) ] )")


@pytest.mark.usefixtures("small_draws")
def test_progress_of_every_split_runs_from_none_to_all_of_its_file(tmp_path: Path) -> None:
    reports: dict[str, list[tuple[int, int]]] = {}
    generate_listops(
        tmp_path,
        seed=1,
        splits=["dev", "near-iid", "depth-dev"],
        progress=lambda split, done, total: reports.setdefault(split, []).append((done, total)),
    )
    assert {split: (seen[0], seen[-1]) for split, seen in reports.items()} == {
        "dev": ((0, 1300), (1300, 1300)),
        "near-iid": ((0, 30), (30, 30)),
        "depth-dev": ((0, 30), (30, 30)),
    }
    assert all(seen == sorted(seen) for seen in reports.values())
    assert len(reports["dev"]) >= 3


@pytest.mark.usefixtures("small_draws")
def test_files_that_exist_are_kept_unless_overwriting_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "dev_d7s.tsv").write_text("published")
    (tmp_path / "train_d6s.tsv.xz").write_text("published")
    message = r"already has dev_d7s\.tsv, train_d6s\.tsv\.xz: choose another folder \(--out\), or replace"
    with pytest.raises(BeamtreeError, match=message):
        generate_listops(tmp_path, seed=1, splits=["depth-test", "depth-dev", "depth-train"])
    assert (tmp_path / "dev_d7s.tsv").read_text() == "published"
    assert len(list(tmp_path.iterdir())) == 2
    generate_listops(tmp_path, seed=1, splits=["depth-dev"], overwrite=True)
    assert len((tmp_path / "dev_d7s.tsv").read_text().splitlines()) == 30


def test_an_unknown_split_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(BeamtreeError, match=r"ListOps has no split 'near-idd'; did you mean 'near-iid'\?"):
        generate_listops(tmp_path, seed=1, splits=["near-idd"])


def test_every_split_has_one_draw_of_the_stated_size() -> None:
    sizes = {file: lines for draw in DRAWS for file, lines in draw.files.items()}
    assert {SPLITS[split].file for split in TASK.splits} == set(sizes)
    assert [sizes[SPLITS[split].file] for split in ("train", "near-iid", "lra-train", "depth-train")] == [
        90_000,
        10_000,
        96_000,
        100_000,
    ]
    assert list(sizes.values()).count(2000) == 8 + 3 + 2 + 2


def test_both_column_orders_are_read(tmp_path: Path) -> None:
    (tmp_path / "own.tsv").write_text("1\t[MIN 1 2 ]\n")
    (tmp_path / "lra.tsv").write_text("Source\tTarget\n( ( ( [MIN 1 ) 2 ) ] )\t1\n")
    assert list(read_file(tmp_path / "own.tsv")) == list(read_file(tmp_path / "lra.tsv"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            SOUND + "9\t[MAX 2 9 ] 4 ]\n",
            r"line 2: unbalanced brackets: the '\]' at position 6 closes nothing",
        ),
        (SOUND + "9\t( [MAX 2 9 ]\n", r"line 2: unbalanced round brackets: 1 '\(' and 0 '\)'"),
        (SOUND + "9\t[MAX 2 [MIN 9 ]\n", r"line 2: unbalanced brackets: \[MAX not closed"),
        (SOUND + "9\t[PM 2 9 ]\n", r"line 2: unknown token '\[PM' at position 1"),
        (SOUND + "8\t[MAX 2 9 ]\n", "line 2: the label is '8', but '9' is right"),
        ("x\t[MAX 2 9 ]\n", "line 1: the label is 'x', but '9' is right"),
        ("[MAX 2 9 ]\n", r"line 1: expected label and expression, separated by tabs; found 1 column\(s\)"),
        (SOUND + "\n" + SOUND, "line 2: expected label and expression, separated by tabs"),
        ("9\t9\t9\n", r"line 1: expected label and expression, .* found 3 column\(s\)"),
        ("Source\tTarget\n9\n", r"line 2: expected expression and label, .* found 1 column\(s\)"),
        ("Source\tTarget\n9\t8\n", "line 2: the label is '8', but '9' is right"),
        ("Source\tTarget\n", "has a header but no examples"),
        ("", r"test\.tsv is empty"),
    ],
)
def test_broken_files_are_refused_with_the_line_and_the_reason(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "test.tsv"
    path.write_text(text)
    with pytest.raises(BeamtreeError, match=message) as error:
        list(read_file(path))
    assert str(path) in str(error.value)


def test_sound_lines_before_a_broken_one_are_still_given(tmp_path: Path) -> None:
    path = tmp_path / "test.tsv"
    path.write_text(SOUND + SOUND + "8\t9\n")
    examples = read_file(path)
    assert [next(examples).label, next(examples).label] == ["9", "9"]
    with pytest.raises(BeamtreeError, match="line 3"):
        next(examples)


def test_train_file_with_nothing_after_the_dev_lines_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train_d20s.tsv").write_text(SOUND * 5)
    assert len(list(read(tmp_path, "dev"))) == 5
    message = "no line of up to 100 tokens from 1001 on, so the split 'train' is empty"
    with pytest.raises(BeamtreeError, match=message):
        list(read(tmp_path, "train"))


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_an_expression_of_a_million_tokens_is_read_from_a_file(tmp_path: Path, suffix: str) -> None:
    random = np.random.RandomState(0)
    deep = 60_000
    digits = random.randint(0, 10, 1_000_000 - 2 * deep).astype(str).tolist()
    tokens = [*["[SM"] * deep, *digits, *["]"] * deep]
    text = f"{evaluate(tokens)}\t{brackets(tokens)}\n".encode()
    packed = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix]
    path = tmp_path / f"long.tsv{suffix}"
    path.write_bytes(packed(text))
    (example,) = read_file(path)
    assert example.sentences[0] == tuple(tokens)
