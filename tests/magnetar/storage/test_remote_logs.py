"""How much of a log in a shared store a node that takes it over has to read."""

from __future__ import annotations

from uuid import UUID

from logstore.remote.commit_store import StoredLog, Wanted
from magnetar.clock import SystemClock
from magnetar.config.broker import BrokerConfig
from magnetar.config.topic import TopicConfig
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
