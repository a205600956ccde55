"""`magnetar serve`: one broker in this process, or several nodes below it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from magnetar import logging
from magnetar.cli import broker_process as process
from magnetar.cli.notify import STOPPING, notify
from magnetar.cli.serve_flags import Flags, check_without_storage, configure, worker_count
from magnetar.cli.serve_nodes import serve_cluster, serve_nodes
from magnetar.config.broker import BrokerConfig
from magnetar.config.cluster import ClusterConfig

if TYPE_CHECKING:
    from magnetar.broker import Broker
    from magnetar.metrics.endpoint import MetricsEndpoint

#: If the event loop has computed for more than this part of a minute, more processes would help.
_LOOK_AT_LOAD_S = 60.0
_BUSY = 0.8

_log = logging.get_logger("server")


def run(flags: Flags, compose: Callable[..., Broker] | None = None) -> int:
    """Serve until a signal; return the exit code.

    `compose` makes the broker, on its event loop: a test's broker has other parts. For one of
    several nodes it gets the arguments of `Broker`.
    """
    logging.configure(flags.log_level, flags.log_format)

    def serve() -> int:
        config = configure(flags)
        if config.view(ClusterConfig).cluster_storage:
            return serve_cluster(config, worker_count(flags.workers))
        check_without_storage(flags, config.view(ClusterConfig))
        if (count := worker_count(flags.workers)) > 1:
            return serve_nodes(config, count, compose)
        return process.run_loop(lambda: _serve(config, compose))

    return process.exit_code(serve)


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
    process.prepare()
    # Before recovery, which may take long: a signal during it stops the broker as cleanly as later.
    stop = process.set_by_signals(loop)
    # Its address is taken first, so that a mistake in it ends the start before any log is touched.
    metrics = _metrics_endpoint(config)
    broker = (compose or Broker)(config)
    _gather_nodes(config)
    await process.start(broker)
    process.warn_unguarded(config, broker.listeners)
    process.say_ready(broker.listeners, f"node {broker.node_id}, cluster {broker.cluster_id}")
    if metrics is not None:
        metrics.start(broker.gather_metrics)
    process.prepare_logging_later(loop)
    _hint_when_busy(loop, time.thread_time())
    await stop.wait()
    notify(STOPPING, "answers what is under way, and makes it durable")
    if metrics is not None:
        # Before the broker, whose figures it reads.
        await metrics.stop()
    await broker.stop()
    process.say("magnetar: stopped")


def _metrics_endpoint(config: BrokerConfig) -> MetricsEndpoint | None:
    """Return the endpoint, which holds its address; None if `metrics.listen` is not set."""
    bound = process.bound_metrics(config)
    if bound is None:
        return None
    from magnetar.metrics.endpoint import MetricsEndpoint

    return MetricsEndpoint(bound)


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
