"""Models of equal size: each has one option that is solved for, so that all have as many parameters."""

from typing import Any, NamedTuple

from beamtree.errors import BeamtreeError
from beamtree.zoo.by_name import create_encoder

LARGEST_DIFFERENCE = 0.05  # of the parameters


class Shape(NamedTuple):
    """What of a model is fixed, and the option that gives it its size."""

    fixed: dict[str, Any]
    solved: str


SHAPES = {
    "bilstm": Shape({"layers": 2}, "hidden_size"),
    "rotary-transformer": Shape({"layers": 4}, "hidden_size"),
    "universal-transformer": Shape({}, "hidden_size"),
    "s4d": Shape({"layers": 6}, "state_size"),
    "mamba": Shape({"layers": 4}, "inner_size"),
    "ssm-ebt-grc": Shape({"layers": 2}, "tree_size"),
}


def count_parameters(name: str, d_model: int, **options: Any) -> int:
    """Of an encoder, which is not made for it."""
    encoder = create_encoder(name, d_model, device="meta", **options)
    return sum(weight.numel() for weight in encoder.parameters())


def equal_sized_options(name: str, d_model: int, wanted: int, **given: Any) -> dict[str, Any]:
    """The options, beside those given, with which an encoder comes nearest to `wanted` parameters.

    One that has no option to solve for is left as it is; one that does not come near enough is refused.
    """
    if name not in SHAPES:
        return given
    fixed, solved = {**given, **SHAPES[name].fixed}, SHAPES[name].solved
    step = 1 if solved == "state_size" else max(1, d_model // 32)  # a GPU likes round widths

    def count(steps: int) -> int:
        return count_parameters(name, d_model, **fixed, **{solved: steps * step})

    below, above = 1, 2
    while count(above) < wanted:
        below, above = above, 2 * above
    while above - below > 1:  # it grows with its option
        middle = (below + above) // 2
        below, above = (middle, above) if count(middle) < wanted else (below, middle)
    steps = min((below, above), key=lambda steps: abs(count(steps) - wanted))
    if abs(count(steps) - wanted) > LARGEST_DIFFERENCE * wanted:
        raise BeamtreeError(
            f"{name} of width {d_model} cannot have {wanted:,} parameters: the nearest is {count(steps):,} "
            f"({solved} = {steps * step})"
        )
    return {**fixed, solved: steps * step}
