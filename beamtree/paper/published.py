"""The figures that the paper prints: `published.toml` as typed tables."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

_PRINTED: dict[str, Any] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"),
)

LABELS: dict[str, str] = _PRINTED["labels"]

# Rows of recipes whose settings are not the paper's.
OPTIONAL = ("beyond", "second-cell")

# Not run by the authors, who copied the figures from the Ordered Memory paper.
COPIED = ("transformer", "universal-transformer")


@dataclass(frozen=True)
class Figure:
    centre: str  # in percent, with the paper's digits
    spread: str

    @property
    def value(self) -> float:
        return float(self.centre)

    @property
    def least(self) -> float:
        """What is still at its level: one standard deviation less, in the digits in which accuracies are
        compared (in binary, 99.9 − 0.02 is more than 99.88)."""
        return round(self.value - float(self.spread), 2)

    def __str__(self) -> str:
        return f"{self.centre} ±{self.spread}"


@dataclass(frozen=True)
class PaperTable:
    """One task: `columns` maps our splits to the paper's headings, `rows` our names to its figures."""

    task: str
    title: str
    number: str
    training: str  # what the models are trained on
    columns: dict[str, str]
    rows: dict[str, dict[str, Figure]]  # splits without a published figure are missing
    median: bool = False

    @property
    def statistic(self) -> str:
        return "median" if self.median else "mean"


def _paper_table(
    task: str, *, rows: dict[str, list[str]], columns: dict[str, str], **about: Any
) -> PaperTable:
    figures = {
        name: {
            split: Figure(*text.split("±")) for split, text in zip(columns, texts, strict=True) if text != "–"
        }
        for name, texts in rows.items()
    }
    return PaperTable(task, rows=figures, columns=columns, **about)


TABLES = {task: _paper_table(task, **table) for task, table in _PRINTED["tables"].items()}


def group(row: str) -> str | None:
    """The group in which the best row is marked; options and models that know the gold tree have none."""
    if row in ("gold-grc", *OPTIONAL):
        return None
    return "interaction" if row.endswith("gau") else "sentence"


class Efficiency(NamedTuple):
    """Time and memory for 100 ListOps expressions in Table 1."""

    minutes: float
    gigabytes: float  # decimal


class EfficiencyRow(NamedTuple):
    label: str
    figures: dict[str, Efficiency | None]  # by range of tokens; None: out of memory


def _efficiency_row(label: str, minutes: list[Any], gigabytes: list[Any]) -> EfficiencyRow:
    pairs = zip(_PRINTED["efficiency"]["ranges"], minutes, gigabytes, strict=True)
    return EfficiencyRow(
        label, {name: None if time == "OOM" else Efficiency(time, space) for name, time, space in pairs}
    )


TABLE_1 = {name: _efficiency_row(**row) for name, row in _PRINTED["efficiency"]["rows"].items()}


def label_of(model: str) -> str:
    """A model's name in Table 1, or else its name here."""
    return TABLE_1[model].label if model in TABLE_1 else model
