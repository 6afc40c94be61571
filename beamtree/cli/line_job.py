"""Runs a slow function over a long file row by row: in constant memory, resumable, divided among processes.

A row is a line of text or a row of a table; each gives one line of output.

Row i belongs to chunk ⌊i / chunk_lines⌋ and chunk c to process c mod P. Each process appends its chunks to a
part file of its own; the first process joins the parts in order, and only a complete output gets its name.
"""

import glob
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from beamtree.data.unlabelled import TextRow, Unlabelled
from beamtree.errors import BeamtreeError
from beamtree.files.atomic import flush_folder, replace_file, replacing
from beamtree.files.bounded import read_json
from beamtree.files.lines import in_blocks
from beamtree.printable import write_json
from beamtree.training.processes import Processes

Transform = Callable[[list[TextRow]], list[str]]  # one line for each row


class LineJob:
    """Writes one output file; next to it, the sidecar `NAME.job.json` records what it is made from."""

    def __init__(
        self,
        source: Unlabelled,
        out: Path,
        made_of: dict[str, Any],
        processes: Processes,
        chunk_lines: int = 512,
        header: str | None = None,  # the first line of the output
    ) -> None:
        """Reads the source once, for its number of lines and a checksum of its text."""
        checksum, self.lines = hashlib.sha256(), 0
        for row in source.read():
            checksum.update(str(row).encode() + b"\n")
            self.lines += 1
        if processes.count > 1:  # a short file still gives every process something to do
            chunk_lines = min(chunk_lines, -(-self.lines // (4 * processes.count)))
        self.source, self.out, self.processes, self.chunk_lines = source, out, processes, chunk_lines
        self.headers = [] if header is None else [header]
        self.sidecar = out.with_name(f"{out.name}.job.json")
        self.made_of = {
            **made_of,
            "input": checksum.hexdigest(),
            "lines": self.lines,
            "number_of_processes": processes.count,
            "number_of_lines_in_a_chunk": chunk_lines,
            **({} if header is None else {"header": header}),
        }

    @property
    def own_lines(self) -> int:
        """The number of lines that this process writes."""
        starts = range(0, self.lines, self.chunk_lines)[self.processes.rank :: self.processes.count]
        return sum(min(self.chunk_lines, self.lines - start) for start in starts)

    def part(self, rank: int) -> Path:
        return self.out.with_name(f"{self.out.name}.part{rank}of{self.processes.count}")

    def _parts_there(self) -> list[Path]:
        """The part files that exist, whatever the number of processes."""
        return list(self.out.parent.glob(f"{glob.escape(self.out.name)}.part*of*"))

    def run(
        self,
        transform: Transform,
        *,
        resume: bool = False,
        overwrite: bool = False,
        advance: Callable[[int], None] = lambda lines: None,
    ) -> bool:
        """Write the output; `advance` is told of lines done. False if there was nothing left to do."""
        finished = self._check(resume, overwrite)
        if finished:
            return False
        self.processes.wait()  # no process may write before all have checked
        try:
            if self.processes.first:
                self._prepare(resume)
            self.processes.wait()
            self._write_part(transform, advance)
            self.processes.wait()
            if self.processes.first:
                self._join()
        except OSError as error:
            where = error.filename or self.part(self.processes.rank)
            raise BeamtreeError(
                f"cannot write {where}: {error.strerror or error}; what was done is kept for --resume"
            ) from error
        self.processes.wait()
        return True

    def _check(self, resume: bool, overwrite: bool) -> bool:
        """Raise if work would be lost; True if the output is already complete."""
        if not self.out.parent.is_dir():
            raise BeamtreeError(f"there is no folder {self.out.parent} to write {self.out.name} in")
        if not os.access(self.out.parent, os.W_OK):
            raise BeamtreeError(f"the folder {self.out.parent} is read-only: choose another place with --out")
        if self.out.is_dir():
            raise BeamtreeError(f"{self.out} is a folder; --out must name a file")
        if self.out.exists() and self.out.samefile(self.source.path):
            raise BeamtreeError(f"--out names the input file {self.out}: choose another name")
        parts = self._parts_there()
        if overwrite:
            return False
        if not resume:
            if parts:
                raise BeamtreeError(
                    f"{self.out} is unfinished: --resume continues it, --overwrite starts afresh"
                )
            if self.out.exists():
                raise BeamtreeError(f"{self.out} exists: --overwrite replaces it, --resume completes it")
            return False
        if not self.out.exists() and not any(part.stat().st_size for part in parts):
            return False  # a process killed before its first line leaves an empty part
        recorded = self._recorded()
        for key, wanted in self.made_of.items():
            if recorded.get(key) != wanted:
                raise BeamtreeError(
                    f"cannot resume {self.out}: it was made with another {key.replace('_', ' ')} "
                    f"({_short(recorded.get(key))}, now {_short(wanted)}); --overwrite starts afresh"
                )
        return not parts

    def _recorded(self) -> dict[str, Any]:
        try:
            recorded = read_json(self.sidecar)
        except BeamtreeError as error:
            raise BeamtreeError(
                f"cannot resume {self.out}: {self.sidecar.name}, which says how it was made, is missing "
                "or damaged; --overwrite starts afresh"
            ) from error
        return recorded if isinstance(recorded, dict) else {}

    def _prepare(self, resume: bool) -> None:
        for path in self._parts_there():
            if not resume or not path.stat().st_size:
                path.unlink()
        # The part file comes first: a sidecar without part files describes a complete output.
        self.part(0).touch()
        replace_file(self.sidecar, write_json(self.made_of, indent=2) + "\n")

    def _write_part(self, transform: Transform, advance: Callable[[int], None]) -> None:
        path = self.part(self.processes.rank)
        done = _keep_whole_lines(path)
        headers = self.headers if self.processes.first else []
        with path.open("a", encoding="utf-8", newline="\n") as file:
            if not done:
                file.writelines(header + "\n" for header in headers)
            done = max(0, done - len(headers))
            advance(done)
            for rows in self._own_blocks():
                if done >= len(rows):
                    done -= len(rows)
                    continue
                results = transform(rows)
                if len(results) != len(rows) or any("\n" in result for result in results):
                    raise ValueError(f"transform must give one line for each of {len(rows)} lines")
                # An interrupted block is computed again as a whole: same batches, same bytes.
                file.writelines(result + "\n" for result in results[done:])
                file.flush()
                os.fsync(file.fileno())
                advance(len(rows) - done)
                done = 0

    def _own_blocks(self) -> Iterator[list[TextRow]]:
        """This process's chunks; a chunk of long lines comes in several blocks."""
        rows = self.source.read()
        for chunk in itertools.cycle(range(self.processes.count)):
            found = False
            for block in in_blocks(itertools.islice(rows, self.chunk_lines), self.chunk_lines):
                found = True
                if chunk == self.processes.rank:
                    yield block
            if not found:
                return

    def _join(self) -> None:
        parts = [self.part(rank) for rank in range(self.processes.count)]
        lines = -len(self.headers)
        for part in parts:
            with part.open("rb") as file:
                lines += sum(1 for _ in file)
        if lines != self.lines:
            raise BeamtreeError(
                f"{lines} lines were written for {self.lines} rows: did {self.source.path} change meanwhile?"
            )
        if len(parts) == 1:
            os.replace(parts[0], self.out)
            flush_folder(self.out.parent)
            return
        with ExitStack() as stack:
            target = stack.enter_context(replacing(self.out))
            sources = [stack.enter_context(part.open("rb")) for part in parts]
            target.writelines(itertools.islice(sources[0], len(self.headers)))
            for chunk in range(0, lines, self.chunk_lines):
                source = sources[chunk // self.chunk_lines % len(sources)]
                target.writelines(itertools.islice(source, self.chunk_lines))
        for part in parts:
            part.unlink()


def _keep_whole_lines(path: Path) -> int:
    """Drop an incomplete last line; return the number of lines that remain."""
    if not path.exists():
        return 0
    lines = end = 0
    with path.open("r+b") as file:
        for line in file:
            if line.endswith(b"\n"):
                lines, end = lines + 1, end + len(line)
        file.truncate(end)
    return lines


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 16 else text[:12] + "…"
