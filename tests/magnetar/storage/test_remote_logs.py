"""How much of a log in a shared store a node reads that takes it over, and how much one commit
deletes."""

from __future__ import annotations

import asyncio
from uuid import UUID

from logstore.partition.log import PartitionLog
from logstore.remote.commit_store import Commit, LogKey, StoredLog, Wanted
from magnetar.clock import SystemClock
from magnetar.config.broker import BrokerConfig
from magnetar.config.topic import TopicConfig
from magnetar.runtime.retention import advance
from magnetar.storage.logs import Opening
from magnetar.storage.remote_logs import SEGMENT_BYTES, RemoteLogs
from tests.logstore.partitions import batch_of
from tests.logstore.remote.simulated_store import SimulatedDatabase, SimulatedStore

OPENING = Opening("orders", 0, UUID(int=1), TopicConfig())
BATCH_BYTES = 1 << 20


class _CountingDatabase(SimulatedDatabase):
    """Counts the bytes that are loaded."""

    loaded_bytes = 0

    def load(self, wanted: Wanted) -> StoredLog:
        loaded = super().load(wanted)
        self.loaded_bytes += sum(len(chunk.data) for chunk in loaded.chunks)
        return loaded


def node(database: SimulatedDatabase, incarnation: int) -> RemoteLogs:
    """Return the logs of a node that has just started."""
    database.start_node(1, incarnation)
    logs = RemoteLogs(SimulatedStore(database), BrokerConfig(), SystemClock(), _fail)
    logs.begin_as(1, incarnation)
    return logs


def _fail(failure: BaseException) -> None:
    raise failure


async def test_a_take_over_reads_one_segment_however_large_the_log_is() -> None:
    assert TopicConfig().segment_bytes > SEGMENT_BYTES
    database = _CountingDatabase()
    logs = node(database, 1)
    (log,) = await logs.open_together([OPENING])
    assert log is not None
    for _ in range(36):
        log.append(log.check(batch_of(bytes(BATCH_BYTES - 100)), 1_000))
        await log.durable(log.log_end_offset)
    assert log.size_bytes > 4 * SEGMENT_BYTES
    later = node(database, 2)
    (again,) = await later.open_together([OPENING])
    assert again is not None
    assert (again.high_watermark, again.size_bytes) == (36, log.size_bytes)
    assert database.loaded_bytes <= SEGMENT_BYTES + BATCH_BYTES
    await later.proven()
    assert later.is_leased
    await later.close()
    logs._directory.abandon()


class _DeletingDatabase(SimulatedDatabase):
    """Counts the segments that each commit deletes. A commit takes a while."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted: list[int] = []
        self._kept_from: dict[LogKey, int] = {}

    def commit(self, node_id: int, incarnation: int, commit: Commit) -> bool:
        deleted = 0
        for key, _, kept_from, stored_from in commit.changes.starts:
            before = self._kept_from.get(key, 0)
            assert stored_from == before, "it goes through nothing that is gone"
            deleted += max(kept_from - before, 0)
            self._kept_from[key] = max(kept_from, before)
        self.deleted.append(deleted)
        return super().commit(node_id, incarnation, commit)


async def test_a_commit_deletes_a_few_segments_however_many_are_due() -> None:
    database = _DeletingDatabase()
    logs = node(database, 1)
    rolling = TopicConfig({"segment.ms": 1})
    opened = await logs.open_together(Opening("t", n, UUID(int=1), rolling) for n in range(3))
    count = 40
    trimmed: list[PartitionLog] = []
    for log in opened:
        assert log is not None
        for number in range(count):
            # A segment for each record.
            log.append(log.check(batch_of(b"x", timestamp=1_000 * number), 1_000 * number))
        await log.durable(log.log_end_offset)
        trimmed.append(log)
    await logs.persist_start_offsets([(log, count) for log in trimmed])
    for log in trimmed:
        log.roll_at(count)
        await asyncio.wait_for(advance(logs, log, count), 10)
    await logs.proven()
    assert [log.log_start_offset for log in trimmed] == [count] * 3
    assert sum(database.deleted) == 3 * count
    assert max(database.deleted) == 1
    await logs.close()
