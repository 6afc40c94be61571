"""Formulas mean what truth tables say, and published files read as they are."""

import gzip
import lzma
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beamtree.data.logic import gold_merges, read, relation_between, tokenize, worlds_of
from beamtree.data.task import Example, Tokens
from beamtree.errors import BeamtreeError, UnreadableTextError

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
    """Write a small data folder and return the lines of train0 … train6 in order."""
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


def test_blanks_may_be_left_out_and_letters_be_capital() -> None:
    assert tokenize("(NOT (a (And B)))") == tokenize("( not ( a ( and b ) ) )")


@pytest.mark.parametrize(
    ("formula", "message", "token"),
    [
        (
            "( a ( xor b ) )",
            r"unknown token 'xor' at position 4; the tokens are \( \) a b c d e f and or not",
            3,
        ),
        ("( a ( and b )", r"unbalanced brackets: 1 '\(' never closed", 0),
        ("( ( not a ) ( and b )", r"unbalanced brackets: 1 '\(' never closed", 0),
        ("( ( not", r"unbalanced brackets: 2 '\(' never closed", 0),
        ("a )", r"unbalanced brackets: '\)' at position 2 closes nothing", 1),
        ("( not a ) )", r"unbalanced brackets: '\)' at position 5 closes nothing", 4),
        ("( a )", r"'\)' at position 3 closes neither \( not X \)", 2),
        ("( a and b )", r"'\)' at position 5 closes neither", 4),
        ("( not ( and b ) )", r"'\)' at position 7 closes neither", 6),
        ("( )", r"'\)' at position 2 closes neither", 1),
        ("a b", "not a formula", None),
        ("not", "not a formula", None),
        ("", "not a formula", None),
    ],
)
def test_a_malformed_formula_is_refused_at_its_place(formula: str, message: str, token: int | None) -> None:
    with pytest.raises(UnreadableTextError, match=message) as caught:
        tokenize(formula)
    assert caught.value.token == token


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
            "test3, line 2: the relation is '>', but '<' is right",
        ),
        ("#\ta\tb\n?\ta\tb\n", r"test3, line 2: the relation is '\?', but '#' is right"),
        ("#\ta\n", r"test3, line 1: expected relation, formula and formula, separated by tabs; found 2"),
        ("#\ta\tb\n\n#\ta\tb\n", r"test3, line 2: .* found 1 column\(s\)"),
        ("#\ta\tb\t\n", r"test3, line 1: .* found 4 column\(s\)"),
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


def test_training_needs_all_its_files(tmp_path: Path) -> None:
    write_set(tmp_path)
    (tmp_path / "train5").unlink()
    with pytest.raises(BeamtreeError, match=r"has no train5 or train5\.txt"):
        next(read(tmp_path, "dev"))
