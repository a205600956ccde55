"""`magnetar testing serve`: brokers that fail on demand, for tests in other languages."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import click

from magnetar.cli.commands import Commands, fail


@click.group("testing", cls=Commands, short_help="Brokers for tests in other languages.")
def testing() -> None:
    """Brokers for tests, with faults on demand. From Python and pytest, use `magnetar.testing`."""


@testing.command("serve", short_help="Start brokers and make them fail, as JSON asks for.")
@click.option(
    "--socket",
    "path",
    metavar="PATH",
    type=click.Path(path_type=Path),
    required=True,
    help="The unix socket to listen on; only this user may connect.",
)
def serve(path: Path) -> None:
    """Start brokers and make them fail, by calls in JSON on a unix socket.

    A line with the word "ready" says that it listens. Each line is a call, and each call has a line
    as its answer; docs/testing_your_application.md shows them. The brokers of a connection end with
    it.
    """
    # Imported here: help does without it.
    from magnetar.testing.serving import Server

    try:
        server = Server(path)
    except OSError as error:
        fail(f"cannot listen on {path}: {error.strerror or error}.")

    def stop(*_: object) -> None:
        # `shutdown` waits for the loop that this handler has interrupted.
        threading.Thread(target=server.shutdown).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    print(f"magnetar testing: ready on {path}", flush=True)
    with server:
        server.serve_forever(poll_interval=0.1)
    sys.exit(0)
