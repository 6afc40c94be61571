"""`beamtree serve [MODEL…]`: the tree explorer, a page and a JSON API on this machine."""

import socket
from typing import Annotated

import typer

from beamtree.cli.conventions import Device, say, say_torch_loads
from beamtree.errors import BeamtreeError

_DEFAULT_PORT = 8765


def serve(
    context: typer.Context,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="Model folders, run folders or names of shipped models.",
            show_default="all that come with beamtree",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 opens it to the whole network.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")
    ] = _DEFAULT_PORT,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Another host name that browsers may use; may be repeated."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Largest number of tokens in a sentence.")] = 1000,
    max_beam_size: Annotated[int, typer.Option(min=1, help="Largest beam size that may be requested.")] = 20,
    max_request_bytes: Annotated[int, typer.Option(min=1, help="Largest request, in bytes.")] = 65536,
    seconds: Annotated[
        float, typer.Option(min=0.001, help="Time limit of a computation, in seconds.")
    ] = 20.0,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Computations at the same time.", show_default="one per core, at most 4"),
    ] = None,
    waiting: Annotated[
        int, typer.Option(min=0, help="Requests that may wait for their turn; further ones get status 429.")
    ] = 16,
    device: Device = "cpu",
) -> None:
    """Show trees in a browser.

    Type a text and see the prediction, the trees and the search, step by step. The address is printed; Ctrl-C
    stops the server. Only this machine can reach it unless --host says otherwise.
    """
    listener = _listen(host, port)
    with listener:
        say_torch_loads()

        from beamtree.explorer.app import LOCAL_HOSTS, create_app
        from beamtree.explorer.limits import Limits
        from beamtree.explorer.models import add_untrained, load_models
        from beamtree.explorer.server import run

        at_once = {"workers": workers} if workers is not None else {}
        limits = Limits(max_tokens, max_beam_size, max_request_bytes, seconds, waiting=waiting, **at_once)
        served = add_untrained(load_models(models or (), device))
        app = create_app(served, limits, {*LOCAL_HOSTS, host, *(allow_host or ())})
        if host not in ("127.0.0.1", "::1", "localhost"):
            say("anyone who can reach this machine can use the explorer")
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listener.getsockname()[1]}/"
        say(f"beamtree explorer: {address}  (Ctrl-C stops it)", err=False)
        run(app, listener, debug=context.find_root().params.get("debug", False))
    say("stopped")


def _listen(host: str, port: int) -> socket.socket:
    """Open the port; called before anything is loaded, so that a port in use is reported at once."""
    if not host:  # the system would listen on every address
        raise BeamtreeError("--host is empty: name an address, such as 127.0.0.1")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        reason = error.strerror or str(error)
        raise BeamtreeError(
            f"cannot listen on {host}, port {port}: {reason.lower()}; --port 0 picks a free one"
        ) from error
