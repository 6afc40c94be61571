"""What was measured, on what and how: as JSON, as Markdown and as tables for a terminal."""

import platform
import sys
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import beamtree
from beamtree.paper.speed.measure import Measured
from beamtree.paper.speed.table1 import Cell
from beamtree.paper.speed.tables import Table, against_naive, paper_tables, size_tables
from beamtree.printable import write_json

_PROCESSOR = Path("/proc/cpuinfo")


@dataclass
class Report:
    """`groups` of the suites of sizes, or `cells` of the paper's table."""

    suite: str
    settings: dict[str, Any]
    environment: dict[str, Any]
    groups: Measured = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    interrupted: bool = False

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

    def to_markdown(self) -> str:
        e = self.environment
        lines = [
            f"beamtree {e['beamtree']}, suite {self.suite}, {e['device']}, torch {e['torch']}, "
            f"{e['threads']} threads, float32 matrix products `{e['matmul_precision']}`"
            + (", interrupted" if self.interrupted else ""),
        ]
        for table in self.tables():
            lines += ["", *table.to_markdown()]
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
        "command": sys.argv[1:],
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor_name() -> str:
    lines = _PROCESSOR.read_text().splitlines() if _PROCESSOR.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
