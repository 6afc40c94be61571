"""The command line: a table of commands, each imported only when it is called."""

import importlib
import io
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import beamtree
from beamtree.errors import BeamtreeError, SharedError, nearest

# name -> module and attribute: a function, or a Typer app with several commands
COMMANDS = {
    "data": ("beamtree.cli.data", "app"),
    "train": ("beamtree.cli.train", "train"),
    "eval": ("beamtree.cli.eval", "evaluate"),
    "predict": ("beamtree.cli.predict", "predict"),
    "compare": ("beamtree.cli.compare", "compare"),
    "parse": ("beamtree.cli.parse", "parse"),
    "bench": ("beamtree.cli.bench", "bench"),
    "export": ("beamtree.cli.export", "export"),
    "report": ("beamtree.cli.report", "report"),
    "serve": ("beamtree.cli.serve", "serve"),
}


class _Commands(TyperGroup):
    """Finds commands in the table; prints an error that a user can fix as one sentence, without traceback."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            raise BeamtreeError(f"there is no command {cmd_name!r}{nearest(cmd_name, COMMANDS)}")
        _set_up_pytorch()
        module, attribute = COMMANDS[cmd_name]
        found = getattr(importlib.import_module(module), attribute)
        if not isinstance(found, typer.Typer):
            function, found = found, typer.Typer(add_completion=False, rich_markup_mode="markdown")
            found.command(cmd_name)(function)
        command = typer.main.get_command(found)
        command.name = cmd_name
        return command

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (BeamtreeError, MemoryError) as error:
            if ctx.params.get("debug"):
                raise
            shared = isinstance(error, SharedError)
            said = str(error) if isinstance(error, BeamtreeError) else "there is not enough memory for this"
            if not shared or os.environ.get("RANK", "0") == "0":
                typer.echo(f"beamtree: {said}", err=True)
        if shared:  # by now the error's frames, which keep the process group alive, are gone
            from beamtree.training.processes import Processes

            Processes.from_environment().leave()
        raise typer.Exit(2)


def _set_up_pytorch() -> None:
    """Set what PyTorch reads from the environment when it is imported, unless the user has."""
    # Otherwise a thread that waits for others spins, which takes the processor from whoever works: from the
    # search, which has threads of its own, and from other programs. Training took two to seven times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # By default oneDNN caches code for 1024 shapes: hundreds of MiB, as every batch has its own shape.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")


app = typer.Typer(cls=_Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"beamtree {beamtree.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the full traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Neural networks that find a tree in a sequence by themselves."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without → or │ must not end a training


def main() -> None:
    app(prog_name="beamtree")
