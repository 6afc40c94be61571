"""Drawing ListOps: the sampler's law against full enumeration, rejection and published figures."""

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from chi_square import assert_same_law, chi_square_limit
from published import brackets

from beamtree.data.formal import nesting
from beamtree.data.listops import process as listops_process
from beamtree.data.listops.draws import ExpressionBits, draw_distinct, draw_expression, sample_expressions
from beamtree.data.listops.language import DIGITS, OPERATORS, evaluate, tokenize
from beamtree.data.listops.process import (
    DECISION_BITS,
    Choice,
    ConditionedProcess,
    Law,
    Process,
    Tree,
    free_process,
)
from beamtree.errors import BeamtreeError

Shape = tuple["Shape", ...]  # the shapes of an operator's arguments; a digit has none
DIGIT: Shape = ()


def shapes_of(process: Process, depth: int = 1) -> dict[Shape, Fraction]:
    """Every shape that can stand at `depth`, with the probability of the process of §1.1."""
    if depth == process.max_depth:
        return {DIGIT: Fraction(1)}
    below = shapes_of(process, depth + 1)
    law = {DIGIT: Fraction(3, 4)}
    for count in range(2, process.max_args + 1):
        for arguments in product(below, repeat=count):
            probability = Fraction(1, 4 * (process.max_args - 1))
            for argument in arguments:
                probability *= below[argument]
            law[arguments] = probability
    return law


def length_of(shape: Shape) -> int:
    return 2 + sum(map(length_of, shape)) if shape else 1


def nesting_of(shape: Shape) -> int:
    return 1 + max(map(nesting_of, shape)) if shape else 0


def outcomes(drawable: Any) -> Iterator[tuple[Any, Fraction]]:
    """What a choice can give, with exact probabilities: the bits order the outcomes, so halving finds all."""
    pending = [(0, (1 << DECISION_BITS) - 1)]
    found: list[tuple[Any, int]] = []
    while pending:
        low, high = pending.pop()
        option = drawable.draw(lambda bits, low=low: low)
        if option == drawable.draw(lambda bits, high=high: high):
            if found and found[-1][0] == option:
                found[-1] = (option, found[-1][1] + high - low + 1)
            else:
                found.append((option, high - low + 1))
        else:
            middle = (low + high) // 2
            pending += [(middle + 1, high), (low, middle)]
    return ((option, Fraction(size, 1 << DECISION_BITS)) for option, size in found)


def drawn_shapes(root: Choice[Tree]) -> Counter[Shape]:
    """The exact law of the shapes that a graph of choices draws."""
    known: dict[int, Counter[Any]] = {}

    def of_tree(tree: Any) -> Counter[Any]:
        if tree is None:
            return Counter({DIGIT: Fraction(1)})
        return mixed(tree, of_row)

    def of_parts(parts: Any) -> Counter[Any]:
        first, rest = parts
        rests = Counter({(): Fraction(1)}) if rest is None else of_row(rest)
        return Counter(
            {(one, *others): p * q for one, p in of_tree(first).items() for others, q in rests.items()}
        )

    def of_row(row: Any) -> Counter[Any]:
        return mixed(row, of_parts)

    def mixed(drawable: Any, inner: Callable[[Any], Counter[Any]]) -> Counter[Any]:
        if id(drawable) not in known:
            law: Counter[Any] = Counter()
            for option, probability in outcomes(drawable):
                for shape, given in inner(option).items():
                    law[shape] += probability * given
            known[id(drawable)] = law
        return known[id(drawable)]

    return mixed(root, of_tree)


@pytest.mark.parametrize("process", [Process(1, 5), Process(3, 4), Process(4, 3), Process(5, 2)], ids=str)
def test_law_of_length_is_that_of_all_shapes(process: Process) -> None:
    expected: Counter[int] = Counter()
    for shape, probability in shapes_of(process).items():
        expected[length_of(shape)] += probability
    law = Law(process, max_length=30)
    unit = 1 << law.precision
    for length, weight in enumerate(law.trees[1]["any"]):
        assert 0 <= expected[length] - Fraction(weight, unit) < Fraction(1, 1 << 190)


CONDITIONS = [
    (Process(3, 4), (1, 30), (0, None)),
    (Process(3, 4), (7, 12), (0, None)),
    (Process(3, 4), (4, 18), (2, 2)),
    (Process(3, 4), (4, 18), (0, 1)),
    (Process(5, 2), (1, 60), (0, None)),
    (Process(5, 2), (8, 20), (3, None)),
    (Process(5, 2), (5, 40), (2, 3)),
    (Process(5, 2), (1, 40), (1, 3)),
    (Process(1, 2), (1, 1), (0, None)),
]


@pytest.mark.parametrize("table_length", [64, 0], ids=["tables", "blocks"])
@pytest.mark.parametrize(("process", "lengths", "nested"), CONDITIONS, ids=str)
def test_drawn_shapes_have_the_conditional_law_exactly(
    process: Process,
    lengths: tuple[int, int],
    nested: tuple[int, int | None],
    table_length: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listops_process, "TABLE_LENGTH", table_length)
    monkeypatch.setattr(listops_process, "BLOCK", 3)
    deepest = process.max_depth if nested[1] is None else nested[1]
    wanted = {
        shape: probability
        for shape, probability in shapes_of(process).items()
        if lengths[0] <= length_of(shape) <= lengths[1] and nested[0] <= nesting_of(shape) <= deepest
    }
    total = sum(wanted.values())
    drawn = drawn_shapes(ConditionedProcess(Law(process, lengths[1], *nested)).root(*lengths))
    assert drawn.keys() == wanted.keys()
    variation = sum(abs(drawn[shape] - probability / total) for shape, probability in wanted.items()) / 2
    assert variation < 1e-20


def test_free_process_has_the_law_of_the_process_exactly() -> None:
    process = Process(3, 3)
    drawn = drawn_shapes(free_process(process))
    wanted = shapes_of(process)
    assert drawn.keys() == wanted.keys()
    assert sum(abs(drawn[shape] - wanted[shape]) for shape in wanted) < 1e-20


def naive_expression(rng: random.Random, max_depth: int, max_args: int, depth: int = 1) -> list[str]:
    """§1.1 as a program, by floating-point numbers and recursion."""
    if depth >= max_depth or rng.random() > 0.25:
        return [rng.choice("0123456789")]
    arguments = [
        naive_expression(rng, max_depth, max_args, depth + 1) for _ in range(rng.randint(2, max_args))
    ]
    return [rng.choice(OPERATORS), *(token for argument in arguments for token in argument), "]"]


def features(tokens: tuple[str, ...]) -> dict[str, Any]:
    return {
        "length": len(tokens),
        "nesting": nesting(tokens),
        "first tokens": (tokens[0], tokens[1][0]),
        "operators": sum(token in OPERATORS for token in tokens),
        "last digit": next(token for token in reversed(tokens) if token != "]"),
        "value": evaluate(tokens),
    }


def test_conditioned_draws_agree_with_rejection() -> None:
    count, rng, bits = 4000, random.Random(5), ExpressionBits(5, "rejection")
    kept: list[dict[str, Any]] = []
    while len(kept) < count:
        tokens = tuple(naive_expression(rng, 7, 5))
        if 10 <= len(tokens) <= 90 and 2 <= nesting(tokens) <= 5:
            kept.append(features(tokens))
    root = ConditionedProcess(Law(Process(7, 5), 90, 2, 5)).root(10, 90)
    drawn = [features(tokenize(draw_expression(root, bits)[1])) for _ in range(count)]
    for name in kept[0]:
        assert_same_law(Counter(one[name] for one in kept), Counter(one[name] for one in drawn))


def test_chi_square_tells_a_wrong_law() -> None:
    rng = random.Random(0)
    even = Counter(rng.randrange(10) for _ in range(4000))
    uneven = Counter(min(9, rng.randrange(11)) for _ in range(4000))
    with pytest.raises(AssertionError):
        assert_same_law(even, uneven)


@pytest.mark.parametrize(
    ("process", "lengths", "acceptance", "mean"),
    [
        (Process(9, 5), [(100, 1000)], ["0.0107"], None),
        (Process(9, 10), [(100, 1000)], ["0.118"], 452),
        (Process(9, 15), [(100, 1000)], ["0.022"], 586),
        pytest.param(Process(10, 10), [(501, 1999)], ["0.083"], 1035, marks=pytest.mark.slow),
        (
            Process(20, 5),
            [(low + 1, low + 99) for low in range(200, 1000, 100)],
            ["0.0047", "0.0021", "0.00093", "0.00040", "0.00017", "0.000074", "0.000031", "0.000013"],
            None,
        ),
    ],
    ids=str,
)
def test_acceptance_and_mean_length_are_the_published_ones(
    process: Process, lengths: list[tuple[int, int]], acceptance: list[str], mean: int | None
) -> None:
    law = Law(process, lengths[-1][1])
    tree = law.trees[1]["any"]
    for (low, high), figure in zip(lengths, acceptance, strict=True):
        digits = len(figure) - 2
        assert f"{sum(tree[low : high + 1]) / (1 << law.precision):.{digits}f}" == figure
    if mean is not None:
        ((low, high),) = lengths
        within = range(low, high + 1)
        assert round(sum(length * tree[length] for length in within) / sum(tree[low : high + 1])) == mean
    if process == Process(10, 10):
        assert f"{sum(tree[1500:2000]) / sum(tree[501:2000]):.3f}" == "0.157"


def test_draws_do_not_depend_on_how_far_the_law_reaches() -> None:
    def drawn(reach: int) -> list[tuple[int, str]]:
        bits = ExpressionBits(1, "reach")
        root = ConditionedProcess(Law(Process(12, 5), reach)).root(80, 150)
        return [draw_expression(root, bits) for _ in range(50)]

    assert drawn(150) == drawn(220)


def test_values_and_brackets_are_those_of_the_tokens() -> None:
    root, bits = ConditionedProcess(Law(Process(12, 5), 150)).root(1, 150), ExpressionBits(2, "values")
    for _ in range(300):
        value, text = draw_expression(root, bits)
        tokens = tokenize(text)
        assert (evaluate(tokens), brackets(tokens)) == (value, text)


def test_digits_and_operators_are_uniform() -> None:
    bits = ExpressionBits(3, "uniform")
    for stream, count in [(bits.digits, 10), (bits.operators, 4)]:
        counts = Counter(next(stream) for _ in range(40_000))
        expected = 40_000 / count
        statistic = sum((counts[value] - expected) ** 2 / expected for value in range(count))
        assert counts.keys() == set(range(count))
        assert statistic < chi_square_limit(count - 1)


def test_shuffle_gives_every_order_equally_often() -> None:
    bits = ExpressionBits(4, "shuffle")
    orders: Counter[str] = Counter()
    for _ in range(24_000):
        items = list("abcd")
        bits.shuffle(items)
        orders["".join(items)] += 1
    assert len(orders) == 24
    assert sum((count - 1000) ** 2 / 1000 for count in orders.values()) < chi_square_limit(23)


def test_distinct_draws_are_distinct_and_in_the_order_of_their_first_draw() -> None:
    root = free_process(Process(3, 2))
    all_draws = [draw_expression(root, bits) for bits in [ExpressionBits(6, "distinct")] for _ in range(5000)]
    distinct = list(draw_distinct(root, ExpressionBits(6, "distinct"), 500))
    assert distinct == list(dict.fromkeys(all_draws))[:500]


def test_asking_for_more_expressions_than_there_are_fails() -> None:
    assert len(sample_expressions(10, seed=0, max_length=3)) == 10
    with pytest.raises(BeamtreeError, match="only 10 of 11 distinct expressions found: widen the condition"):
        sample_expressions(11, seed=0, max_length=3)


def test_sampled_examples_keep_to_the_condition() -> None:
    examples = sample_expressions(400, seed=1, min_length=4, max_length=50, min_nesting=3, max_nesting=5)
    assert len(set(examples)) == 400
    for example in examples:
        (tokens,) = example.sentences
        assert 4 <= len(tokens) <= 50
        assert 3 <= nesting(tokens) <= 5
        assert example.label == DIGITS[evaluate(tokens)]
    shallow = sample_expressions(400, seed=1, min_length=4, max_length=50, max_nesting=2)
    assert {nesting(example.sentences[0]) for example in shallow} == {1, 2}


def test_fewer_examples_are_a_prefix_of_more_and_seeds_differ() -> None:
    assert sample_expressions(20, seed=3) == sample_expressions(60, seed=3)[:20]
    assert sample_expressions(20, seed=3) != sample_expressions(20, seed=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_args": 1}, "max_args at least 2"),
        ({"max_depth": 0}, "max_depth and max_length must be at least 1"),
        ({"max_length": 0}, "max_depth and max_length must be at least 1"),
        ({"min_nesting": 3, "max_nesting": 2}, "min_nesting at least 0, at most max_nesting"),
        ({"max_depth": 4, "min_nesting": 4}, r"below max_depth; got Process\(max_depth=4, max_args=5\)"),
        ({"min_length": 2, "max_length": 3}, "fewer than one expression in 2\\^30 has 2 to 3 tokens"),
        (
            {"min_nesting": 3, "max_length": 9},
            "1 to 9 tokens and is nested 3 to 19 deep, with Process",
        ),
        ({"max_length": 2000, "min_length": 1990, "max_depth": 5}, "fewer than one expression in 2\\^30"),
    ],
)
def test_conditions_that_cannot_be_met_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(BeamtreeError, match=message):
        sample_expressions(1, seed=0, **options)


def test_the_bit_stream_and_the_samples_of_a_seed_are_frozen() -> None:
    assert ExpressionBits(0, "frozen").getrandbits(64) == 6552947568958001519
    drawn = sample_expressions(200, seed=0, max_length=150, min_nesting=2)
    text = "\n".join(f"{example.label} {' '.join(example.sentences[0])}" for example in drawn)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "4fbb3d5b06d624ee"
