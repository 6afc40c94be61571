"""How a command speaks: in sentences and names that may quote anything, and are printed without harm."""

from typing import TYPE_CHECKING

import typer

from beamtree.printable import printable

if TYPE_CHECKING:
    from rich.text import Text


def say(sentence: str, *, err: bool = True) -> None:
    """A line on standard error, or on standard output."""
    typer.echo(printable(sentence), err=err)


def name(text: str) -> "Text":
    """A name in a table or beside a bar, where rich would take brackets for its markup."""
    from rich.text import Text

    return Text(printable(text))
