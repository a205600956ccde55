"""`magnetar serve`: configuration, event loop, signals, and the line that says "ready"."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from logstore.disk.files import StorageFailure
from magnetar import __version__, logging
from magnetar.cli.commands import forget_output
from magnetar.cli.notify import READY, STOPPING, notify
from magnetar.config.broker import BrokerConfig
from magnetar.config.listeners import parse_address, unguarded
from magnetar.config.load import ConfigError, Given, load, read_assignments, read_properties

if TYPE_CHECKING:
    from magnetar.broker import Broker
    from magnetar.metrics.endpoint import MetricsEndpoint

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_MISTAKE = 2
EXIT_FORCED = 130
#: New objects between two runs of the garbage collector. Requests leave next to no cycles, and a
#: dozen requests at once would reach Python's default of 700.
_COLLECTED_FROM = 10_000
#: How many of those runs there are between two that also look at what the last few left, and how
#: many of these between two that may look at everything. The first number bounds a run to 30,000
#: objects, which take 10 ms.
_OLDER_COLLECTED_FROM, _ALL_COLLECTED_FROM = 2, 40
#: How long a thread that computes may keep the event loop waiting. Python's default is 5 ms, for
#: each connection that is served meanwhile.
_SWITCH_INTERVAL_S = 0.0005
#: After the first clients, so that their requests do not wait for it.
_LOGGING_PREPARED_AFTER_S = 1.0


class Flags(NamedTuple):
    """The flags of the command line."""

    listen: str | None
    data_dir: str | None
    config_file: str | None
    assignments: tuple[str, ...]
    log_level: str
    log_format: str


def run(flags: Flags, compose: Callable[[BrokerConfig], Broker] | None = None) -> int:
    """Serve until a signal; return the exit code.

    `compose` makes the broker, on its event loop: a test's broker has other parts.
    """
    logging.configure(flags.log_level, flags.log_format)
    try:
        config = configure(flags)
        with asyncio.Runner(loop_factory=_event_loop) as runner:
            runner.run(_serve(config, compose))
    except ConfigError as mistake:
        print(f"magnetar: error: {mistake}", file=sys.stderr)
        return EXIT_MISTAKE
    except (OSError, StorageFailure) as failure:
        print(f"magnetar: fatal: {failure}", file=sys.stderr)
        return EXIT_FAILURE
    return EXIT_OK


def configure(flags: Flags) -> BrokerConfig:
    """Return the configuration of file and flags. Prints warnings."""
    given: list[Given] = []
    if flags.config_file is not None:
        given += read_properties(Path(flags.config_file))
    # In this order: the last value of a name wins, so flags win over the file.
    given += read_assignments(flags.assignments)
    if flags.listen is not None:
        # For its mistakes only: the message then names the flag, and not the setting it stands for.
        parse_address(flags.listen, "--listen")
        given.append(Given("listeners", f"PLAINTEXT://{flags.listen}", "--listen"))
    if flags.data_dir is not None:
        given.append(Given("log.dirs", flags.data_dir, "--data-dir"))
    loaded = load(given)
    # Printed, not logged: a log at level error would hide that a setting has no effect.
    for warning in loaded.warnings:
        print(f"magnetar: warning: {warning}", file=sys.stderr)
    return loaded.config


def _event_loop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


async def _serve(config: BrokerConfig, compose: Callable[[BrokerConfig], Broker] | None) -> None:
    from magnetar.broker import Broker
    from magnetar.linux import keep_freed_memory
    from magnetar.storage import open_files

    keep_freed_memory()
    open_files.raise_limit()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    loop = asyncio.get_running_loop()
    # Before recovery, which may take long: a signal during it stops the broker as cleanly as later.
    stop = _set_by_signals(loop)
    # Its address is taken first, so that a mistake in it ends the start before any log is touched.
    metrics = _metrics_endpoint(config)
    broker = (compose or Broker)(config)
    # The objects that recovery builds live as long as the process. Collections that look at them
    # would take a seventh of a start with 100 000 offsets, and later pause the broker.
    gc.disable()
    await broker.start()
    gc.freeze()
    gc.set_threshold(_COLLECTED_FROM, _OLDER_COLLECTED_FROM, _ALL_COLLECTED_FROM)
    gc.enable()
    for listener in unguarded(config, broker.listeners):
        address = _shown(listener.host, listener.port)
        print(
            f"magnetar: warning: {address} asks no client who it is: every client that reaches it"
            " may read, write and delete everything. docs/security.md says how to close it.",
            file=sys.stderr,
        )
    addresses = ", ".join(_shown(listener.host, listener.port) for listener in broker.listeners)
    _say(
        f"magnetar {__version__} ready on {addresses} after {_process_age_ms()} ms"
        f" (node {broker.node_id}, cluster {broker.cluster_id})"
    )
    notify(READY, f"serves {addresses}")
    if metrics is not None:
        metrics.start(broker.gather_metrics)
    loop.call_later(_LOGGING_PREPARED_AFTER_S, loop.run_in_executor, None, logging.prepare)
    await stop.wait()
    notify(STOPPING, "answers what is under way, and makes it durable")
    if metrics is not None:
        # Before the broker, whose figures it reads.
        await metrics.stop()
    await broker.stop()
    _say("magnetar: stopped")


def _say(line: str) -> None:
    """Print a line. If the reader of the output has gone, drop it and all later output."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        forget_output()


def _set_by_signals(loop: asyncio.AbstractEventLoop) -> asyncio.Event:
    """Return an event that the first SIGTERM or SIGINT sets. A second one ends the process."""
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            print("magnetar: stopped at once", file=sys.stderr, flush=True)
            # Without cleaning up: a stop that hangs must not be able to hold the process.
            os._exit(EXIT_FORCED)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return stop


def _metrics_endpoint(config: BrokerConfig) -> MetricsEndpoint | None:
    """Return the endpoint, which holds its address; None if `metrics.listen` is not set."""
    if not config.metrics_listen:
        return None
    from magnetar.metrics.endpoint import MetricsEndpoint

    return MetricsEndpoint(*parse_address(config.metrics_listen, "metrics.listen"))


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host or '*'}:{port}"


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
