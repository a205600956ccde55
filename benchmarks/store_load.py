"""What the shared store of a cluster carries without clients: each node commits as fast as it can.

A node here is a process with the logs of a cluster's node: a batch is checked, appended and
committed to PostgreSQL, and the next one follows when that is durable. No request is read and none
is answered, so a commit is what is measured.
"""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple, NoReturn
from uuid import UUID

import uvloop

from logstore.partition.log import PartitionLog
from logstore.remote.postgres_store import PostgresStore
from magnetar.cli.clustered import open_catalog
from magnetar.clock import SystemClock
from magnetar.config.broker import BrokerConfig
from magnetar.config.topic import TopicConfig
from magnetar.storage.logs import Opening
from magnetar.storage.remote_logs import RemoteLogs
from wire.records import SimpleRecord, build_batch

_RECORD_BYTES = 1_000
#: All nodes have started and are warm after so long.
_START_S = 10.0


class Commits(NamedTuple):
    """What nodes have done in the time that was measured."""

    rate: float
    took_ms: list[float]
    #: User and system time of the nodes.
    cpu_seconds: float


def commits_of(url: str, *, nodes: int, seconds: float) -> Commits:
    """Let so many nodes commit, each to a partition of its own, one batch of 1 KB at a time.

    `url`: of an empty database.
    """
    catalog = open_catalog(url)
    incarnations = [catalog.nodes.start(node_id) for node_id in range(nodes)]
    catalog.close()
    node = partial(_node, url, time.monotonic() + _START_S, seconds)
    with ProcessPoolExecutor(nodes, mp_context=get_context("spawn")) as processes:
        done = [*processes.map(node, range(nodes), incarnations)]
    return Commits(
        sum(each.rate for each in done),
        [took_ms for each in done for took_ms in each.took_ms],
        sum(each.cpu_seconds for each in done),
    )


def _node(url: str, begin_s: float, seconds: float, node_id: int, incarnation: int) -> Commits:
    async def commit() -> Commits:
        logs = RemoteLogs(PostgresStore(url), BrokerConfig(), SystemClock(), _fail)
        logs.begin_as(node_id, incarnation)
        opening = Opening("commits", node_id, UUID(int=1), TopicConfig())
        (log,) = await logs.open_together([opening])
        assert log is not None
        assert time.monotonic() < begin_s, "the nodes need longer for their start"
        await _commits_until(begin_s, log)
        done = await _commits_until(begin_s + seconds, log)
        await logs.close()
        return done

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(commit())


async def _commits_until(end_s: float, log: PartitionLog) -> Commits:
    record = SimpleRecord(None, os.urandom(_RECORD_BYTES), time.time_ns() // 1_000_000)
    batch = build_batch([record])
    took_ms: list[float] = []
    cpu_before_s, began_s = time.process_time(), time.monotonic()
    now_s = began_s
    while now_s < end_s:
        log.append(log.check(bytearray(batch), record.timestamp))
        await log.durable(log.log_end_offset)
        before_s, now_s = now_s, time.monotonic()
        took_ms.append((now_s - before_s) * 1_000)
    rate = len(took_ms) / (now_s - began_s)
    return Commits(rate, took_ms, time.process_time() - cpu_before_s)


def _fail(failure: BaseException) -> NoReturn:
    raise failure
