"""Generates the ListOps files: the same bytes for the same seed on every platform."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, groupby, islice
from pathlib import Path

from beamtree.data.listops.law import Law
from beamtree.data.listops.process import Choice, ConditionedProcess, Tree, free_process
from beamtree.data.listops.sampler import BitStream, draw_distinct
from beamtree.data.listops.splits import DRAWS, LRA_HEADER, SPLITS, Draw, find_split
from beamtree.errors import BeamtreeError
from beamtree.files.lines import COMPRESSIONS, write_lines


def generate_listops(
    out: Path,
    *,
    seed: int,
    splits: Sequence[str] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    overwrite: bool = False,
) -> dict[str, Path]:
    """Draw the splits named, or all, and write their files; returns the file of each split.

    The bytes of a file depend on its name and the seed alone. `progress` is called with a split, the lines of
    its file that are done, and how many there will be.
    """
    wanted = {name: find_split(name).file for name in (SPLITS if splits is None else splits)}
    existing = sorted(
        {
            file + ending
            for file in wanted.values()
            for ending in COMPRESSIONS
            if (out / (file + ending)).exists()
        }
    )
    if existing and not overwrite:
        raise BeamtreeError(f"{out} already has {', '.join(existing)}: choose another folder, or overwrite")
    draws = [draw for draw in DRAWS if not draw.files.keys().isdisjoint(wanted.values())]
    for draw, root in _with_roots(draws):

        def report(done: int, draw: Draw = draw) -> None:
            for split, file in wanted.items():
                if progress is not None and file in draw.files:
                    progress(split, done * draw.files[file] // draw.count, draw.files[file])

        lines = _draw_lines(draw, root, seed, report)
        for file, count in draw.files.items():
            part = list(islice(lines, count)) if len(draw.files) > 1 else lines
            if file in wanted.values():
                write_lines(out / file, chain([LRA_HEADER], part) if draw.lra_format else part)
    return {split: out / file for split, file in wanted.items()}


def _with_roots(draws: Sequence[Draw]) -> Iterator[tuple[Draw, Choice[Tree]]]:
    """Neighbours that differ in length alone share one law, as long as the longest needs."""
    for (process, nesting), group in groupby(draws, key=lambda draw: (draw.process, draw.nesting)):
        same = list(group)
        longest = max(draw.lengths[1] if draw.lengths else 1 for draw in same)
        conditioned = ConditionedProcess(Law(process, longest, *nesting))
        for draw in same:
            yield draw, conditioned.root(*draw.lengths) if draw.lengths else free_process(process)


def _draw_lines(draw: Draw, root: Choice[Tree], seed: int, report: Callable[[int], None]) -> Iterator[str]:
    bits = BitStream(seed, " ".join(draw.files))
    drawn = (
        f"{text}\t{value}" if draw.lra_format else f"{value}\t{text}"
        for value, text in draw_distinct(root, bits, draw.count)
    )
    lines = _reported(drawn, draw.count, report)
    if draw.lengths is None:
        # Early draws are short, as a short expression is new only once: without this the files would differ.
        shuffled = list(lines)
        bits.shuffle(shuffled)
        return iter(shuffled)
    return lines


def _reported(lines: Iterator[str], count: int, report: Callable[[int], None]) -> Iterator[str]:
    report(0)
    for done, line in enumerate(lines, start=1):
        if done % 500 == 0 or done == count:
            report(done)
        yield line
