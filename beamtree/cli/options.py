"""Options that several commands share: they read and mean the same everywhere."""

from pathlib import Path
from typing import Annotated

import typer

from beamtree.errors import BeamtreeError

Model = Annotated[str, typer.Argument(help="A model folder, a run folder or the name of a shipped model.")]
Beam = Annotated[int | None, typer.Option(min=1, help="Beams to search with.", show_default="as in training")]
BatchTokens = Annotated[
    int, typer.Option(min=1, help="Token places in a batch (rows × longest); lower it to save memory.")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, … or auto.")]


def refuse_to_replace(path: Path, overwrite: bool) -> None:
    """Raise before the work where a file to write would take the place of something."""
    if path.is_dir():
        raise BeamtreeError(f"{path} is a folder, name a file to write")
    if path.exists() and not overwrite:
        raise BeamtreeError(f"{path} exists: --overwrite replaces it")
