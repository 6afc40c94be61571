"""Are two samples of one law? Pearson's test, at the level that chance fails once in 10,000."""

from collections.abc import Hashable, Mapping


def chi_square_limit(degrees: int, z: float = 3.72) -> float:
    """The quantile that chance passes once in 10,000 (Wilson and Hilferty)."""
    return degrees * (1 - 2 / (9 * degrees) + z * (2 / (9 * degrees)) ** 0.5) ** 3


def assert_same_law(one: Mapping[Hashable, int], other: Mapping[Hashable, int]) -> None:
    """How often values occurred in two samples of one size; those seen fewer than ten times are left out."""
    pairs = [(one.get(value, 0), other.get(value, 0)) for value in {*one, *other}]
    pairs = [pair for pair in pairs if sum(pair) >= 10]
    statistic = sum((left - right) ** 2 / (left + right) for left, right in pairs)
    assert len(pairs) >= 3
    assert statistic < chi_square_limit(len(pairs) - 1), (statistic, len(pairs))
