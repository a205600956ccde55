"""The process of a broker: its event loop, memory and signals, and its first and last lines.

Every broker of `magnetar serve` runs in such a process: one alone, and each of several nodes.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logstore.disk.files import StorageFailure
from magnetar import __version__, logging
from magnetar.cli.commands import (
    EXIT_FAILURE,
    EXIT_INTERRUPTED,
    EXIT_MISTAKE,
    EXIT_OK,
    forget_output,
    plain,
)
from magnetar.cli.notify import READY, notify
from magnetar.cli.supervisor import ONE_SIGNAL_S
from magnetar.config.broker import BrokerConfig
from magnetar.config.listeners import Listener, parse_address, unguarded
from magnetar.config.load import ConfigError
from magnetar.storage.database import CatalogUnavailable
from wire.address import address_text

if TYPE_CHECKING:
    from magnetar.broker import Broker

#: New objects between two runs of the garbage collector. Requests leave next to no cycles, and a
#: dozen requests at once would reach Python's default of 700.
_COLLECTED_FROM = 10_000
#: The other thresholds of `gc.set_threshold`: runs of the youngest generation between two of the
#: next one, and runs of that between two that look at all that is not frozen. The first bounds a
#: run to 20,000 objects, which take 4 ms, and are frozen then (`magnetar.server.collecting`).
_OLDER_COLLECTED_FROM = _ALL_COLLECTED_FROM = 0
#: How long a thread that computes may keep the event loop waiting. Python's default is 5 ms, for
#: each connection that is served meanwhile.
_SWITCH_INTERVAL_S = 0.0005
#: How long after the start the log is prepared: after the requests of the first clients.
_LOGGING_PREPARED_AFTER_S = 1.0


def exit_code(serve: Callable[[], int]) -> int:
    """Return the exit code of `serve`; print why it could not go on."""
    try:
        return serve()
    except ConfigError as mistake:
        print(f"magnetar: error: {mistake}", file=sys.stderr)
        return EXIT_MISTAKE
    except OSError as failure:
        print(f"magnetar: fatal: {plain(failure)}", file=sys.stderr)
        return EXIT_FAILURE
    except StorageFailure as failure:
        print(f"magnetar: fatal: {failure}", file=sys.stderr)
        return EXIT_FAILURE
    except CatalogUnavailable as away:
        # A node that starts while its database is away; its supervisor starts it again.
        print(f"magnetar: fatal: {away.detail}", file=sys.stderr)
        return EXIT_FAILURE


def run_loop(serve: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run `serve` on an event loop of its own; return the exit code."""
    with asyncio.Runner(loop_factory=_event_loop) as runner:
        runner.run(serve())
    return EXIT_OK


def _event_loop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


def prepare() -> None:
    """Set up the process."""
    from magnetar.linux import keep_freed_memory
    from magnetar.storage import open_files

    keep_freed_memory()
    open_files.raise_limit()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


async def start(broker: Broker) -> None:
    """Start a broker without garbage collection; after that, keep it away from what was built."""
    from magnetar.server.collecting import look_once

    # The objects that recovery builds live as long as the process. Collections that look at them
    # would take a seventh of a start with 100 000 offsets, and later pause the broker.
    gc.disable()
    await broker.start()
    gc.freeze()
    look_once()
    gc.set_threshold(_COLLECTED_FROM, _OLDER_COLLECTED_FROM, _ALL_COLLECTED_FROM)
    gc.enable()


def prepare_logging_later(loop: asyncio.AbstractEventLoop) -> None:
    """Prepare the log in a thread, once the first clients have been served."""
    loop.call_later(_LOGGING_PREPARED_AFTER_S, loop.run_in_executor, None, logging.prepare)


def set_by_signals(loop: asyncio.AbstractEventLoop) -> asyncio.Event:
    """Return an event that the first SIGTERM or SIGINT sets. A second one ends the process."""
    stop = asyncio.Event()
    first_s = loop.time()

    def on_signal() -> None:
        nonlocal first_s
        if not stop.is_set():
            first_s = loop.time()
            stop.set()
        elif loop.time() - first_s >= ONE_SIGNAL_S:
            print("magnetar: stopped at once", file=sys.stderr, flush=True)
            # Without cleaning up: a stop that hangs must not be able to hold the process.
            os._exit(EXIT_INTERRUPTED)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return stop


def bound_metrics(config: BrokerConfig) -> socket.socket | None:
    """Return the address of the metrics, bound; None if `metrics.listen` is not set."""
    if not config.metrics_listen:
        return None
    from magnetar.metrics import endpoint

    return endpoint.bind(*parse_address(config.metrics_listen, "metrics.listen"))


def warn_unguarded(config: BrokerConfig, listeners: Sequence[Listener]) -> None:
    """Print a warning for each listener that lets every client do everything."""
    for listener in unguarded(config, listeners):
        address = address_text(listener.host or "*", listener.port)
        print(
            f"magnetar: warning: {address} has no access control: every client that reaches it"
            " may read, write and delete everything. docs/security.md says how to protect it.",
            file=sys.stderr,
        )


def say_ready(listeners: Sequence[Listener], who: str) -> None:
    """Print the line that says "ready", and tell the service manager."""
    addresses = ", ".join(address_text(each.host or "*", each.port) for each in listeners)
    say(f"magnetar {__version__} ready on {addresses} after {_process_age_ms()} ms ({who})")
    notify(READY, f"serves {addresses}")


def say(line: str) -> None:
    """Print a line. If the reader of the output has gone, drop it and all later output."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        forget_output()


def _process_age_ms() -> int:
    """Return the milliseconds since this process was started, interpreter included.

    Linux knows a process's start to 10 ms. Elsewhere the CPU time of the process is the best guess.
    """
    try:
        stat = Path("/proc/self/stat").read_text()
    except OSError:
        return round(time.process_time() * 1000)
    # The second field, the command in parentheses, may hold spaces; the start is the 22nd field.
    started_ticks = int(stat.rpartition(")")[2].split()[19])
    started = started_ticks / os.sysconf("SC_CLK_TCK")
    return round((time.clock_gettime(time.CLOCK_BOOTTIME) - started) * 1000)
