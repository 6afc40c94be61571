"""The paper's Table 1 as printed: minutes and GB for 100 ListOps expressions, batch 1, RTX A6000 (48 GB)."""

from typing import NamedTuple


class Figures(NamedTuple):
    minutes: float
    gigabytes: float  # decimal


class Row(NamedTuple):
    label: str
    figures: dict[str, Figures | None]  # by range of tokens; None: out of memory


def _row(label: str, *pairs: tuple[float, float] | None) -> Row:
    ranges = ("200-250", "500-600", "900-1000", "1500-2000")
    figures = [None if pair is None else Figures(*pair) for pair in pairs]
    return Row(label, dict(zip(ranges, figures, strict=True)))


TABLE_1 = {
    "om": _row("OM", (8.0, 0.09), (20.6, 0.21), (38.2, 0.35), (76.6, 0.68)),
    "crvnn-nohalt": _row("CRvNN (no halt)", (1.5, 1.57), (4.3, 12.2), (8.0, 42.79), None),
    "gt-grc": _row("GT-GRC", (0.5, 0.35), (2.1, 1.95), (3.5, 5.45), (7.1, 21.76)),
    "egt-grc": _row("EGT-GRC", (1.0, 0.07), (2.5, 0.3), (4.3, 0.81), (8.5, 3.15)),
    "bt-grc": _row("BT-GRC", (1.1, 1.71), (2.6, 9.82), (5.1, 27.27), None),
    "bt-grc-os": _row("BT-GRC OS", (1.4, 2.74), (4.0, 15.5), (7.1, 42.95), None),
    "ebt-grc": _row("EBT-GRC", (1.2, 0.19), (3.2, 1.01), (5.5, 2.78), (10.5, 10.97)),
    "ebt-grc-noslice": _row("EBT-GRC −slice", (1.2, 0.35), (3.2, 1.95), (5.4, 5.4), (10.3, 21.12)),
    "ebt-grc-512": _row("EBT-GRC (512)", (1.2, 0.41), (3.3, 1.29), (5.6, 3.13), (12.1, 11.41)),
    "ebt-grc-512-noslice": _row("EBT-GRC (512, −slice)", (1.2, 1.55), (3.3, 7.77), (5.5, 21.02), None),
}


def label_of(model: str) -> str:
    """As the paper writes it, or its name here."""
    return TABLE_1[model].label if model in TABLE_1 else model
