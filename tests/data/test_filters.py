"""Conditions mean what Python says of them, their trees follow the precedence, and bad files are refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beamtree.data.batching import EncodedExamples
from beamtree.data.filters import COLOURS, TASK, TOKENS, evaluate, gold_merges, read, tokenize
from beamtree.data.task import Example, Tokens, find_task
from beamtree.data.vocabulary import Vocabulary
from beamtree.errors import BeamtreeError, UnreadableTextError

numbers = st.tuples(
    st.sampled_from("0123456789"), st.sampled_from(["<", ">", "=", "!="]), st.sampled_from("0123456789")
)
colours = st.tuples(st.sampled_from(COLOURS), st.sampled_from(["=", "!="]), st.sampled_from(COLOURS))
comparisons = st.one_of(numbers, colours).map(" ".join)
# All that the grammar allows, which is more than is drawn: double negations, brackets around a comparison.
conditions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        inner.map(lambda x: f"not {x}"),
        inner.map(lambda x: f"( {x} )"),
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(" ".join),
    ),
    max_leaves=12,
)


def by_python(tokens: Tokens) -> bool:
    """The value by Python's own parser, which has the same precedence."""
    words = {"=": "==", **{colour: repr(colour) for colour in COLOURS}}
    return bool(eval(" ".join(words.get(token, token) for token in tokens)))


def by_rule(tokens: Tokens) -> str:
    """The tree as brackets, by recursive descent over the grammar."""
    rest = list(tokens)

    def chain(connective: str, operand: Callable[[], str]) -> str:
        tree = operand()
        while rest and rest[0] == connective:
            tree = f"(({tree} {rest.pop(0)}) {operand()})"
        return tree

    def factor() -> str:
        first = rest.pop(0)
        if first == "not":
            return f"(not {factor()})"
        if first == "(":
            inner = disjunction()
            assert rest.pop(0) == ")"
            return f"(([ {inner}) ])"
        return f"(({first} {rest.pop(0)}) {rest.pop(0)})"

    def disjunction() -> str:
        return chain("or", lambda: chain("and", factor))

    return disjunction()


def as_brackets(tokens: Tokens, merges: list[int]) -> str:
    parts = [{"(": "[", ")": "]"}.get(token, token) for token in tokens]
    for at in merges:
        parts[at : at + 2] = [f"({parts[at]} {parts[at + 1]})"]
    (tree,) = parts
    return tree


@settings(max_examples=300, deadline=None)
@given(conditions)
def test_a_condition_has_the_value_that_python_gives_it(condition: str) -> None:
    tokens = tokenize(condition)
    assert evaluate(tokens) == by_python(tokens)


@settings(max_examples=300, deadline=None)
@given(conditions)
def test_gold_trees_follow_the_precedence(condition: str) -> None:
    tokens = tokenize(condition)
    assert as_brackets(tokens, gold_merges(tokens)) == by_rule(tokens)


@pytest.mark.parametrize(
    ("condition", "tree"),
    [
        ("7 < 5", "((7 <) 5)"),
        ("not 7 < 5", "(not ((7 <) 5))"),
        ("( 7 < 5 )", "(([ ((7 <) 5)) ])"),
        ("1 < 2 or 3 < 4 and 5 < 6", "((((1 <) 2) or) ((((3 <) 4) and) ((5 <) 6)))"),
        ("1 < 2 and 3 < 4 or 5 < 6", "((((((1 <) 2) and) ((3 <) 4)) or) ((5 <) 6))"),
    ],
)
def test_gold_trees_of_small_conditions(condition: str, tree: str) -> None:
    tokens = tokenize(condition)
    assert as_brackets(tokens, gold_merges(tokens)) == tree


def test_capitals_and_missing_blanks_are_forgiven() -> None:
    assert tokenize("7<5 AND Not(blue!=RED)") == tokenize("7 < 5 and not ( blue != red )")
    assert TASK.find_words("7<=5") == [(0, 1), (1, 3), (3, 4)]


def test_a_condition_may_nest_deeper_than_the_recursion_limit() -> None:
    tokens = ("not", "(") * 5001 + ("1", "<", "2") + (")",) * 5001
    assert evaluate(tokens) is False
    assert len(gold_merges(tokens)) == len(tokens) - 1


@pytest.mark.parametrize(
    ("condition", "message", "token"),
    [
        ("7 <= 5", "unknown token '<=' at position 2; conditions have", 1),
        ("7 < red", "'red' at position 3 is out of place: expected a number to compare 7 with", 2),
        ("red < blue", "'<' at position 2 is out of place: expected = or != after red", 1),
        ("red = 7", "'7' at position 3 is out of place: expected a colour", 2),
        ("7 and 5", "'and' at position 2 is out of place: expected < > = or != after 7", 1),
        ("7 <", "ends too early: expected a number", 1),
        ("7", "ends too early: expected < > = or != after 7", 0),
        ("7 < 5 and", "ends too early: expected a comparison, not or \\(", 3),
        ("not", "ends too early: expected a comparison", 0),
        ("", "ends too early: expected a comparison", None),
        ("and 7 < 5", "'and' at position 1 is out of place: expected a comparison, not or \\(", 0),
        ("( )", "'\\)' at position 2 is out of place: expected a comparison", 1),
        ("7 < 5 7 < 5", "'7' at position 4 is out of place: expected and, or", 3),
        ("7 < 5 )", "'\\)' at position 4 is out of place", 3),
        ("7 < 5 not 7 < 5", "'not' at position 4 is out of place", 3),
        ("7 < 5 and ( 7 < 5 or ( 1 < 2 )", "unbalanced brackets: 1 '\\(' never closed", 4),
        ("( not ( 7 < 5", "unbalanced brackets: 2 '\\(' never closed", 0),
    ],
)
def test_a_malformed_condition_is_refused_at_its_place(
    condition: str, message: str, token: int | None
) -> None:
    with pytest.raises(UnreadableTextError, match=message) as caught:
        tokenize(condition)
    assert caught.value.token == token


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("true\t7 < 5\n", "depth1.tsv, line 1: the label is 'true', but 'false' is right"),
        ("false\t7 < 5\nyes\t5 < 7\n", "line 2: the label is 'yes', but 'true' is right"),
        ("false\n", r"line 1: expected label and condition, separated by tabs; found 1 column\(s\)"),
        ("false\t7 < 5\t\n", r"found 3 column\(s\)"),
        ("false\t7 < 15\n", "line 1: unknown token '15'"),
        ("", "depth1.tsv is empty"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "depth1.tsv").write_text(content)
    with pytest.raises(BeamtreeError, match=message):
        list(read(tmp_path, "depth1"))


def test_the_task_is_known_by_name_and_makes_batches_with_gold_trees(tmp_path: Path) -> None:
    assert find_task("filters") is TASK
    assert list(TASK.splits) == ["train", "dev", *(f"depth{depth}" for depth in range(1, 11))]
    assert len(set(TOKENS)) == len(TOKENS) == 25
    (tmp_path / "dev.tsv").write_text("true\tnot 7 < 5\n")
    examples = list(TASK.read(tmp_path, "dev"))
    assert examples == [Example((("not", "7", "<", "5"),), "true")]
    assert TASK.answer is not None
    assert TASK.answer(examples[0].sentences) == "true"
    encoded = EncodedExamples.encode(examples, Vocabulary(TOKENS), TASK.labels, gold_merges=TASK.gold_merges)
    batch = encoded.collate(encoded.labels * 0)
    assert batch.gold_merges is not None
    assert batch.gold_merges.tolist() == [[1, 1, 0]]
