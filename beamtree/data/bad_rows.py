"""Rows of a data file that cannot be used: told with file and line, counted, and refused or skipped."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from beamtree.errors import BeamtreeError

CHOICES = ("refuse", "skip")
_SHOWN = 5  # of each file
_MOST = 1_000_000  # of each file


@dataclass
class BadRows:
    """Every reader tells this of the rows it cannot use: the first one ends the reading, or none does."""

    skip: bool = False
    # File -> line -> what is wrong, of the first lines.
    found: dict[Path, dict[int, str]] = field(default_factory=dict)

    @classmethod
    def chosen(cls, choice: str) -> "BadRows":
        if choice not in CHOICES:
            raise BeamtreeError(f"bad rows are dealt with by one of {', '.join(CHOICES)}, got {choice!r}")
        return cls(skip=choice == "skip")

    def meet(self, path: Path, line: int, reason: str) -> None:
        """Refuse the row, or count it and let the reader go on."""
        if not self.skip:
            remedy = "to leave such rows out: train --set task.bad_rows=skip, eval --bad-rows skip"
            raise BeamtreeError(f"{path}, line {line}: {reason} ({remedy})")
        lines = self.found.setdefault(path, {})  # a file may be read for more than one split
        if line not in lines and len(lines) == _MOST:
            raise BeamtreeError(f"{path}: more than {_MOST:,} rows cannot be used; of the last {reason}")
        lines.setdefault(line, reason if len(lines) < _SHOWN else "")

    @property
    def count(self) -> int:
        return sum(map(len, self.found.values()))

    def report(self) -> Iterator[str]:
        """One sentence for each file that had any."""
        for path, lines in self.found.items():
            first = [f"line {line}: {reason}" for line, reason in list(lines.items())[:_SHOWN]]
            more = "; …" if len(lines) > _SHOWN else ""
            rows = "row was" if len(lines) == 1 else "rows were"
            yield f"{path}: {len(lines):,} bad {rows} skipped ({'; '.join(first)}{more})"
