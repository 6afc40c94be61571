"""A long file through a slow function, line by line: constant memory, resumable, shared out over processes.

Line i belongs to chunk ⌊i / chunk_lines⌋ and chunk c to process c mod P. Each process appends its chunks to a
part file of its own; the first process joins the parts in order, and only a whole output gets its name.
"""

import glob
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beamtree.errors import BeamtreeError
from beamtree.files.atomic import flush_folder, replace_file, replacing
from beamtree.files.bounded import read_json
from beamtree.files.lines import in_blocks, read_lines
from beamtree.printable import write_json
from beamtree.processes.launched import Processes

Transform = Callable[[int, list[str]], list[str]]  # number of the first line (from 1), lines -> as many lines


@dataclass(frozen=True)
class TextFile:
    """What a first pass over an input file tells."""

    path: Path
    lines: int
    checksum: str


def survey(path: Path) -> TextFile:
    """Read a file once: its number of lines and a checksum of its text."""
    checksum, lines = hashlib.sha256(), 0
    for _, line in read_lines(path):
        checksum.update(line.encode() + b"\n")
        lines += 1
    return TextFile(path, lines, checksum.hexdigest())


class LineJob:
    """One output file in the making, beside it a sidecar `NAME.job.json` that says what it is made of."""

    def __init__(
        self,
        source: TextFile,
        out: Path,
        made_of: dict[str, Any],
        processes: Processes,
        chunk_lines: int = 512,
    ) -> None:
        if processes.count > 1:  # a short file still gives every process something to do
            chunk_lines = min(chunk_lines, -(-source.lines // (4 * processes.count)))
        self.source, self.out, self.processes, self.chunk_lines = source, out, processes, chunk_lines
        self.sidecar = out.with_name(f"{out.name}.job.json")
        self.made_of = {
            **made_of,
            "input": source.checksum,
            "lines": source.lines,
            "number_of_processes": processes.count,
            "number_of_lines_in_a_chunk": chunk_lines,
        }

    @property
    def own_lines(self) -> int:
        """How many of the lines are this process's."""
        starts = range(0, self.source.lines, self.chunk_lines)[self.processes.rank :: self.processes.count]
        return sum(min(self.chunk_lines, self.source.lines - start) for start in starts)

    def part(self, rank: int) -> Path:
        return self.out.with_name(f"{self.out.name}.part{rank}of{self.processes.count}")

    def run(
        self,
        transform: Transform,
        *,
        resume: bool = False,
        overwrite: bool = False,
        advance: Callable[[int], None] = lambda lines: None,
    ) -> bool:
        """Write the output; `advance` hears of lines done. False if there was nothing left to do."""
        finished = self._check(resume, overwrite)
        if finished:
            return False
        self.processes.wait()  # no process may write before all have looked
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
        """Refuse what would lose work; True if the output is already whole."""
        if not self.out.parent.is_dir():
            raise BeamtreeError(f"there is no folder {self.out.parent} to write {self.out.name} in")
        if not os.access(self.out.parent, os.W_OK):
            raise BeamtreeError(f"the folder {self.out.parent} is read-only: choose another place with --out")
        if self.out.is_dir():
            raise BeamtreeError(f"{self.out} is a folder; --out must name a file")
        if self.out.exists() and self.out.samefile(self.source.path):
            raise BeamtreeError(f"--out names the input file {self.out}: choose another name")
        parts = sorted(self.out.parent.glob(f"{glob.escape(self.out.name)}.part*of*"))
        if overwrite:
            return False
        if not resume:
            if parts:
                raise BeamtreeError(
                    f"{self.out} is half done: --resume continues it, --overwrite starts afresh"
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
                f"cannot resume {self.out}: {self.sidecar.name}, which says what it was made of, is missing "
                "or damaged; --overwrite starts afresh"
            ) from error
        return recorded if isinstance(recorded, dict) else {}

    def _prepare(self, resume: bool) -> None:
        for path in self.out.parent.glob(f"{glob.escape(self.out.name)}.part*of*"):
            if not resume or not path.stat().st_size:
                path.unlink()
        # The part comes first: without one, the sidecar speaks of the whole output that is there.
        self.part(0).touch()
        replace_file(self.sidecar, write_json(self.made_of, indent=2) + "\n")

    def _write_part(self, transform: Transform, advance: Callable[[int], None]) -> None:
        path = self.part(self.processes.rank)
        done = _keep_whole_lines(path)
        advance(done)
        with path.open("a", encoding="utf-8", newline="\n") as file:
            for first, lines in self._own_blocks():
                if done >= len(lines):
                    done -= len(lines)
                    continue
                results = transform(first, lines)
                if len(results) != len(lines) or any("\n" in result for result in results):
                    raise ValueError(f"transform must give one line for each of {len(lines)} lines")
                # A block that was cut off is computed whole again: same batches, same bytes.
                file.writelines(result + "\n" for result in results[done:])
                file.flush()
                os.fsync(file.fileno())
                advance(len(lines) - done)
                done = 0

    def _own_blocks(self) -> Iterator[tuple[int, list[str]]]:
        """This process's chunks, those of long lines in several blocks, with the number of the first line."""
        lines = (line for _, line in read_lines(self.source.path))
        for chunk in itertools.count():
            place = start = chunk * self.chunk_lines
            for block in in_blocks(itertools.islice(lines, self.chunk_lines), self.chunk_lines):
                if chunk % self.processes.count == self.processes.rank:
                    yield place + 1, block
                place += len(block)
            if place == start:
                return

    def _join(self) -> None:
        parts = [self.part(rank) for rank in range(self.processes.count)]
        lines = 0
        for part in parts:
            with part.open("rb") as file:
                lines += sum(1 for _ in file)
        if lines != self.source.lines:
            raise BeamtreeError(
                f"{lines} lines came out of {self.source.lines}: did {self.source.path} change meanwhile?"
            )
        if len(parts) == 1:
            os.replace(parts[0], self.out)
            flush_folder(self.out.parent)
            return
        with ExitStack() as stack:
            target = stack.enter_context(replacing(self.out))
            sources = [stack.enter_context(part.open("rb")) for part in parts]
            for chunk in range(0, lines, self.chunk_lines):
                source = sources[chunk // self.chunk_lines % len(sources)]
                target.writelines(itertools.islice(source, self.chunk_lines))
        for part in parts:
            part.unlink()


def _keep_whole_lines(path: Path) -> int:
    """Drop a torn last line; the number of lines that stay."""
    if not path.exists():
        return 0
    lines, end, position = 0, 0, 0
    with path.open("r+b") as file:
        while block := file.read(1 << 20):
            newlines = block.count(b"\n")
            if newlines:
                lines += newlines
                end = position + block.rindex(b"\n") + 1
            position += len(block)
        file.truncate(end)
    return lines


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 16 else text[:12] + "…"
