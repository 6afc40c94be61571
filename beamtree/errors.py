"""What a user can mend: a file, a recipe, an expression, an option."""


class BeamtreeError(ValueError):
    """The message names what was wrong and what to do; the command line prints it without a trace."""


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
    """What another library says of its error, in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
