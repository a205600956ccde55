"""`GET /metrics`, by prometheus-client, `/healthz` and `/readyz` over HTTP, in a thread of its own.

The address is bound before the broker starts, so that a taken one is reported at once. From then on
`/healthz` answers 200 while the process is alive: recovery may take long, and must not be killed.
Once the broker is ready, its event loop has to get round to an answer too. `/readyz` answers 200
from then until the stop, 503 before, and while a node of a cluster turns its clients away because
it has no lease. A broker that has failed has ended, and answers nothing.

The library is imported once the broker is ready. Several connections are served at once
(`http_server`), but metrics are gathered for one scrape at a time.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from logstore.disk.pools import HOUSEKEEPING
from magnetar.config.load import ConfigError
from magnetar.logging import get_logger
from magnetar.metrics.of_nodes import Gather, NodesCollector, let_go

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class OtherNodes(NamedTuple):
    """The nodes whose metrics the endpoint serves beside its own: how each is reached."""

    own_id: int
    connect: Mapping[int, Callable[[], socket.socket]]


#: How long the event loop may take; then the scrape fails, and the next one asks again. So long it
#: may also take until the broker no longer counts as alive.
GATHERING_SECONDS = 5.0
_BACKLOG = 64
_TEXT = [("Content-Type", "text/plain; charset=utf-8")]
#: A stop is noticed after so long at most.
_POLL_SECONDS = 0.2
#: How long a stop waits for requests under way.
_STOP_SECONDS = 5.0

_log = get_logger("metrics")


class MetricsEndpoint:
    """One address that serves a broker's metrics. Made on the broker's event loop."""

    def __init__(self, bound: socket.socket) -> None:
        """`bound` listens on the address, as `bind` returns it."""
        self._socket = bound
        self.port: int = self._socket.getsockname()[1]
        self._loop = asyncio.get_running_loop()
        self._gather: Gather | None = None
        self._others: OtherNodes | None = None
        self._is_serving: Callable[[], bool] = lambda: True
        #: Answers scrapes; None until the broker is ready.
        self._metrics: WSGIApplication | None = None
        #: Held while `_metrics` is made, and while it gathers.
        self._gathering = threading.Lock()
        self._is_stopped = threading.Event()
        # A daemon: a scrape that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)
        self._thread.start()

    def start(
        self,
        gather: Gather,
        others: OtherNodes | None = None,
        is_serving: Callable[[], bool] = lambda: True,
    ) -> None:
        """Answer scrapes from now on with what `gather` returns and `others` have.

        `is_serving`, called in the endpoint's thread: whether clients are served at present.
        """
        self._others, self._is_serving = others, is_serving
        self._gather = gather

    async def stop(self) -> None:
        """Answer no more; return when the requests under way are answered, or after the bound."""
        self._is_stopped.set()
        # In a thread: the endpoint may be waiting for this very event loop.
        await HOUSEKEEPING.run(partial(self._thread.join, _STOP_SECONDS))
        self._socket.close()

    def _serve(self) -> None:
        from magnetar.metrics.http_server import HttpServer

        server = HttpServer(self._socket, self._answer)
        # Not `serve_forever`: its `shutdown` blocks the caller, which is the event loop.
        server.timeout = _POLL_SECONDS
        while not self._is_stopped.is_set():
            # Here too, so that the first scrape does not wait for the imports.
            with self._gathering:
                self._prepare()
            server.handle_request()
        server.end(_STOP_SECONDS)

    def _prepare(self) -> None:
        if self._gather is not None and self._metrics is None:
            self._metrics = _metrics_of(self._gather, self._loop, self._others)

    def _answer(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/healthz":
            return _said(start, self._failure())
        if path == "/readyz":
            return _said(start, self._why_not_ready())
        if path not in ("/", "/metrics"):
            start("404 Not Found", _TEXT)
            return [b"there are /metrics, /healthz and /readyz\n"]
        with self._gathering:
            self._prepare()
            if self._metrics is None:
                return _said(start, "the broker is starting")
            return self._metrics(environ, start)

    def _why_not_ready(self) -> str:
        """Return why clients are not served; empty: they are."""
        if self._gather is None:
            return "the broker is starting"
        return "" if self._is_serving() else "the database does not renew this node's lease"

    def _failure(self) -> str:
        """Return why the broker is not alive; empty: it is."""
        if self._gather is None:
            return ""
        asked = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop)
        try:
            asked.result(GATHERING_SECONDS)
        except (TimeoutError, CancelledError):
            asked.cancel()
            return f"the event loop did not answer for {GATHERING_SECONDS:g} s"
        return ""


def _said(start: StartResponse, failure: str) -> list[bytes]:
    """Answer 200, or 503 with what is wrong."""
    start("503 Service Unavailable" if failure else "200 OK", _TEXT)
    return [f"{failure or 'ok'}\n".encode()]


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens on the address of metrics. Raises ConfigError."""
    try:
        return socket.create_server(
            (host, port),
            family=socket.AF_INET6 if ":" in host else socket.AF_INET,
            backlog=_BACKLOG,
        )
    except OSError as error:
        raise ConfigError(
            f"metrics.listen: cannot listen on {host}:{port}: {error.strerror}"
        ) from error


def _metrics_of(
    gather: Gather, loop: asyncio.AbstractEventLoop, others: OtherNodes | None
) -> WSGIApplication:
    from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app

    # With `auto_describe` registering would gather once, before the first scrape.
    registry = CollectorRegistry(auto_describe=False)
    own = (_Collector(gather, loop), ProcessCollector(registry=None))
    if others is None:
        for each in own:
            registry.register(each)
    else:
        registry.register(NodesCollector(others.own_id, own, others.connect))
    return make_wsgi_app(registry)


class _Collector:
    """Gathers on the event loop, for the thread that answers."""

    def __init__(self, gather: Gather, loop: asyncio.AbstractEventLoop) -> None:
        self._gather = gather
        self._loop = loop

    def collect(self) -> Iterator[Metric]:
        asked = asyncio.run_coroutine_threadsafe(self._gather(), self._loop)
        try:
            yield from let_go(asked.result(GATHERING_SECONDS))
        except (TimeoutError, CancelledError):
            # The event loop is late already: it need not gather for a scrape that has failed.
            asked.cancel()
            _log.warning("metrics not gathered", reason="the event loop did not get to it")
            raise
