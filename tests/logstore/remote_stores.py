"""A simulated store for tests that step: commits have effect when the executor is told to go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

from logstore.disk.barriers import at_once
from logstore.disk.durability import Durability
from logstore.disk.files import StorageFailure
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.remote.commit_store import Commit, LogKey, Wanted
from logstore.remote.memory_tail import MemoryTail
from logstore.remote.remote_ledger import RemoteLedger
from logstore.remote.store_commits import changes_of
from logstore.remote.store_reads import StoreReads
from logstore.sync.group_commit import GroupCommit
from logstore.sync.medium import Performed
from logstore.sync.sync_executors import Sync, SyncExecutor
from tests.logstore.partitions import SteppedPartition
from tests.logstore.remote.simulated_store import SimulatedDatabase, SimulatedStore
from tests.logstore.simulated_executors import SteppedExecutor

KEY = LogKey(UUID(int=7), 0)
NODE = 1


class SteppedCommits:
    """The medium of group commit: a commit is work of the executor."""

    def __init__(self, database: SimulatedDatabase, executor: SyncExecutor) -> None:
        self._database = database
        self._executor = executor
        self._number = database.nodes[NODE].number

    def perform(
        self,
        syncs: Sequence[Sync],
        done: Performed,
        _make_room: Callable[[], None],
        *,
        settles: bool,
    ) -> None:
        self._number += 1
        commit = Commit(self._number, self._number - 1, changes_of(syncs))
        self._executor.submit(partial(self._commit, commit), done)

    def _commit(self, commit: Commit) -> None:
        assert self._database.commit(NODE, 0, commit), "fenced"
        self._database.confirm()

    def close(self) -> None:
        """Nothing is open."""


class SteppedStore:
    """One node's logs in a simulated store, made durable when told."""

    def __init__(self, limits: LogConfig, executor: SteppedExecutor | None = None) -> None:
        self.limits = limits
        self.executor = executor or SteppedExecutor()
        self.failures: list[StorageFailure] = []
        self.database = SimulatedDatabase()
        self.database.start_node(NODE, 0)
        store = SimulatedStore(self.database, NODE, 0)
        asyncio.run(store.connect())
        self.reads = StoreReads(store)
        self.reconnect()

    def reconnect(self) -> None:
        """Begin anew, as the next process does."""
        self.group_commit = GroupCommit(
            None,
            Durability.FSYNC,
            on_failure=self.failures.append,
            executor=self.executor,
            medium=SteppedCommits(self.database, self.executor),
        )

    def load(
        self,
        key: LogKey = KEY,
        *,
        from_offset: int | None = None,
        tail: MemoryTail | None = None,
        is_wholly_loaded: bool = False,
    ) -> RemoteLedger:
        """Return the ledger of what is stored, to be opened."""
        return RemoteLedger(
            key,
            self.group_commit,
            self.reads,
            tail or MemoryTail(),
            self.limits,
            self.database.load(Wanted(key, 0 if is_wholly_loaded else from_offset)),
            is_wholly_loaded=is_wholly_loaded,
        )


class StoredPartition(SteppedPartition):
    """A partition in a simulated store. A restart opens what is stored, loaded whole."""

    def __init__(self, config: LogConfig | None = None, *, segment_bytes: int = 2**30) -> None:
        self.config = replace(config or LogConfig(), segment_bytes=segment_bytes)
        self.now_ms = 1_000
        self._store = SteppedStore(self.config)
        self.executor = self._store.executor
        self.commit = self._store.group_commit
        self.log = self._open()

    def _open(self) -> PartitionLog:
        self.ledger = self._store.load(is_wholly_loaded=True)
        log = PartitionLog("topic", 0, self.ledger, self.config, steady_ms=lambda: self.now_ms)
        at_once(log.opening(was_clean=True))
        return log

    def restart(self) -> PartitionLog:
        at_once(self.log.securing())
        self.executor.run()
        self.log.close()
        self.log = self._open()
        return self.log

    def crash(self) -> PartitionLog:
        """Lose what no commit has written. One under way may have."""
        self.log.close()
        self.executor.close()
        self._store.reconnect()
        self.commit = self._store.group_commit
        self.log = self._open()
        return self.log
