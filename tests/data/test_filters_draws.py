"""Drawn conditions: labels are right and balanced, no shortcut tells them, depth matters, seeds repeat."""

import hashlib
import subprocess
import sys
from collections import Counter
from itertools import islice, product
from pathlib import Path

import pytest
import torch

from beamtree.data.filters import SPLITS, TESTED, TOKENS, TRAINED, evaluate
from beamtree.data.filters_draws import draw_lines, generate_filters
from beamtree.data.formal import nesting
from beamtree.errors import BeamtreeError

REPOSITORY = Path(__file__).resolve().parents[2]
DRAWN = 4000
OPPOSITE = {"<": ">", ">": "<", "=": "!=", "!=": "="}  # of numbers that differ, and of colours
DIGESTS = {
    "train": "c0781e9877eb4c03",
    "dev": "1ff6e4438a43331b",
    "depth1": "236ec6b65d3049bd",
    "depth2": "3bd160c039be4ef3",
    "depth3": "5d8fddf9087edca3",
    "depth4": "cd3a4bc28b751dc7",
    "depth5": "a46b6ed90b2f0e4c",
    "depth6": "6f394ef49202c6ee",
    "depth7": "57f8732aa1660755",
    "depth8": "5cb81c17b95b0a45",
    "depth9": "5664c3aa42757e66",
    "depth10": "89f6cd3444f10575",
}


def depths(tokens: list[str]) -> list[int]:
    """Return how many brackets are open at each token."""
    found, depth = [], 0
    for token in tokens:
        depth += token == "("
        found.append(depth)
        depth -= token == ")"
    return found


@pytest.fixture(scope="module", params=TESTED)
def drawn(request: pytest.FixtureRequest) -> tuple[int, list[bool], list[list[str]]]:
    lines = [line.split("\t") for line in islice(draw_lines(request.param, 5), DRAWN)]
    return request.param, [label == "true" for label, _ in lines], [text.split() for _, text in lines]


Drawn = tuple[int, list[bool], list[list[str]]]


def test_labels_are_right_and_half_are_true(drawn: Drawn) -> None:
    depth, labels, conditions = drawn
    assert labels == [evaluate(tokens) for tokens in conditions]
    assert sum(labels) == DRAWN // 2
    assert {nesting(tokens) for tokens in conditions} == {depth}
    assert len(set(map(" ".join, conditions))) == DRAWN


def logistic_accuracy(features: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the accuracy of a logistic regression on one half after fitting it to the other."""
    features = (features - features.mean(0)) / features.std(0).clamp(min=1e-6)
    features = torch.cat((features, torch.ones(len(features), 1)), 1).double()
    half = len(features) // 2
    weights = torch.zeros(features.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=60, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.binary_cross_entropy_with_logits(
            features[:half] @ weights, labels[:half].double()
        )
        value = value + 1e-3 * weights.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)
    return float(((features[half:] @ weights > 0) == labels[half:]).double().mean())


NEAR_CHANCE = 0.5 + 4 * 0.5 / (DRAWN // 2) ** 0.5  # four standard deviations of guessing


def test_words_and_length_do_not_tell_the_label(drawn: Drawn) -> None:
    _, labels, conditions = drawn
    truth = torch.tensor(labels)
    counts = torch.tensor(
        [[tokens.count(word) for word in TOKENS] for tokens in conditions], dtype=torch.float32
    )
    lengths = torch.tensor([len(tokens) for tokens in conditions], dtype=torch.float32)
    powers = torch.stack([(lengths / lengths.mean()) ** power for power in (1, 2, 3)], 1)
    assert logistic_accuracy(counts, truth) < NEAR_CHANCE
    assert logistic_accuracy((counts > 0).float(), truth) < NEAR_CHANCE
    assert logistic_accuracy(powers, truth) < NEAR_CHANCE


def test_the_baseline_would_find_a_shortcut() -> None:
    conditions = [line.split("\t")[1].split() for line in islice(draw_lines(4, 5), DRAWN)]
    counts = torch.tensor([[tokens.count(word) for word in TOKENS] for tokens in conditions]).float()
    leaking = torch.tensor([tokens.count("and") > tokens.count("or") for tokens in conditions])
    assert logistic_accuracy(counts, leaking) > 0.9


def test_half_of_the_conditions_or_more_but_not_all_turn_on_a_comparison_at_the_deepest_level(
    drawn: Drawn,
) -> None:
    depth, labels, conditions = drawn
    turning = 0
    for holds, tokens in zip(labels[:1000], conditions[:1000], strict=True):
        deepest = [
            place
            for place, level in enumerate(depths(tokens))
            if level == depth and tokens[place] in OPPOSITE
        ]
        turning += any(
            evaluate([*tokens[:place], OPPOSITE[tokens[place]], *tokens[place + 1 :]]) != holds
            for place in deepest
        )
    assert 470 < turning < 780  # the coin's half, and a few that nothing else can settle


def without_depth(tokens: list[str], most: int) -> list[list[str]]:
    """Return versions of the condition in which each group deeper than `most` brackets is true or false."""
    kept: list[str | None] = []
    depth = 0
    for token in tokens:
        depth += token == "("
        if depth <= most:
            kept.append(token)
        elif depth == most + 1 and token == ")":
            kept.append(None)
        depth -= token == ")"
    literal = {True: ["1", "<", "2"], False: ["2", "<", "1"]}
    gaps = kept.count(None)
    found = []
    for values in islice(product([True, False], repeat=gaps), 64):
        given = iter(values)
        found.append(
            [word for token in kept for word in (literal[next(given)] if token is None else [token])]
        )
    return found


@pytest.mark.parametrize("depth", [depth for depth in TESTED if depth not in TRAINED])
def test_reading_only_to_the_depth_of_training_leaves_most_deeper_conditions_open(depth: int) -> None:
    conditions = [line.split("\t")[1].split() for line in islice(draw_lines(depth, 5), 400)]
    unanswered = sum(
        len({evaluate(tokens) for tokens in without_depth(condition, TRAINED[-1])}) == 2
        for condition in conditions
    )
    assert unanswered / len(conditions) > 0.5


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of full size, made by another process: with its own hash seed, and untraced, so in seconds."""
    folder = tmp_path_factory.mktemp("filters")
    program = (
        "import sys; from pathlib import Path; from beamtree.data.filters_draws import generate_filters\n"
        "generate_filters(Path(sys.argv[1]), seed=0)"
    )
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True, cwd=REPOSITORY)
    return folder


def test_the_splits_of_seed_0_which_models_are_compared_on_never_change(generated: Path) -> None:
    found = {path.stem: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in generated.iterdir()}
    assert found == DIGESTS


def test_no_condition_is_in_two_splits_and_every_depth_is_balanced(generated: Path) -> None:
    seen: dict[str, str] = {}
    for split in SPLITS:
        rows = [line.split("\t") for line in (generated / f"{split}.tsv").read_text().splitlines()]
        counts = Counter((nesting(text.split()), label) for label, text in rows)
        wanted = {"train": range(5), "dev": range(1, 5)}.get(split) or [int(split.removeprefix("depth"))]
        assert {depth for depth, _ in counts} == set(wanted)
        assert len(set(counts.values())) == 1
        for _, text in rows:
            assert text not in seen, f"in {seen.get(text)} and {split}: {text}"
            seen[text] = split


def test_test_splits_do_not_depend_on_the_size_of_training(tmp_path: Path) -> None:
    files = [generate_filters(tmp_path / str(size), seed=3, train=size, dev=8, test=4) for size in (10, 20)]
    texts = [[path.read_text() for split, path in made.items() if split != "train"] for made in files]
    assert texts[0] == texts[1]
    assert files[1]["train"].read_text().startswith(files[0]["train"].read_text())


def test_another_seed_gives_other_conditions() -> None:
    assert not {*islice(draw_lines(4, 0), 100)} & {*islice(draw_lines(4, 1), 100)}


def test_files_are_replaced_only_if_asked_and_sizes_must_be_balanced(tmp_path: Path) -> None:
    sizes = {"train": 10, "dev": 8, "test": 2}
    generate_filters(tmp_path, seed=0, **sizes)
    with pytest.raises(BeamtreeError, match=r"already has train\.tsv, dev\.tsv"):
        generate_filters(tmp_path, seed=1, **sizes)
    done: list[tuple[int, int]] = []
    generate_filters(tmp_path, seed=1, **sizes, overwrite=True, progress=lambda *at: done.append(at))
    assert done == [(38, 38)]
    for wrong in ({"train": 12}, {"dev": 0}, {"test": 3}):
        with pytest.raises(BeamtreeError, match="true"):
            generate_filters(tmp_path / "new", seed=0, **{**sizes, **wrong})
