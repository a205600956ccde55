"""Serving the console: the address, the server, and the line that says it is ready."""

from __future__ import annotations

import gc
import signal
import socket
from collections.abc import Callable, Sequence

import uvicorn
from starlette.types import ASGIApp

from magnetar.client import ClientError

#: Live pages are cut when the console stops; they come back with the next one.
_GRACE_S = 1
#: New objects between two runs of the garbage collector. A page about 1,000 topics makes 20,000,
#: and with Python's default of 700 a run over all objects would take longer than the page.
_COLLECTED_FROM = 20_000


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one. ClientError: the address is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ClientError(
            f"cannot listen on {host}:{port}: {error.strerror or error}. --listen names another"
            " address."
        ) from None
    listener.listen()
    return listener


def serve(app: ASGIApp, listeners: Sequence[socket.socket], on_ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM, which are heeded when `on_ready` is called."""
    # What is there now stays for good: collections need not look through it.
    gc.freeze()
    gc.set_threshold(_COLLECTED_FROM)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_S,
    )
    server = uvicorn.Server(config)

    def stop(number: int, frame: object) -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises the signal again at its end, for the handler before its own. The default
        # ones would end the console as if it had failed.
        signal.signal(number, stop)
    on_ready()
    server.run(sockets=list(listeners))
