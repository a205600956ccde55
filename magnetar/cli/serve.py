"""`magnetar serve`: configuration, event loop, signals, and the line that says "ready"."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
from magnetar.cli.notify import READY, STOPPING, notify
from magnetar.cli.supervisor import ONE_SIGNAL_S
from magnetar.config.broker import BrokerConfig
from magnetar.config.cluster import ClusterConfig
from magnetar.config.listeners import Listener, parse_address, unguarded
from magnetar.config.load import ConfigError, Given, load, read_assignments, read_properties
from magnetar.storage.database import CatalogUnavailable
from wire.address import address_text

if TYPE_CHECKING:
    from magnetar.broker import Broker
    from magnetar.cli.supervisor import Ties
    from magnetar.cli.workers import NodeMetrics, WorkerNode
    from magnetar.metrics.endpoint import MetricsEndpoint

#: A node of a cluster that is told to stop during its start ends after this time at the latest.
_START_GIVEN_UP_S = 10.0
#: The most nodes of one machine.
WORKERS_MAX = 64
#: What each node needs and the supervisor does not: what speaks to other nodes, and the compilers
#: of messages among it.
_OF_EACH_NODE = (
    "uvloop",
    "magnetar.linux",
    "magnetar.peers.composition",
    "wire.decoder",
    "wire.encoder",
)
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
#: If the event loop has computed for more than this part of a minute, more processes would help.
_LOOK_AT_LOAD_S = 60.0
_BUSY = 0.8

_log = logging.get_logger("server")


class Flags(NamedTuple):
    """The flags of the command line."""

    listen: str | None
    data_dir: str | None
    config_file: str | None
    assignments: tuple[str, ...]
    log_level: str
    log_format: str
    workers: str = "1"
    storage: str | None = None
    node_id: int | None = None
    objects: str | None = None
    allows_async_storage: bool = False


def run(flags: Flags, compose: Callable[..., Broker] | None = None) -> int:
    """Serve until a signal; return the exit code.

    `compose` makes the broker, on its event loop: a test's broker has other parts. For one of
    several nodes it gets the arguments of `Broker`.
    """
    logging.configure(flags.log_level, flags.log_format)

    def serve() -> int:
        config = configure(flags)
        if config.view(ClusterConfig).cluster_storage:
            return _serve_cluster(config, _worker_count(flags.workers))
        _check_without_storage(flags, config.view(ClusterConfig))
        if (count := _worker_count(flags.workers)) > 1:
            return _serve_nodes(config, count, compose)
        return _run(lambda: _serve(config, compose))

    return _exit_code(serve)


def _check_without_storage(flags: Flags, config: ClusterConfig) -> None:
    """Raise ConfigError for what only a cluster has; it names the flag, or the setting."""
    if config.cluster_objects:
        name = "cluster.objects" if flags.objects is None else "--objects"
        raise ConfigError(
            f"{name} needs cluster.storage (--storage): a bucket has the older batches of a cluster"
        )
    if config.cluster_allow_async_storage:
        name = "cluster.allow.async.storage"
        if flags.allows_async_storage:
            name = "--allow-async-storage"
        raise ConfigError(f"{name} is about the database that cluster.storage (--storage) names")


def _exit_code(serve: Callable[[], int]) -> int:
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


def _run(serve: Callable[[], Coroutine[Any, Any, None]]) -> int:
    with asyncio.Runner(loop_factory=_event_loop) as runner:
        runner.run(serve())
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
    if flags.storage is not None:
        if not flags.storage:
            # A variable of a script that is not set: a broker of its own is not what was meant.
            raise ConfigError(
                "--storage is empty: postgresql://USER@HOST:PORT/DATABASE is expected"
            )
        given.append(Given("cluster.storage", flags.storage, "--storage"))
    if flags.objects is not None:
        given.append(Given("cluster.objects", flags.objects, "--objects"))
    if flags.allows_async_storage:
        given.append(Given("cluster.allow.async.storage", "true", "--allow-async-storage"))
    if flags.node_id is not None:
        given.append(Given("node.id", str(flags.node_id), "--node-id"))
    loaded = load(given)
    # Printed, not logged: a log at level error would hide that a setting has no effect.
    for warning in loaded.warnings:
        print(f"magnetar: warning: {warning}", file=sys.stderr)
    return loaded.config


def _event_loop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


def _worker_count(text: str) -> int:
    """Return how many nodes `--workers` asks for: a number, or `auto` for one a core."""
    if text == "auto":
        return min(len(os.sched_getaffinity(0)), WORKERS_MAX)
    if not text.isdecimal() or not 1 <= int(text) <= WORKERS_MAX:
        raise ConfigError(f"--workers {text}: give auto, or a number from 1 to {WORKERS_MAX}")
    return int(text)


def _serve_nodes(config: BrokerConfig, count: int, compose: Callable[..., Broker] | None) -> int:
    """Serve by several nodes; return the exit code. Raises ConfigError."""
    _load_shared()
    from magnetar.broker import Broker, complete_import, data_dir_of
    from magnetar.cli.workers import NodeMetrics, broker_of, check_workers, worker_nodes
    from magnetar.storage.placing import await_former_nodes, placed, refuse_part

    check_workers(config, count)
    data_dir = data_dir_of(config)
    refuse_part(data_dir)
    await_former_nodes(data_dir)
    # Addresses first: a taken one is reported before any partition is moved.
    nodes = worker_nodes(config, range(config.node_id, config.node_id + count))

    metrics = _bound_metrics(config)

    def body(node_id: int, ties: Ties) -> int:
        node = NodeMetrics(node_id, data_dir, nodes, metrics)
        return _run_node(lambda: broker_of(node_id, nodes, data_dir, compose or Broker), ties, node)

    complete_import(data_dir)
    with placed(data_dir, config, [*nodes]) as cluster_id:
        return _supervise(config, nodes, body, cluster_id)


def _serve_cluster(config: BrokerConfig, count: int) -> int:
    """Serve as one or several nodes of a cluster; return the exit code. Raises ConfigError."""
    _load_shared()
    from magnetar.cli.clustered import joined, node_of
    from magnetar.cli.workers import NodeMetrics, check_workers

    check_workers(config, count)
    # Now, and not at the first line of the log: a node logs which partitions it leads while their
    # clients wait.
    logging.prepare()
    with joined(config, count) as place:
        metrics = _bound_metrics(config)

        def body(node_id: int, ties: Ties) -> int:
            node = NodeMetrics(node_id, place.data_dir, place.nodes, metrics)
            return _run_node(lambda: node_of(node_id, place), ties, node, _START_GIVEN_UP_S)

        return _supervise(config, place.nodes, body, place.cluster_id)


def _load_shared() -> None:
    """Load what every node needs, before the first one is forked.

    All nodes share its memory, and a node that is started again waits for none of it.
    """
    for module in _OF_EACH_NODE:
        import_module(module)
    from magnetar.apis.registry import load_apis

    load_apis()


def _bound_metrics(config: BrokerConfig) -> socket.socket | None:
    if not config.metrics_listen:
        return None
    from magnetar.metrics import endpoint

    return endpoint.bind(*parse_address(config.metrics_listen, "metrics.listen"))


def _supervise(
    config: BrokerConfig,
    nodes: Mapping[int, WorkerNode],
    body: Callable[[int, Ties], int],
    cluster_id: str,
) -> int:
    """Serve by one process for each node; return the exit code."""
    from magnetar.cli.supervisor import Supervisor

    def on_ready() -> None:
        listeners = [listener for node in nodes.values() for listener in node.listeners]
        _warn_unguarded(config, listeners)
        # A node that is started again must not wait for it.
        logging.prepare()
        ids = f"{min(nodes)}-{max(nodes)}" if len(nodes) > 1 else f"{min(nodes)}"
        _say_ready(listeners, f"node{'s' * (len(nodes) > 1)} {ids}, cluster {cluster_id}")

    bodies = {node_id: partial(body, node_id) for node_id in nodes}
    code = Supervisor(bodies, on_ready).run()
    if code == EXIT_OK:
        _say("magnetar: stopped")
    return code


def _run_node(
    make_broker: Callable[[], Broker],
    ties: Ties,
    metrics: NodeMetrics,
    start_given_up_s: float | None = None,
) -> int:
    """Serve as one of several nodes until a signal; return the exit code.

    `start_given_up_s`: how long a signal waits for the end of a start; None: as long as it takes.
    """
    served = partial(_serve_node, make_broker, ties, metrics, start_given_up_s)
    return _exit_code(lambda: _run(served))


async def _serve_node(
    make_broker: Callable[[], Broker],
    ties: Ties,
    metrics: NodeMetrics,
    start_given_up_s: float | None,
) -> None:
    loop = asyncio.get_running_loop()
    _prepare()
    # Before recovery: if the supervisor is gone, the node ends at once.
    stop = asyncio.Event()

    def on_order() -> None:
        if not ties.is_stop():
            os._exit(EXIT_INTERRUPTED)
        stop.set()

    loop.add_reader(ties.orders, on_order)
    metrics.begin()
    broker = make_broker()

    def given_up_s() -> float | None:
        # What waits for the database has begun nothing that could end by itself.
        return 0.0 if broker.is_waiting else start_given_up_s

    if not await _started(_start(broker), stop, given_up_s):
        _log.warning("stopped during its start: the database does not answer")
        return
    await metrics.start(broker)
    ties.tell_ready()
    loop.call_later(_LOGGING_PREPARED_AFTER_S, loop.run_in_executor, None, logging.prepare)
    await stop.wait()
    await metrics.stop()
    await broker.stop()


async def _started(
    start: Coroutine[Any, Any, None], stop: asyncio.Event, given_up_s: Callable[[], float | None]
) -> bool:
    """Start; return whether that was done, `given_up_s()` after `stop` at the latest."""
    starting, stopping = asyncio.ensure_future(start), asyncio.ensure_future(stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    # A node of a cluster has nothing yet that a clean stop would keep.
    await asyncio.wait((starting,), timeout=given_up_s())
    if starting.done():
        await starting
        return True
    starting.cancel()
    return False


def _prepare() -> None:
    """Set up the process."""
    from magnetar.linux import keep_freed_memory
    from magnetar.storage import open_files

    keep_freed_memory()
    open_files.raise_limit()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


async def _start(broker: Broker) -> None:
    from magnetar.server.collecting import look_once

    # The objects that recovery builds live as long as the process. Collections that look at them
    # would take a seventh of a start with 100 000 offsets, and later pause the broker.
    gc.disable()
    await broker.start()
    gc.freeze()
    look_once()
    gc.set_threshold(_COLLECTED_FROM, _OLDER_COLLECTED_FROM, _ALL_COLLECTED_FROM)
    gc.enable()


def _gather_nodes(config: BrokerConfig) -> None:
    """Move back what several nodes have, where they had the data directory. Raises ConfigError."""
    from magnetar.broker import data_dir_of
    from magnetar.storage.placing import await_former_nodes, has_nodes, placed, refuse_part

    data_dir = data_dir_of(config)
    refuse_part(data_dir)
    if has_nodes(data_dir):
        await_former_nodes(data_dir)
        with placed(data_dir, config, [config.node_id]):
            pass


async def _serve(config: BrokerConfig, compose: Callable[..., Broker] | None) -> None:
    from magnetar.broker import Broker

    loop = asyncio.get_running_loop()
    _prepare()
    # Before recovery, which may take long: a signal during it stops the broker as cleanly as later.
    stop = _set_by_signals(loop)
    # Its address is taken first, so that a mistake in it ends the start before any log is touched.
    metrics = _metrics_endpoint(config)
    broker = (compose or Broker)(config)
    _gather_nodes(config)
    await _start(broker)
    _warn_unguarded(config, broker.listeners)
    _say_ready(broker.listeners, f"node {broker.node_id}, cluster {broker.cluster_id}")
    if metrics is not None:
        metrics.start(broker.gather_metrics)
    loop.call_later(_LOGGING_PREPARED_AFTER_S, loop.run_in_executor, None, logging.prepare)
    _hint_when_busy(loop, time.thread_time())
    await stop.wait()
    notify(STOPPING, "answers what is under way, and makes it durable")
    if metrics is not None:
        # Before the broker, whose figures it reads.
        await metrics.stop()
    await broker.stop()
    _say("magnetar: stopped")


def _hint_when_busy(loop: asyncio.AbstractEventLoop, used_s: float) -> None:
    """Log once that more processes would help, after a minute in which this one was busy.

    `used_s`: the CPU time of the event loop's thread at the minute's beginning.
    """
    busy = (time.thread_time() - used_s) / _LOOK_AT_LOAD_S
    if busy > _BUSY and len(os.sched_getaffinity(0)) > 1:
        _log.warning(
            "one core is busy, and this process uses only one: see --workers in docs/scaling.md",
            busy_percent=round(busy * 100),
        )
        return
    loop.call_later(_LOOK_AT_LOAD_S, _hint_when_busy, loop, time.thread_time())


def _warn_unguarded(config: BrokerConfig, listeners: Sequence[Listener]) -> None:
    for listener in unguarded(config, listeners):
        address = address_text(listener.host or "*", listener.port)
        print(
            f"magnetar: warning: {address} has no access control: every client that reaches it"
            " may read, write and delete everything. docs/security.md says how to protect it.",
            file=sys.stderr,
        )


def _say_ready(listeners: Sequence[Listener], who: str) -> None:
    addresses = ", ".join(address_text(each.host or "*", each.port) for each in listeners)
    _say(f"magnetar {__version__} ready on {addresses} after {_process_age_ms()} ms ({who})")
    notify(READY, f"serves {addresses}")


def _say(line: str) -> None:
    """Print a line. If the reader of the output has gone, drop it and all later output."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        forget_output()


def _set_by_signals(loop: asyncio.AbstractEventLoop) -> asyncio.Event:
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


def _metrics_endpoint(config: BrokerConfig) -> MetricsEndpoint | None:
    """Return the endpoint, which holds its address; None if `metrics.listen` is not set."""
    bound = _bound_metrics(config)
    if bound is None:
        return None
    from magnetar.metrics.endpoint import MetricsEndpoint

    return MetricsEndpoint(bound)


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
