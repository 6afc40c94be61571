"""Errors that a user can fix: in a file, a recipe, an expression or an option."""

import difflib
from collections.abc import Iterable

from beamtree.printable import printable


class BeamtreeError(ValueError):
    """An error that the user can fix; its message says what was wrong and what to do.

    The command line prints the message without a traceback. The message is always a single printable line;
    special characters in quoted text are escaped.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(message))


class SharedError(BeamtreeError):
    """An error that every process of a run raises with the same message, so only the first one prints it."""


class UnreadableTextError(BeamtreeError):
    """A text is not in its task's language; `token` is the index of the first wrong token, if known."""

    def __init__(self, message: str, token: int | None = None) -> None:
        super().__init__(message)
        self.token = token


class MissingExtraError(BeamtreeError, ImportError):
    """An optional dependency is not installed; the message names the extra that provides it."""

    def __init__(self, purpose: str, extra: str) -> None:
        super().__init__(f"{purpose} needs an optional dependency: pip install 'beamtree[{extra}]'")


def first_line(error: Exception) -> str:
    """Return the first line of another library's error message, cut to 300 characters."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def nearest(word: str, known: Iterable[str], *, prefix: str = "") -> str:
    """Return the end of a message about an unknown name: the closest known name, or a list of known names.

    `prefix` is put before the suggested name, such as the section of a setting.
    """
    names = list(known)
    in_small_letters = {name.lower(): name for name in names}
    if not names:
        return "; there are none"
    close = difflib.get_close_matches(word[:100].lower(), in_small_letters, n=1)
    if close:
        return f"; did you mean {prefix + in_small_letters[close[0]]!r}?"
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"; there {'is' if len(names) == 1 else 'are'} {', '.join(names[:20])}{more}"
