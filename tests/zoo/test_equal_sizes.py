"""Models that are compared have as many parameters as EBT-GRC."""

import pytest

from beamtree import create_encoder
from beamtree.errors import BeamtreeError
from beamtree.zoo.by_name import LARGEST_DIFFERENCE, SHAPES, count_parameters, equal_sized_options


@pytest.mark.parametrize("d_model", [64, 128, 200])
@pytest.mark.parametrize("name", SHAPES)
def test_every_model_comes_within_a_twentieth_of_the_tree_model(name: str, d_model: int) -> None:
    wanted = count_parameters("ebt-grc", d_model)
    options = equal_sized_options(name, d_model, wanted)
    made = create_encoder(name, d_model, **options)
    assert sum(weight.numel() for weight in made.parameters()) == pytest.approx(
        wanted, rel=LARGEST_DIFFERENCE
    )


@pytest.mark.parametrize("name", SHAPES)
def test_no_other_size_comes_nearer(name: str) -> None:
    wanted = count_parameters("ebt-grc", 128)
    fixed, solved = SHAPES[name]
    size = equal_sized_options(name, 128, wanted)[solved]
    step = 1 if solved == "state_size" else 4
    distances = [
        abs(count_parameters(name, 128, **fixed, **{solved: other}) - wanted)
        for other in (size - step, size, size + step)
    ]
    assert min(distances) == distances[1]


def test_the_gold_tree_has_the_same_cell_and_nothing_to_solve_for() -> None:
    assert equal_sized_options("gold-grc", 128, 1000) == {}
    assert count_parameters("gold-grc", 128) == pytest.approx(count_parameters("ebt-grc", 128), rel=0.05)


def test_a_size_that_cannot_be_had_is_refused() -> None:
    with pytest.raises(
        BeamtreeError, match=r"mamba of width 128 cannot have 1,000 parameters: the closest is"
    ):
        equal_sized_options("mamba", 128, 1000)
