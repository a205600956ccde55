"""`magnetar serve` by several nodes: each one's process, and what is loaded before they are forked.

Nodes of one machine share its data directory (`workers`), nodes of a cluster a database
(`clustered`). Both have a supervisor, also where a cluster has one node here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from magnetar import logging
from magnetar.cli import broker_process as process
from magnetar.cli.commands import EXIT_INTERRUPTED, EXIT_OK
from magnetar.config.broker import BrokerConfig

if TYPE_CHECKING:
    from magnetar.broker import Broker
    from magnetar.cli.supervisor import Ties
    from magnetar.cli.workers import NodeMetrics, WorkerNode

#: A node of a cluster that is told to stop during its start ends after this time at the latest.
_START_GIVEN_UP_S = 10.0
#: What each node needs and the supervisor does not: what speaks to other nodes, and the compilers
#: of messages among it.
_OF_EACH_NODE = (
    "uvloop",
    "magnetar.linux",
    "magnetar.peers.composition",
    "wire.decoder",
    "wire.encoder",
)

_log = logging.get_logger("server")


def serve_nodes(config: BrokerConfig, count: int, compose: Callable[..., Broker] | None) -> int:
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

    metrics = process.bound_metrics(config)

    def body(node_id: int, ties: Ties) -> int:
        node = NodeMetrics(node_id, data_dir, nodes, metrics)
        return _run_node(lambda: broker_of(node_id, nodes, data_dir, compose or Broker), ties, node)

    complete_import(data_dir)
    with placed(data_dir, config, [*nodes]) as cluster_id:
        return _supervise(config, nodes, body, cluster_id)


def serve_cluster(config: BrokerConfig, count: int) -> int:
    """Serve as one or several nodes of a cluster; return the exit code. Raises ConfigError."""
    _load_shared()
    from magnetar.cli.clustered import joined, node_of
    from magnetar.cli.workers import NodeMetrics, check_workers

    check_workers(config, count)
    # Now, and not at the first line of the log: a node logs which partitions it leads while their
    # clients wait.
    logging.prepare()
    with joined(config, count) as place:
        metrics = process.bound_metrics(config)

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
        process.warn_unguarded(config, listeners)
        # A node that is started again must not wait for it.
        logging.prepare()
        ids = f"{min(nodes)}-{max(nodes)}" if len(nodes) > 1 else f"{min(nodes)}"
        process.say_ready(listeners, f"node{'s' * (len(nodes) > 1)} {ids}, cluster {cluster_id}")

    bodies = {node_id: partial(body, node_id) for node_id in nodes}
    code = Supervisor(bodies, on_ready).run()
    if code == EXIT_OK:
        process.say("magnetar: stopped")
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
    return process.exit_code(lambda: process.run_loop(served))


async def _serve_node(
    make_broker: Callable[[], Broker],
    ties: Ties,
    metrics: NodeMetrics,
    start_given_up_s: float | None,
) -> None:
    loop = asyncio.get_running_loop()
    process.prepare()
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

    if not await started(process.start(broker), stop, given_up_s):
        _log.warning("stopped during its start: the database does not answer")
        return
    await metrics.start(broker)
    ties.tell_ready()
    process.prepare_logging_later(loop)
    await stop.wait()
    await metrics.stop()
    await broker.stop()


async def started(
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
