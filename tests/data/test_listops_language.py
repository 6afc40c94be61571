"""The ListOps language: values, brackets, gold trees, and messages that name what is wrong and where."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published import brackets

from beamtree.data.formal import nesting
from beamtree.data.listops.language import (
    DIGITS,
    OPERATORS,
    TOKENS,
    evaluate,
    find_words,
    gold_merges,
    tokenize,
)
from beamtree.errors import BeamtreeError, UnreadableTextError

Nested = str | tuple[str, tuple["Nested", ...]]
EXAMPLE = "[MAX 2 9 [MIN 4 7 ] 0 ]"


def operators_over(arguments: st.SearchStrategy[Nested]) -> st.SearchStrategy[Nested]:
    return st.tuples(st.sampled_from(OPERATORS), st.lists(arguments, min_size=1, max_size=5).map(tuple))


nested_expressions = st.recursive(st.sampled_from(DIGITS), operators_over, max_leaves=30)


def flat(expression: Nested) -> list[str]:
    if isinstance(expression, str):
        return [expression]
    operator, arguments = expression
    return [operator, *(token for argument in arguments for token in flat(argument)), "]"]


def value(expression: Nested) -> int:
    if isinstance(expression, str):
        return int(expression)
    operator, arguments = expression
    values = [value(argument) for argument in arguments]
    combine = {"[MIN": min, "[MAX": max, "[MED": statistics.median, "[SM": lambda summed: sum(summed) % 10}
    return int(combine[operator](values))


def binary(expression: Nested) -> Nested | tuple[Nested, Nested]:
    """The left-leaning chain of §1.5, as pairs."""
    if isinstance(expression, str):
        return expression
    operator, arguments = expression
    tree: object = operator
    for argument in arguments:
        tree = (tree, binary(argument))
    return (tree, "]")


def by_leftmost_rule(tokens: list[str]) -> list[int]:
    """§1.5 word for word, in quadratic time: the leftmost open operator whose right mate is not open."""
    is_open = [token in OPERATORS for token in tokens]
    items = list(tokens)
    merges = []
    while len(items) > 1:
        place = next(at for at in range(len(items) - 1) if is_open[at] and not is_open[at + 1])
        still_open = items[place + 1] != "]"
        items[place : place + 2] = ["value"]
        is_open[place : place + 2] = [still_open]
        merges.append(place)
    return merges


def apply_merges(tokens: list[str], merges: list[int]) -> object:
    items: list[object] = list(tokens)
    for place in merges:
        items[place : place + 2] = [(items[place], items[place + 1])]
    (tree,) = items
    return tree


def test_there_are_fifteen_tokens() -> None:
    assert " ".join(TOKENS) == "[MIN [MAX [MED [SM ] 0 1 2 3 4 5 6 7 8 9"


@pytest.mark.parametrize(
    ("expression", "worth"),
    [
        ("7", 7),
        (EXAMPLE, 9),
        ("[MED 1 2 ]", 1),
        ("[MED 9 1 5 ]", 5),
        ("[MED 0 9 2 3 ]", 2),
        ("[SM 9 9 9 ]", 7),
        ("[MIN 4 [SM 5 6 ] [MED 3 8 ] ]", 1),
    ],
)
def test_expressions_are_worth_what_the_paper_says(expression: str, worth: int) -> None:
    assert evaluate(tokenize(expression)) == worth


@given(nested_expressions)
def test_value_equals_that_of_a_recursive_evaluation(expression: Nested) -> None:
    assert evaluate(flat(expression)) == value(expression)


@given(nested_expressions)
def test_brackets_are_dropped_by_the_tokenizer(expression: Nested) -> None:
    tokens = tuple(flat(expression))
    assert tokenize(brackets(tokens)) == tokens == tokenize(" ".join(tokens))


def typed(expression: Nested, style: str) -> str:
    """An expression as somebody might write it: a call, a Lisp list, or brackets without blanks."""
    if isinstance(expression, str):
        return expression
    operator, arguments = expression[0].strip("["), [typed(one, style) for one in expression[1]]
    return {
        "call": f"{operator.lower()}({', '.join(arguments)})",
        "lisp": f"({operator} {' '.join(arguments)})",
        "tight": f"[{operator.capitalize()} {','.join(arguments)}]",
    }[style]


@pytest.mark.parametrize("style", ["call", "lisp", "tight"])
@given(expression=nested_expressions)
def test_expressions_are_read_as_people_type_them(style: str, expression: Nested) -> None:
    assert tokenize(typed(expression, style)) == tuple(flat(expression))


@given(nested_expressions)
def test_the_places_of_words_are_those_of_the_tokens_in_either_writing(expression: Nested) -> None:
    tokens = tuple(flat(expression))
    for text in (" ".join(tokens), brackets(tokens)):
        assert tuple(text[word.start : word.end] for word in find_words(text)) == tokens
    text = typed(expression, "call")
    places = [text[word.start : word.end] for word in find_words(text)]
    names = {"]": ")"} | {f"[{name}": f"{name.lower()}(" for name in ("MIN", "MAX", "MED", "SM")}
    assert places == [names.get(token, token) for token in tokens]


@pytest.mark.parametrize(
    "text", ["MAX(2, 9, MIN(4,7))", "[max 2 9 [ min 4 7]]", "[MAX 2 9 [MIN 4 7]]", "(max 2 9 (min 4 7))"]
)
def test_one_expression_in_many_spellings(text: str) -> None:
    assert " ".join(tokenize(text)) == "[MAX 2 9 [MIN 4 7 ] ]"


@given(nested_expressions)
def test_brackets_show_the_left_leaning_chain(expression: Nested) -> None:
    def text(tree: object) -> str:
        return tree if isinstance(tree, str) else "( " + " ".join(text(part) for part in tree) + " )"

    assert brackets(flat(expression)) == text(binary(expression))


def test_published_brackets_are_reproduced() -> None:
    assert brackets(("[MAX", "2", "9", "]")) == "( ( ( [MAX 2 ) 9 ) ] )"
    assert brackets(("5",)) == "5"


@given(nested_expressions)
def test_gold_merges_follow_the_leftmost_rule_and_build_the_chain(expression: Nested) -> None:
    tokens = flat(expression)
    merges = gold_merges(tokens)
    assert merges == by_leftmost_rule(tokens)
    assert apply_merges(tokens, merges) == binary(expression)


def test_expressions_nested_a_hundred_thousand_deep_need_no_recursion() -> None:
    depth = 100_000
    tokens = ("[SM", "1") * depth + ("]",) * depth
    assert nesting(tokens) == depth
    assert evaluate(tokens) == depth % 10
    assert tokenize(brackets(tokens)) == tokens
    assert len(gold_merges(tokens)) == len(tokens) - 1


def test_nesting_counts_operators_not_brackets() -> None:
    assert [nesting(tokenize(text)) for text in ("3", "[MIN 1 2 ]", EXAMPLE)] == [0, 1, 2]
    assert nesting(tokenize(brackets(tokenize(EXAMPLE)))) == 2


@pytest.mark.parametrize(
    ("text", "message", "token"),
    [
        (
            "[MAX 2 [AVG 3 4 ] ]",
            r"unknown token '\[AVG' at position 3; ListOps has \[MIN \[MAX \[MED \[SM \]",
            2,
        ),
        ("[MAX 2 9x]", r"unknown token '9x' at position 3; .*, as in \[MAX 2 9", 2),
        ("MAX 2 9", "unknown token 'MAX' at position 1", 0),
        ("max(2, 9", r"unbalanced round brackets: 1 '\(' and 0 '\)'", None),
        ("[MAX 2 [ 9 ]", r"unknown token '\[' at position 3", 2),
        ("( ( ( [MAX 2 ) 10 ) ] )", "unknown token '10' at position 3", 2),
        ("( ( [MAX 2 ) ] ) )", r"unbalanced round brackets: 2 '\(' and 3 '\)'", None),
        ("[MAX 2 [MIN 3 4 ]", r"unbalanced brackets: \[MAX not closed at the end, position 6", 0),
        ("[MAX 2 [MIN 3 [SM 4 ]", r"unbalanced brackets: \[MAX \[MIN not closed at the end", 2),
        ("[MAX [SM 2", r"unbalanced brackets: \[MAX \[SM not closed at the end", 1),
        ("[MAX 2 9 ] ]", r"unbalanced brackets: the '\]' at position 5 closes nothing", 4),
        ("[MAX 2 [MIN ] ]", r"the \[MIN closed at position 4 has no arguments", 3),
        ("1 2", "expected one expression, found 2", 1),
        ("[MAX 2 9 ] [MIN 3 4 ] 5", "expected one expression, found 3", 4),
        ("", "expected one expression, found 0", None),
    ],
)
def test_invalid_expressions_are_refused_with_the_place(text: str, message: str, token: int | None) -> None:
    with pytest.raises(UnreadableTextError, match=message) as caught:
        tokenize(text)
    assert caught.value.token == token


@pytest.mark.parametrize(("count", "named"), [(8, "[SM" + " [SM" * 7), (9, "[SM" + " [SM" * 7 + " … (9)")])
def test_of_many_open_operators_the_first_eight_are_named(count: int, named: str) -> None:
    with pytest.raises(BeamtreeError) as caught:
        evaluate(["[SM"] * count)
    assert f": {named} not closed" in str(caught.value)
