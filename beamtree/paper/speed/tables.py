"""Measurements as tables: times, memory, and both against the original algorithm or the published figures."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from beamtree.paper.speed.measure import Measured, Measurement
from beamtree.paper.speed.models import NAIVE, measurable_names
from beamtree.paper.speed.published import TABLE_1, label_of
from beamtree.paper.speed.table1 import PAPER_SAMPLES, Cell
from beamtree.paper.speed.workload import VARIED
from beamtree.processes.fresh import OUT_OF_MEMORY

if TYPE_CHECKING:
    from rich.console import Console

NOTHING = "–"
Column = Callable[[Measurement, list[Measurement]], str]  # the text for one measurement of a group


@dataclass(frozen=True)
class Table:
    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def to_markdown(self) -> list[str]:
        rule = ["---" if header == "model" else "---:" for header in self.headers]
        lines = [f"| {' | '.join(row)} |" for row in (self.headers, rule, *self.rows)]
        return [f"**{self.title}**", "", *lines, *(["", self.note] if self.note else [])]

    def print_to(self, console: "Console") -> None:
        from rich import box
        from rich.table import Table as RichTable

        table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        for header in self.headers:
            is_name = header == "model"
            table.add_column(header, justify="left" if is_name else "right", no_wrap=is_name)
        for row in self.rows:
            table.add_row(*row)
        console.print(f"\n{self.title}", style="bold", highlight=False, markup=False)
        console.print(table)
        if self.note:
            console.print(self.note, highlight=False, markup=False)


def size_tables(groups: Measured, *, with_tokens: bool = False) -> list[Table]:
    """A table for each size that was varied."""
    return [
        _size_table([group for group in groups if group[0].varied == varied], varied, with_tokens)
        for varied in VARIED
        if any(group[0].varied == varied for group in groups)
    ]


def _size_table(groups: Measured, varied: str, with_tokens: bool) -> Table:
    cases = [one.case for group in groups for one in group]
    sizes = {name: {case.size(name) for case in cases} - {None} for name in VARIED}
    shown = [name for name in VARIED if name in ("n", varied) or len(sizes[name]) > 1]
    constant = [f"{name} = {sizes[name].pop()}" for name in VARIED if name not in shown and sizes[name]]
    inference = cases[0].inference
    with_naive = any(case.model == NAIVE for case in cases)
    columns: dict[str, Column] = {
        "B": lambda one, group: _number(one.case.B),
        **{name: _size_column(name) for name in shown},
        "model": lambda one, group: one.case.model,
        "ms": lambda one, group: one.problem or _number(_times(1e3, one.seconds)),
        "from–to ms": lambda one, group: _spread(one),
    }
    if inference:
        columns["µs a search step"] = lambda one, group: _number(one.microseconds_a_search_step)
    if with_tokens:
        columns["tokens/s"] = lambda one, group: _number(one.tokens_per_second)
    if with_naive:
        columns["faster than naive"] = lambda one, group: _factor(against_naive(one, group)[0])
    columns["peak MB"] = lambda one, group: _number(_times(1e-6, one.peak_bytes))
    if with_naive:
        columns["less memory than naive"] = lambda one, group: _factor(against_naive(one, group)[1])
    title = f"One {'forward pass' if inference else 'training step'} by {varied}"
    title += f" ({', '.join(constant)})" if constant else ""
    rows = [[write(one, group) for write in columns.values()] for group in groups for one in group]
    return Table(title, list(columns), rows)


def _size_column(name: str) -> Column:
    return lambda one, group: _number(one.case.size(name))


def against_naive(one: Measurement, group: Iterable[Measurement]) -> tuple[float | None, float | None]:
    """How many times faster than the original algorithm beside it, and how many times less memory."""
    naive = next((other for other in group if other.case.model == NAIVE), None)
    if naive is None:
        return None, None
    return _ratio(naive.seconds, one.seconds), _ratio(naive.peak_bytes, one.peak_bytes)


def paper_tables(cells: Sequence[Cell]) -> list[Table]:
    """Table 1 here beside the published one, and the time of one expression."""
    ranges = list(dict.fromkeys(cell.range for cell in cells))
    found = {(cell.model, cell.range): cell for cell in cells}
    models = list(dict.fromkeys(cell.model for cell in cells))

    def table(title: str, write: Callable[[Cell], str], note: str = "") -> Table:
        rows = []
        for model in models:
            row = [found.get((model, name)) for name in ranges]
            rows.append([label_of(model), *(NOTHING if cell is None else write(cell) for cell in row)])
        return Table(title, ["model", *ranges], rows, note)

    epoch = f"{PAPER_SAMPLES} ListOps expressions, batch 1"
    note = "In brackets the published figures (RTX A6000, 48 GB)"
    for model in models:
        if f"{model}-faithful" in measurable_names():
            note += f"; {label_of(model)} keeps candidates, {model}-faithful makes them anew as published"
    return [
        table(f"Minutes for {epoch}", _minutes, f"{note}; ~ stands before what fewer expressions tell."),
        table(f"Peak memory for {epoch}, GB", _gigabytes, f"{note}."),
        table("Milliseconds an expression, mean", _milliseconds),
    ]


def _minutes(cell: Cell) -> str:
    about = "~" if cell.extrapolated else ""
    here = "OOM" if cell.problem == OUT_OF_MEMORY else about + _number(cell.minutes)
    return here + _published(cell, "minutes")


def _gigabytes(cell: Cell) -> str:
    here = "OOM" if cell.problem == OUT_OF_MEMORY else _number(_times(1e-9, cell.peak_bytes))
    return here + _published(cell, "gigabytes")


def _published(cell: Cell, quantity: str) -> str:
    row = TABLE_1.get(cell.model)
    if row is None or cell.range not in row.figures:
        return ""
    return " (OOM)" if cell.published is None else f" ({getattr(cell.published, quantity):g})"


def _milliseconds(cell: Cell) -> str:
    return cell.problem or _number(_times(60_000 / PAPER_SAMPLES, cell.minutes))


def _spread(one: Measurement) -> str:
    times = [1e3 * timing.seconds for timing in one.timings]
    return f"{_number(min(times))}–{_number(max(times))}" if times else NOTHING


def _times(factor: float, value: float | None) -> float | None:
    return None if value is None else factor * value


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _factor(value: float | None) -> str:
    return NOTHING if value is None else f"{_number(value)}×"


def _number(value: float | None) -> str:
    """Three digits that count, whole numbers in full."""
    if value is None:
        return NOTHING
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
