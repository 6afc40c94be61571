"""The results of a benchmark, with machine and settings: as JSON, as Markdown and as tables of time and
memory, compared with the original algorithm or the published figures.
"""

import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from typing import Any

import torch

import beamtree
from beamtree.engine.compiled import why_not_compiled
from beamtree.paper.published import TABLE_1, label_of
from beamtree.paper.speed.fresh_process import OUT_OF_MEMORY
from beamtree.paper.speed.measure import Group, Measurement
from beamtree.paper.speed.table1 import PAPER_SAMPLES, RangeResult
from beamtree.paper.speed.workload import NAIVE, PLAIN, VARIED, measurable_names
from beamtree.paper.table import NOTHING, Table
from beamtree.printable import write_json
from beamtree.pytorch import capturing

_PROCESSOR = Path("/proc/cpuinfo")
NOISE = 1_000_000  # bytes by which the peaks of identical processes differ


@dataclass
class Benchmark:
    """Has `groups` if sizes were varied, `cells` for the paper's table."""

    suite: str
    settings: dict[str, Any]
    environment: dict[str, Any]
    groups: list[Group] = field(default_factory=list)
    cells: list[RangeResult] = field(default_factory=list)
    interrupted: bool = False

    @contextmanager
    def until_interrupted(self) -> Iterator[None]:
        """Ctrl-C ends measuring and keeps what was measured."""
        try:
            yield
        except KeyboardInterrupt:
            self.interrupted = True

    def to_json(self) -> str:
        measured = []
        for group in self.groups:
            for one in group:
                faster, less = against_naive(one, group)
                ratios = {"times_faster_than_naive": faster, "times_less_memory_than_naive": less}
                measured.append({**one.to_dict(), **ratios})
        content = {
            "suite": self.suite,
            "interrupted": self.interrupted,
            "environment": self.environment,
            "settings": self.settings,
            "measurements": [*measured, *(cell.to_dict() for cell in self.cells)],
        }
        return write_json(content, indent=2, ensure_ascii=False) + "\n"

    def tables(self) -> list[Table]:
        if self.suite == "paper":
            return paper_tables(self.cells)
        return size_tables(self.groups, with_tokens=self.suite == "throughput")

    def headline(self) -> str:
        """The suite, the machine, versions and settings in a line."""
        e = self.environment
        threads = f"{e['threads']} thread{'' if e['threads'] == 1 else 's'}"
        return (
            f"beamtree {e['beamtree']}, suite {self.suite}, {e['device']}, torch {e['torch']}, "
            f"{threads}, float32 matrix products `{e['matmul_precision']}`, "
            f"search {e['search']}; a step is {self.settings['step']}"
            + ("; interrupted" if self.interrupted else "")
        )

    def to_markdown(self) -> str:
        lines = [self.headline()]
        for table in self.tables():
            lines += ["", f"**{table.title}**", "", *table.to_markdown()]
            lines += [line for sentence in table.remarks for line in ("", sentence)]
        return "\n".join(lines) + "\n"


def describe_environment(device: torch.device) -> dict[str, Any]:
    on_gpu = device.type == "cuda"
    return {
        "beamtree": beamtree.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if on_gpu else _processor_name(),
        "device_type": device.type,
        "cuda": torch.version.cuda,
        "triton": _version("triton"),
        "threads": torch.get_num_threads(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "search": _how_it_searches(on_gpu),
        "command": sys.argv[1:],
    }


def _how_it_searches(on_gpu: bool) -> str:
    if on_gpu:
        return "in kernels" if capturing.are_wanted() else "in kernels, without CUDA graphs"
    reason = why_not_compiled()
    return "in C" if reason is None else f"in PyTorch ({reason})"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor_name() -> str:
    lines = _PROCESSOR.read_text().splitlines() if _PROCESSOR.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def size_tables(groups: Sequence[Group], *, with_tokens: bool = False) -> list[Table]:
    """A table for each size that was varied, for inference and for training."""
    tables = []
    for varied, inference in product(VARIED, (True, False)):
        alike = [g for g in groups if (g[0].varied, g[0].case.inference) == (varied, inference)]
        if alike:
            tables.append(_size_table(alike, varied, with_tokens))
    return tables


def _size_table(groups: Sequence[Group], varied: str, with_tokens: bool) -> Table:
    cases = [one.case for group in groups for one in group]
    sizes = {name: {case.size(name) for case in cases} - {None} for name in VARIED}
    shown = [name for name in VARIED if name in ("n", varied) or len(sizes[name]) > 1]
    constant = [f"{name} = {sizes[name].pop()}" for name in VARIED if name not in shown and sizes[name]]
    inference = cases[0].inference
    with_naive = any(case.model == NAIVE for case in cases)

    def row(one: Measurement, group: Group) -> dict[str, str]:
        faster, less = against_naive(one, group)
        cells = {
            "B": _number(one.case.B),
            **{name: _number(one.case.size(name)) for name in shown},
            "model": one.case.model,
            "ms": one.problem or _number(one.milliseconds),
            "from–to ms": _spread(one),
        }
        if inference:
            searches = one.case.model not in PLAIN
            cells["µs per search step"] = _number(one.microseconds_a_search_step if searches else None)
        if with_tokens:
            cells["tokens/s"] = _number(one.tokens_per_second)
        if with_naive:
            cells["faster than naive"] = _factor(faster)
        cells["peak MB"] = _number(one.megabytes)
        if with_naive:
            cells["less memory than naive"] = _factor(less)
        return cells

    step = "forward pass" if inference else "training step"
    title = f"One {step} by {varied}" + (f" ({', '.join(constant)})" if constant else "")
    rows = [row(one, group) for group in groups for one in group]
    return _table(title, list(rows[0]), [list(cells.values()) for cells in rows])


def against_naive(one: Measurement, group: Iterable[Measurement]) -> tuple[float | None, float | None]:
    """How many times faster than the original algorithm in the group, and how many times less memory."""
    naive = next((other for other in group if other.case.model == NAIVE), None)
    if naive is None:
        return None, None
    peaks = naive.peak_bytes, one.peak_bytes
    is_seen = all(peak is not None and peak > NOISE for peak in peaks)
    return _ratio(naive.seconds, one.seconds), _ratio(*peaks) if is_seen else None


def paper_tables(cells: Sequence[RangeResult]) -> list[Table]:
    """Table 1 on this machine with the published figures, and the time per expression."""
    ranges = list(dict.fromkeys(cell.range for cell in cells))
    found = {(cell.model, cell.range): cell for cell in cells}
    models = list(dict.fromkeys(cell.model for cell in cells))

    def table(title: str, write: Callable[[RangeResult], str], note: str = "") -> Table:
        rows = []
        for model in models:
            row = [found.get((model, name)) for name in ranges]
            rows.append([label_of(model), *(NOTHING if cell is None else write(cell) for cell in row)])
        return _table(title, ["model", *ranges], rows, note)

    epoch = f"{PAPER_SAMPLES} ListOps expressions, batch 1"
    note = "In brackets the published figures (RTX A6000, 48 GB)"
    for model in models:
        if f"{model}-faithful" in measurable_names():
            note += f"; {label_of(model)} caches candidates, {model}-faithful recomputes them as published"
    return [
        table(f"Minutes for {epoch}", _minutes, f"{note}; ~ marks extrapolation from fewer expressions."),
        table(f"Peak memory for {epoch}, GB", _gigabytes, f"{note}."),
        table(
            "Milliseconds per expression, mean",
            lambda cell: cell.problem or _number(cell.milliseconds),
        ),
    ]


def _table(title: str, headers: list[str], rows: Sequence[Sequence[str]], note: str = "") -> Table:
    words, remarks = [headers.index("model")], [note] if note else []
    return Table("", title, "", headers, rows, words=words, remarks=remarks)


def _minutes(cell: RangeResult) -> str:
    about = "~" if cell.extrapolated else ""
    here = "OOM" if cell.problem == OUT_OF_MEMORY else about + _number(cell.minutes)
    return here + _published(cell, "minutes")


def _gigabytes(cell: RangeResult) -> str:
    here = "OOM" if cell.problem == OUT_OF_MEMORY else _number(cell.megabytes and cell.megabytes / 1e3)
    return here + _published(cell, "gigabytes")


def _published(cell: RangeResult, quantity: str) -> str:
    row = TABLE_1.get(cell.model)
    if row is None or cell.range not in row.figures:
        return ""
    return " (OOM)" if cell.published is None else f" ({getattr(cell.published, quantity):g})"


def _spread(one: Measurement) -> str:
    times = [1e3 * timing.seconds for timing in one.timings]
    return f"{_number(min(times))}–{_number(max(times))}" if times else NOTHING


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _factor(value: float | None) -> str:
    return NOTHING if value is None else f"{_number(value)}×"


def _number(value: float | None) -> str:
    """Three significant digits; whole numbers, and those from 100 on, with all digits before the point."""
    if value is None:
        return NOTHING
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
