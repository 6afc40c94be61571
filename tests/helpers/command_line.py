"""`beamtree WORDS…` as a user calls it, in this process."""

from typer.testing import CliRunner, Result

from beamtree.cli import app


def attempt(*words: object, input: str | None = None) -> Result:
    """Whatever comes of it."""
    return CliRunner().invoke(app, [str(word) for word in words], input=input)


def call(*words: object, rc: int = 0, input: str | None = None) -> Result:
    """It must end with the status `rc`."""
    result = attempt(*words, input=input)
    assert result.exit_code == rc, result.output + repr(result.exception)
    return result


def refusal(*words: object) -> str:
    """What it says where it refuses: one sentence for the user, and no trace."""
    result = attempt(*words)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return result.stderr.removeprefix("beamtree: ").rstrip("\n")
