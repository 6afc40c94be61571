"""What a user can mend: a file, a recipe, an expression, an option."""


class BeamtreeError(ValueError):
    """The message names what was wrong and what to do; the command line prints it without a trace."""


class MissingExtraError(BeamtreeError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""

    def __init__(self, purpose: str, extra: str) -> None:
        super().__init__(f"{purpose} needs an optional dependency: pip install 'beamtree[{extra}]'")
