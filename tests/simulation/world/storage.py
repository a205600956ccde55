"""Where a simulated broker keeps everything: logs on a simulated disk, and a catalog beside it.

The catalog is SQLite in memory. Each of its commits is as durable as SQLite's with
synchronous=FULL: what a crash leaves is the state after some commit, the last one that returned or
one that was under way. What SQLite itself does to its files is not simulated.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from logstore.disk.durability import Durability
from logstore.disk.files import File
from logstore.partition.log_config import LogConfig
from logstore.sync.sync_executors import Done, failure_of
from magnetar.clock import Clock
from magnetar.config.broker import BrokerConfig
from magnetar.config.topic import TopicConfig
from magnetar.storage.catalog import Catalog
from magnetar.storage.logs import Logs
from magnetar.storage.sqlite_database import SqliteDatabase
from tests.logstore.simulated_disk import SimulatedDisk
from tests.simulation.world.process import Process

SEGMENT_BYTES = 3_000
SNAPSHOT_INTERVAL_BYTES = 1_000


class ProcessExecutor:
    """A `SyncExecutor` whose kernel and thread are those of a simulated process."""

    def __init__(self, process: Process, random: Random) -> None:
        self._process = process
        self._has_kernel = random.random() < 0.7
        self._waiting: deque[tuple[Callable[[], None], Done]] = deque()
        self._is_busy = False
        self._is_closed = False

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._process.call_soon(callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._process.call_later(seconds, self._unless_closed, callback)

    def sync(self, file: File, done: Done) -> bool:
        if not self._has_kernel:
            self.submit(file.sync, done)
            return False
        self._process.in_thread(partial(failure_of, file.sync), partial(self._done, done))
        return True

    def submit(self, work: Callable[[], None], done: Done) -> None:
        self._waiting.append((work, done))
        if not self._is_busy:
            self._begin()

    def close(self) -> None:
        # A thread finishes what it is at, and everything before the end of its queue.
        self._is_closed = True
        while self._waiting:
            # As the thread does, hold `done` until the work is over: the files are its to close.
            work, _done = self._waiting.popleft()
            failure_of(work)

    def _begin(self) -> None:
        self._is_busy = True
        self._process.in_thread(self._perform_first, self._performed)

    def _perform_first(self) -> tuple[Done, OSError | None] | None:
        if not self._waiting:
            return None
        work, done = self._waiting.popleft()
        return done, failure_of(work)

    def _performed(
        self, performed: tuple[Done, OSError | None] | None, failure: BaseException | None
    ) -> None:
        if failure is not None:
            raise failure
        self._is_busy = False
        if self._waiting:
            self._begin()
        if performed is not None:
            self._done(*performed, None)

    def _done(self, done: Done, outcome: OSError | None, failure: BaseException | None) -> None:
        if failure is not None:
            raise failure
        if not self._is_closed:
            done(outcome)

    def _unless_closed(self, callback: Callable[[], None]) -> None:
        if not self._is_closed:
            callback()


class SimulatedLogs(Logs):
    """`Logs` whose segments are small, so that they roll."""

    def settings(self, topic: str, config: TopicConfig) -> LogConfig:
        settings = super().settings(topic, config)
        return replace(
            settings, segment_bytes=SEGMENT_BYTES, snapshot_interval_bytes=SNAPSHOT_INTERVAL_BYTES
        )


@dataclass
class StoredCatalog:
    """What a crash leaves of the catalog: the bytes after its last durable commit.

    `shared` is the catalog of several nodes, which outlives each of them.
    """

    committed: bytes | None = None
    shared: sqlite3.Connection | None = None
    #: The time by which leases end.
    now_ms: int = 0


class SimulatedDatabase(SqliteDatabase):
    """A database in memory; power may go before and after each of its commits."""

    def __init__(self, stored: StoredCatalog, disk: SimulatedDisk) -> None:
        self._stored = stored
        self._disk = disk
        super().__init__(None)

    def _migrate(self, new_cluster_id: str) -> None:
        if self._stored.committed is not None:
            self._connection.deserialize(self._stored.committed)
        super()._migrate(new_cluster_id)

    @contextmanager
    def transaction(self, doing: str) -> Iterator[sqlite3.Connection]:
        self._disk.before("catalog")
        with super().transaction(doing) as database:
            yield database
        self._keep()
        self._disk.before("catalog")

    def _keep(self) -> None:
        """What is committed is durable."""
        self._stored.committed = self._connection.serialize()


class SharedDatabase(SqliteDatabase):
    """A database that several nodes have open; the power of one may go around each commit.

    The nodes take turns within one process here, so one connection serves all of them.
    """

    def __init__(self, stored: StoredCatalog, disk: SimulatedDisk | None = None) -> None:
        """`disk`: of the node; None: nothing disturbs this one."""
        self._stored = stored
        self._disk = disk
        super().__init__(None, now_ms=lambda: stored.now_ms)

    def _migrate(self, new_cluster_id: str) -> None:
        if self._stored.shared is None:
            self._stored.shared = self._connection
        else:
            self._connection.close()
            self._connection = self._stored.shared
        super()._migrate(new_cluster_id)

    @contextmanager
    def transaction(self, doing: str) -> Iterator[sqlite3.Connection]:
        if self._disk is not None:
            self._disk.before("catalog")
        with super().transaction(doing) as database:
            yield database
        if self._disk is not None:
            self._disk.before("catalog")

    def close(self) -> None:
        """The others have it open still."""


class SharedCatalog(Catalog):
    """A catalog that several nodes have open."""

    def __init__(self, stored: StoredCatalog, disk: SimulatedDisk | None = None) -> None:
        super().__init__(None, is_shared=True, database=SharedDatabase(stored, disk))

    def secret(self) -> bytes:
        # SQLite's own chance is no history's: the proofs between nodes are bytes on the network.
        return b"the secret of all simulated nodes"


def open_shared(
    config: BrokerConfig,
    clock: Clock,
    fail: Callable[[BaseException], None],
    *,
    disk: SimulatedDisk,
    stored: StoredCatalog,
    executor: ProcessExecutor,
) -> tuple[Logs, Catalog]:
    """Open the logs of one node, and the catalog of all."""
    logs = SimulatedLogs.in_directory("/data", config, clock, fail, files=disk, executor=executor)
    return logs, SharedCatalog(stored, disk)


def open_simulated(
    config: BrokerConfig,
    clock: Clock,
    fail: Callable[[BaseException], None],
    *,
    disk: SimulatedDisk,
    stored: StoredCatalog,
    executor: ProcessExecutor,
) -> tuple[Logs, Catalog]:
    """Open the logs and the catalog of a broker, as `magnetar.broker.open_directory` does."""
    assert config.durability != Durability.MEMORY.value
    logs = SimulatedLogs.in_directory("/data", config, clock, fail, files=disk, executor=executor)
    database = SimulatedDatabase(stored, disk)
    return logs, Catalog(None, cluster_id=logs.cluster_id, database=database)
