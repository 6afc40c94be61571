"""What a user can mend: a file, a recipe, an expression, an option."""

import difflib
from collections.abc import Iterable

from beamtree.printable import printable


class BeamtreeError(ValueError):
    """The message names what was wrong and what to do; the command line prints it without a trace.

    It is one line that can be printed, whatever it quotes.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(message))


class SharedError(BeamtreeError):
    """Every process of a run raises this with the same message, so it is enough if the first one says it."""


class UnreadableTextError(BeamtreeError):
    """A text is not in its task's language; `token` is the first that is out of place, from 0, if one is."""

    def __init__(self, message: str, token: int | None = None) -> None:
        super().__init__(message)
        self.token = token


class MissingExtraError(BeamtreeError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""

    def __init__(self, purpose: str, extra: str) -> None:
        super().__init__(f"{purpose} needs an optional dependency: pip install 'beamtree[{extra}]'")


def first_line(error: Exception) -> str:
    """What another library says of its error, in one line that is not too long."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def nearest(word: str, known: Iterable[str], *, prefix: str = "") -> str:
    """How a message about an unknown name ends: the closest known one, after its section, or all of them."""
    names = list(known)
    in_small_letters = {name.lower(): name for name in names}
    if not names:
        return "; there are none"
    close = difflib.get_close_matches(word[:100].lower(), in_small_letters, n=1)
    if close:
        return f"; did you mean {prefix + in_small_letters[close[0]]!r}?"
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"; there {'is' if len(names) == 1 else 'are'} {', '.join(names[:20])}{more}"
