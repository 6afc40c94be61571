"""Formulas mean what truth tables say; published files read as they are; new ones match their statistics."""

import gzip
import hashlib
import lzma
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beamtree.data.batching import EncodedExamples
from beamtree.data.files import read_lines
from beamtree.data.logic import (
    RELATIONS,
    TASK,
    generate_logic,
    gold_merges,
    read,
    read_file,
    relation_between,
    tokenize,
    worlds_of,
)
from beamtree.data.task import Example, Tokens
from beamtree.data.vocabulary import Vocabulary
from beamtree.errors import BeamtreeError

REPOSITORY = Path(__file__).resolve().parents[1]
PUBLISHED = REPOSITORY.parent / "shared" / "data" / "proplogic"
TRAIN_SIZES = (30, 2319, 12451, 23252, 30373, 34152, 32952, 26671, 18962, 12634, 8181, 4894, 4831)
TEST_SIZES = (6, 410, 2198, 4104, 5361, 6027, 5816, 4707, 3347, 2230, 1444, 864, 853)
RELATION_SHARES = {"#": 0.5308, "<": 0.1102, ">": 0.1099, "|": 0.1066, "v": 0.1065, "=": 0.0188, "^": 0.0173}

World = dict[str, bool]
Formula = tuple[str, Callable[[World], bool]]

variables = st.sampled_from("abcdef").map(lambda name: (name, lambda world: world[name]))


def compound(inner: st.SearchStrategy[Formula]) -> st.SearchStrategy[Formula]:
    def negate(x: Formula) -> Formula:
        return f"( not {x[0]} )", lambda world: not x[1](world)

    def both(x: Formula, y: Formula) -> Formula:
        return f"( {x[0]} ( and {y[0]} ) )", lambda world: x[1](world) and y[1](world)

    def either(x: Formula, y: Formula) -> Formula:
        return f"( {x[0]} ( or {y[0]} ) )", lambda world: x[1](world) or y[1](world)

    return st.builds(negate, inner) | st.builds(both, inner, inner) | st.builds(either, inner, inner)


formulas = st.recursive(variables, compound, max_leaves=8)


def truth_table(formula: Formula) -> list[bool]:
    worlds = product([False, True], repeat=6)
    return [formula[1](dict(zip("abcdef", values, strict=True))) for values in worlds]


def relation_by_definition(left: list[bool], right: list[bool]) -> str:
    both = list(zip(left, right, strict=True))
    holds = {
        "=": all(x == y for x, y in both),
        "<": all(y for x, y in both if x),
        ">": all(x for x, y in both if y),
        "^": all(x != y for x, y in both),
        "|": not any(x and y for x, y in both),
        "v": all(x or y for x, y in both),
        "#": True,
    }
    return next(relation for relation in "=<>^|v#" if holds[relation])


def merges_by_rule(tokens: Tokens) -> list[int]:
    """Repeatedly the leftmost pair of an open item and one that is not open."""
    items = ["open" if token == "(" else token for token in tokens]
    merges = []
    while len(items) > 1:
        at = next(i for i in range(len(items) - 1) if items[i] == "open" and items[i + 1] != "open")
        items[at : at + 2] = ["value" if items[at + 1] == ")" else "open"]
        merges.append(at)
    return merges


def write_set(folder: Path, lines_per_file: int = 4) -> list[str]:
    """A small sound data folder; returns the lines of train0 … train6 in order."""
    pairs = [f"#\t{x}\t{y}" for x in "abcdef" for y in "abcdef" if x != y]
    lines = []
    for index in range(7):
        part = [pairs[(index * lines_per_file + i) % len(pairs)] for i in range(lines_per_file)]
        (folder / f"train{index}").write_text("".join(f"{line}\n" for line in part))
        lines += part
    (folder / "test3").write_text("<\t( a ( and b ) )\ta\n")
    return lines


@settings(max_examples=150, deadline=None)
@given(formulas, formulas)
def test_the_relation_of_two_formulas_is_that_of_their_truth_tables(left: Formula, right: Formula) -> None:
    found = relation_between(worlds_of(tokenize(left[0])), worlds_of(tokenize(right[0])))
    assert found == relation_by_definition(truth_table(left), truth_table(right))


@pytest.mark.parametrize(
    ("relation", "left", "right"),
    [
        ("=", "( not ( a ( and b ) ) )", "( ( not a ) ( or ( not b ) ) )"),
        ("<", "( a ( and b ) )", "a"),
        (">", "a", "( a ( and b ) )"),
        ("^", "a", "( not a )"),
        ("|", "( a ( and b ) )", "( not a )"),
        ("v", "( a ( or b ) )", "( not a )"),
        ("#", "a", "b"),
    ],
)
def test_each_relation_has_its_textbook_example(relation: str, left: str, right: str) -> None:
    assert relation_between(worlds_of(tokenize(left)), worlds_of(tokenize(right))) == relation


@settings(max_examples=100, deadline=None)
@given(formulas)
def test_gold_trees_follow_the_brackets_leftmost_pair_first(formula: Formula) -> None:
    tokens = tokenize(formula[0])
    assert gold_merges(tokens) == merges_by_rule(tokens)
    assert len(gold_merges(tokens)) == len(tokens) - 1


def test_gold_trees_of_the_smallest_formulas() -> None:
    assert gold_merges(("a",)) == []
    assert gold_merges(tokenize("( not b )")) == [0, 0, 0]
    assert gold_merges(tokenize("( a ( and b ) )")) == [0, 1, 1, 1, 0, 0]


def test_gold_trees_of_formulas_nested_deeper_than_the_recursion_limit() -> None:
    tokens = ("(", "not") * 5000 + ("a",) + (")",) * 5000
    merges = gold_merges(tokens)
    assert len(merges) == len(tokens) - 1
    assert (max(merges), merges[-1]) == (4999, 0)
    assert worlds_of(tokens) == worlds_of(("a",))


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        (
            "( a ( xor b ) )",
            r"unknown token 'xor' at position 4; the tokens are \( \) a b c d e f and or not",
        ),
        ("( a ( and b )", r"unbalanced brackets: 1 '\(' never closed"),
        ("( ( not", r"unbalanced brackets: 2 '\(' never closed"),
        ("a )", r"unbalanced brackets: '\)' at position 2 closes nothing"),
        ("( not a ) )", r"unbalanced brackets: '\)' at position 5 closes nothing"),
        ("( a )", r"'\)' at position 3 closes neither \( not X \)"),
        ("( a and b )", r"'\)' at position 5 closes neither"),
        ("( not ( and b ) )", r"'\)' at position 7 closes neither"),
        ("( )", r"'\)' at position 2 closes neither"),
        ("a b", "not a formula"),
        ("not", "not a formula"),
        ("", "not a formula"),
    ],
)
def test_a_malformed_formula_is_refused_at_its_place(formula: str, message: str) -> None:
    with pytest.raises(BeamtreeError, match=message):
        tokenize(formula)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ("a b", "no '\\(' is open for 'b' at position 2"),
        (") (", "no '\\(' is open for '\\)' at position 1"),
        ("( a ) )", "no '\\(' is open for '\\)' at position 4"),
        ("( ( a )", "1 '\\(' never closed"),
        ("( (", "2 '\\(' never closed"),
    ],
)
def test_no_tree_is_made_of_unbalanced_brackets(tokens: str, message: str) -> None:
    with pytest.raises(BeamtreeError, match=message):
        gold_merges(tuple(tokens.split()))


def test_every_tenth_pair_over_all_training_files_is_for_dev(tmp_path: Path) -> None:
    lines = write_set(tmp_path)
    sentences = {
        split: ["\t".join([e.label, *map(" ".join, e.sentences)]) for e in read(tmp_path, split)]
        for split in ("train", "dev")
    }
    assert sentences["dev"] == [lines[9], lines[19]]
    assert sentences["train"] == [line for i, line in enumerate(lines, start=1) if i % 10]


@pytest.mark.parametrize(
    "name", ["test3", "test3.txt", "test3.gz", "test3.txt.gz", "test3.xz", "test3.txt.xz"]
)
def test_files_are_found_and_read_under_every_published_name(tmp_path: Path, name: str) -> None:
    openers = {".gz": gzip.open, ".xz": lzma.open}
    with openers.get(Path(name).suffix, open)(tmp_path / name, "wt") as file:  # type: ignore[operator]
        file.write("<\t( a ( and b ) )\ta\n")
    assert list(read(tmp_path, "test3")) == [Example((tokenize("( a ( and b ) )"), ("a",)), "<")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "#\ta\tb\n>\t( a ( and b ) )\ta\n",
            "test3, line 2: wrong relation '>': between these formulas it is '<'",
        ),
        ("#\ta\tb\n?\ta\tb\n", r"test3, line 2: unknown relation '\?'; the relations are = < > \^ \| v #"),
        ("#\ta\n", r"test3, line 1: wanted relation, formula, formula between tabs, found 2 column\(s\)"),
        ("#\ta\tb\n\n", r"test3, line 2: wanted .* found 1 column\(s\)"),
        ("#\ta\tb\t\n", r"test3, line 1: wanted .* found 4 column\(s\)"),
        ("#\ta\tg\n", "test3, line 1: unknown token 'g' at position 1"),
        ("#\t( not a\tb\n", r"test3, line 1: unbalanced brackets: 1 '\(' never closed"),
        ("#\t\tb\n", "test3, line 1: not a formula"),
        ("", "test3 is empty"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "test3").write_text(content)
    with pytest.raises(BeamtreeError, match=message):
        list(read(tmp_path, "test3"))
    assert (tmp_path / "test3").read_text() == content


def test_a_truncated_archive_is_refused_after_the_lines_it_still_holds(tmp_path: Path) -> None:
    whole = lzma.compress(b"#\ta\tb\n" * 20000)
    (tmp_path / "test3.txt.xz").write_bytes(whole[: len(whole) - 20])
    with pytest.raises(BeamtreeError, match=r"test3\.txt\.xz is truncated: .* copy it again"):
        list(read(tmp_path, "test3"))


def test_a_folder_without_the_split_says_what_it_holds(tmp_path: Path) -> None:
    write_set(tmp_path)
    with pytest.raises(
        BeamtreeError, match=r"has no test12 or test12\.txt .*; it holds test3, train0, train1"
    ):
        list(read(tmp_path, "test12"))
    (tmp_path / "train5").unlink()
    with pytest.raises(BeamtreeError, match=r"has no train5 or train5\.txt"):
        next(read(tmp_path, "dev"))


def test_an_unknown_split_is_refused_with_the_list() -> None:
    with pytest.raises(
        BeamtreeError, match=r"logic has no split 'test13'; choose one of train, dev, test0, .*test12$"
    ):
        next(read(Path(), "test13"))


def test_the_task_has_eleven_tokens_seven_relations_and_fifteen_splits() -> None:
    assert (TASK.name, TASK.sentences) == ("logic", 2)
    assert len(TASK.tokens) == 11
    assert len(Vocabulary(TASK.tokens)) == 14
    assert sorted(TASK.labels) == sorted(RELATION_SHARES)
    assert list(TASK.splits) == ["train", "dev", *(f"test{index}" for index in range(13))]


def test_pairs_become_batches_with_gold_trees(tmp_path: Path) -> None:
    write_set(tmp_path)
    examples = EncodedExamples.encode(
        TASK.read(tmp_path, "test3"), Vocabulary(TASK.tokens), TASK.labels, gold_merges=TASK.gold_merges
    )
    batch = examples.collate(examples.labels * 0)
    assert batch.gold_merges is not None
    assert batch.gold_merges.tolist() == [[0, 1, 1, 1, 0, 0], [-1] * 6]
    assert [RELATIONS[label] for label in batch.labels] == ["<"]


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published files are not here")
def test_the_published_files_are_sound_and_have_the_published_sizes() -> None:
    sizes = {split: sum(1 for _ in read(PUBLISHED, split)) for split in TASK.splits if split != "train"}
    assert sizes == {"dev": 13_552} | {f"test{i}": size for i, size in enumerate(TEST_SIZES)}
    for index, size in enumerate(TRAIN_SIZES):
        assert sum(1 for _ in read_lines(PUBLISHED / f"train{index}.txt.xz")) == size


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A set of full size, made by another process: with its own hash seed, and untraced, so in seconds."""
    folder = tmp_path_factory.mktemp("logic")
    program = (
        "import sys; from pathlib import Path; from beamtree.data.logic import generate_logic\n"
        "generate_logic(Path(sys.argv[1]), seed=11)"
    )
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True, cwd=REPOSITORY)
    return {path.name: path for path in folder.iterdir()}


def test_generated_sets_have_the_published_counts_per_index(generated: dict[str, Path]) -> None:
    assert sorted(generated) == sorted(f"{part}{index}" for index in range(13) for part in ("train", "test"))
    counts = {name: path.read_text().count("\n") for name, path in generated.items()}
    assert (counts["train0"], counts["test0"]) == (30, 6)
    for index, published in enumerate(map(sum, zip(TRAIN_SIZES, TEST_SIZES, strict=True))):
        train, test = counts[f"train{index}"], counts[f"test{index}"]
        assert train == (train + test) * 85 // 100
        # Both are draws of one distribution: four standard deviations of a difference of two counts.
        assert abs(train + test - published) <= 4 * math.sqrt(2 * published)


def test_generated_sets_have_the_published_shares_of_relations(generated: dict[str, Path]) -> None:
    relations = Counter(line[0] for path in generated.values() for line in path.read_text().splitlines())
    total = relations.total()
    for relation, share in RELATION_SHARES.items():
        assert relations[relation] / total == pytest.approx(share, abs=4 * math.sqrt(2 * share / total))


def test_generated_files_are_read_back_and_hold_what_their_names_say(generated: dict[str, Path]) -> None:
    for name in ("train0", "test1", "test6", "test11", "test12"):
        pairs = list(read_file(generated[name]))
        assert len({pair.sentences for pair in pairs}) == len(pairs)
        for pair in pairs:
            operators = max(sum(t in ("and", "or", "not") for t in sentence) for sentence in pair.sentences)
            assert min(operators, 12) == int(name.removeprefix("train").removeprefix("test"))
            assert len({t for sentence in pair.sentences for t in sentence if t in "abcdef"}) <= 4
            for sentence in pair.sentences:
                assert worlds_of(sentence) not in (0, 2**64 - 1)


def test_long_generated_formulas_use_operators_and_variables_at_the_rates_of_the_process(
    generated: dict[str, Path],
) -> None:
    tokens = Counter(
        token for index in range(9, 13) for token in generated[f"train{index}"].read_text().split()
    )
    binary = tokens["and"] + tokens["or"]
    assert tokens["and"] / binary == pytest.approx(0.5, abs=0.01)
    leaves = [tokens[name] for name in "abcdef"]
    assert min(leaves) / max(leaves) > 0.98


def test_a_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    def contents(folder: str, seed: int) -> bytes:
        files = generate_logic(tmp_path / folder, seed=seed, pairs=3000)
        return b"".join(path.read_bytes() for path in files.values())

    first = contents("first", 5)
    assert first == contents("again", 5)
    assert first != contents("other", 6)
    assert b"\r" not in first


def test_the_bytes_of_a_seed_never_change_with_a_release(tmp_path: Path) -> None:
    files = generate_logic(tmp_path, seed=0, pairs=3000)
    content = b"".join(path.read_bytes() for path in files.values())
    assert hashlib.sha256(content).hexdigest() == (
        "02753b8477579169382097c6858327518f32c9a6436b56dc2e1d7cdef7075992"
    )


def test_progress_is_reported_up_to_the_end(tmp_path: Path) -> None:
    reports: list[tuple[int, int]] = []
    generate_logic(tmp_path, seed=0, pairs=2500, progress=lambda done, total: reports.append((done, total)))
    assert reports == [(1000, 2500), (2000, 2500), (2500, 2500)]


def test_too_few_pairs_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(BeamtreeError, match=r"10 pairs leave .*train12.* empty: draw more"):
        generate_logic(tmp_path / "out", seed=0, pairs=10)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(BeamtreeError, match=r"cannot make the folder .*file"):
        generate_logic(tmp_path / "file", seed=0, pairs=2500)
    assert (tmp_path / "file").read_text() == "kept"
