"""All logs that one node leads in a shared store: what `LogDirectory` is for files.

Nothing of a log is local, and a commit is whole or not there, so nothing has to be recovered. A log
is opened from its snapshot and the batches behind that, which are loaded first. The logs of
coordinators are loaded whole, because a shard is replayed from its first record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from struct import Struct
from typing import NamedTuple, TypeVar
from uuid import UUID

from logstore.disk.barriers import Procedure
from logstore.disk.files import StorageFailure
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.remote.commit_store import (
    LOADED_TOGETHER,
    CommitStore,
    LogKey,
    NodeFenced,
    StoredLog,
    StoredLogs,
    StoreUnavailable,
    Wanted,
)
from logstore.remote.hot_batches import NotInMemory
from logstore.remote.memory_tail import TAIL_BYTES, MemoryTail
from logstore.remote.remote_ledger import RemoteLedger
from logstore.remote.store_commits import StoreCommits
from logstore.remote.store_reads import StoreReads
from logstore.segments.ledger import LedgerFenced
from logstore.sync.group_commit import GroupCommit

#: How many logs are deleted, or secured, in one turn of the event loop.
_LOGS_A_TURN = 8
#: The longest time between two commits, which may be empty: each renews the lease.
RENEW_MS = 2_000
_RETRY_S = 0.1
#: A stop waits so long for its last commit.
_CLOSE_S = 10.0
#: A start gives up after so many attempts to reach the store.
_ATTEMPTS_OF_START = 50

#: The attachment that says up to where a log is compacted: an int64.
CLEANED = "cleaner-offset"
CLEANED_OFFSET = Struct(">q")

_T = TypeVar("_T")


class RemoteOpening(NamedTuple):
    """A log to be opened."""

    topic: str
    partition: int
    topic_id: UUID
    config: LogConfig
    leader_epoch: int

    @property
    def key(self) -> LogKey:
        return LogKey(self.topic_id, self.partition)


class RemoteDirectory:
    """The logs of one node. Used on the event loop's thread, like its logs."""

    def __init__(
        self,
        store: CommitStore,
        stored: StoredLogs,
        commits: StoreCommits,
        group_commit: GroupCommit,
        *,
        steady_ms: Callable[[], int],
        is_loaded_whole: Callable[[str], bool],
        tail_bytes: int = TAIL_BYTES,
        on_away: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`stored` reads the logs of `store`. `commits` is the medium of `group_commit`.
        `is_loaded_whole` says of which topics. `on_away` is told why logs wait for the store, once
        until it has answered again.
        """
        self._store = store
        self._stored = stored
        self._commits = commits
        self._group_commit = group_commit
        self._steady_ms = steady_ms
        self._is_loaded_whole = is_loaded_whole
        self._tail = MemoryTail(tail_bytes)
        self._reads = StoreReads(stored)
        self._logs: dict[LogKey, PartitionLog] = {}
        self._on_away, self._is_away_told = on_away, False
        self._renewing: asyncio.Task[None] | None = None
        #: Tasks that delete the rows of deleted logs, one after the other.
        self._deletions: set[asyncio.Task[None]] = set()
        self._deleting = asyncio.Lock()

    async def in_time(self, work: Coroutine[None, None, object], bound_s: float) -> bool:
        """Do a part of a stop; return whether it was done. Raises what `work` raises.

        The work is given up after `bound_s`, or when the lease ends: then other nodes may do it.
        """
        working = asyncio.ensure_future(work)
        ending = asyncio.ensure_future(self._commits.lease_ended())
        try:
            await asyncio.wait(
                (working, ending), timeout=bound_s, return_when=asyncio.FIRST_COMPLETED
            )
            if working.done():
                await working
                return True
            return False
        finally:
            working.cancel()
            ending.cancel()

    def log_of(self, key: LogKey) -> PartitionLog | None:
        """Return an open log; None: it is not open here."""
        return self._logs.get(key)

    def offloadable(self) -> list[RemoteLedger]:
        """Return the ledgers whose batches may move to objects: all but those of coordinators.

        May be called in any thread.
        """
        ledgers = [
            log.ledger for log in [*self._logs.values()] if not self._is_loaded_whole(log.topic)
        ]
        return [ledger for ledger in ledgers if isinstance(ledger, RemoteLedger)]

    # Opening.

    async def begin(self) -> None:
        """Connect to the store, and keep the lease from here on. Raises StorageFailure."""
        if self._renewing is None:
            await self._until_answered(self._commits.begin, _ATTEMPTS_OF_START)
            self._renewing = asyncio.get_running_loop().create_task(self._renew())
            self._renewing.add_done_callback(_raise_unheard)
            # The lease is this process's only once a commit has returned.
            await self._group_commit.settle()

    async def _renew(self) -> None:
        """Commit every `RENEW_MS`, even nothing. A failure has stopped the process already."""
        with suppress(StorageFailure):
            while True:
                # At the same time: a slow proof must not put off the next commit.
                await asyncio.gather(asyncio.sleep(RENEW_MS / 1000), self._group_commit.settle())

    def opening(
        self,
        topic: str,
        partition: int,
        topic_id: UUID,
        config: LogConfig,
        leader_epoch: int = 0,
    ) -> RemoteOpening:
        """Return what `open_together` takes."""
        return RemoteOpening(topic, partition, topic_id, config, leader_epoch)

    def open(
        self,
        topic: str,
        partition: int,
        topic_id: UUID,
        config: LogConfig,
        leader_epoch: int = 0,
    ) -> PartitionLog:
        """Return the log of a *new* partition, of which the store has nothing."""
        opening = RemoteOpening(topic, partition, topic_id, config, leader_epoch)
        log = self._new(opening, StoredLog(), is_whole=self._is_loaded_whole(topic))
        for barrier in self._opening(log):
            raise AssertionError(f"{barrier} of a log without batches")
        return log

    async def open_together(self, openings: Iterable[RemoteOpening]) -> list[PartitionLog | None]:
        """Load and return the logs of many partitions. None: the newest batches of that partition
        lie in objects that cannot be read now (`StoredLog.away`).

        Raises StorageFailure; NodeFenced where a later leader has written, since that means that
        this node was taken over.
        """
        await self.begin()
        all_openings = [*openings]
        logs: list[PartitionLog | None] = []
        for first in range(0, len(all_openings), LOADED_TOGETHER):
            together = all_openings[first : first + LOADED_TOGETHER]
            whole = [self._is_loaded_whole(each.topic) for each in together]
            wanted = [
                Wanted(each.key, 0 if is_whole else None)
                for each, is_whole in zip(together, whole, strict=True)
            ]
            loaded = await self._load(wanted)
            for opening, stored, is_whole in zip(together, loaded, whole, strict=True):
                try:
                    logs.append(await self._open_loaded(opening, stored, is_whole=is_whole))
                except LedgerFenced as fenced:
                    raise NodeFenced(f"{opening.topic}-{opening.partition}: {fenced}") from fenced
        return logs

    async def _load(self, wanted: Sequence[Wanted]) -> list[StoredLog]:
        return await self._until_answered(lambda: self._stored.load(wanted))

    async def _open_loaded(
        self, opening: RemoteOpening, stored: StoredLog, *, is_whole: bool
    ) -> PartitionLog | None:
        while not stored.away:
            log = self._new(opening, stored, is_whole=is_whole)
            try:
                for barrier in self._opening(log):
                    assert not barrier.files, f"{barrier} of a log without files"
                    await asyncio.sleep(0)
                return log
            except NotInMemory as missing:
                # The snapshot at the segment's beginning is missing or damaged: an older one, which
                # needs more batches, takes its place.
                (stored,) = await self._load([Wanted(opening.key, missing.offset)])
        return None

    def _new(self, opening: RemoteOpening, stored: StoredLog, *, is_whole: bool) -> PartitionLog:
        """Return a log that is to be opened from what was loaded."""
        ledger = RemoteLedger(
            opening.key,
            self._group_commit,
            self._reads,
            self._tail,
            opening.config,
            stored,
            is_wholly_loaded=is_whole,
        )
        log = PartitionLog(
            opening.topic,
            opening.partition,
            ledger,
            opening.config,
            steady_ms=self._steady_ms,
            leader_epoch=opening.leader_epoch,
            topic_id=opening.topic_id,
        )
        cleaned = stored.attachments.get(CLEANED)
        if cleaned is not None:
            (log.first_dirty_offset,) = CLEANED_OFFSET.unpack(cleaned)
        return log

    def _opening(self, log: PartitionLog) -> Procedure[None]:
        """Open a log. The barriers name nothing: others go on there. Raises NotInMemory."""
        try:
            # As after a clean stop: commits have written every snapshot whole.
            yield from log.opening(was_clean=True)
        except NotInMemory:
            log.ledger.close()
            raise
        key = _key_of(log)
        assert key not in self._logs, f"{log.topic}-{log.partition} is open"
        self._logs[key] = log

    # Changing.

    def free(self, topic: str, partition_count: int) -> None:
        """Nothing is kept by names."""

    async def free_all(self) -> None:
        """Nothing is kept by names."""

    async def persist_start_offsets(self, starts: Iterable[tuple[PartitionLog, int]]) -> None:
        """As `LogDirectory.persist_start_offsets`, by one commit."""
        for log, start_offset in starts:
            if self._is_open(log):
                ledger = log.ledger
                assert isinstance(ledger, RemoteLedger)
                ledger.want_start(start_offset)
        await self._group_commit.settle()

    def checkpoint_cleaned(self, log: PartitionLog) -> None:
        """Let the next commit write up to where the log is clean."""
        if self._is_open(log):
            log.ledger.attachments.write(CLEANED, CLEANED_OFFSET.pack(log.first_dirty_offset))

    def _is_open(self, log: PartitionLog) -> bool:
        return self._logs.get(_key_of(log)) is log

    async def delete(self, logs: Sequence[PartitionLog]) -> None:
        """Delete partitions: unknown from this step on; after the return nothing writes to them.

        Their rows are deleted after the return, in a task: many gigabytes take minutes, and other
        topics must not wait. If the node ends before, the controller finds the rows by the id of
        the deleted topic (`CommitStore.remains`).
        """
        keys = [self._take(log) for log in logs]
        for log in logs:
            log.become_unknown()
        for number, log in enumerate(logs, 1):
            log.close_gone()
            if number % _LOGS_A_TURN == 0:
                await asyncio.sleep(0)
        # A commit that is under way may still write to them.
        await self._group_commit.settle()
        if keys:
            deletion = asyncio.get_running_loop().create_task(self._delete_rows(keys))
            self._deletions.add(deletion)
            deletion.add_done_callback(self._deletions.discard)
            deletion.add_done_callback(_raise_unheard)

    async def _delete_rows(self, keys: Sequence[LogKey]) -> None:
        # A failure has stopped the process already.
        with suppress(StorageFailure):
            async with self._deleting:
                await self._until_answered(lambda: self._store.delete(keys))

    async def release(self, logs: Sequence[PartitionLog]) -> None:
        """Close logs that another node is to lead. Nothing writes to them after the return.

        The logs must refuse appends already.
        """
        await self._secure(logs)
        for log in logs:
            self._take(log)
            log.close()
        # The cleaner, or a move to an object, may have begun a commit after the last appends. The
        # next leader must not read before that commit has its effect: nothing fences it.
        await self._group_commit.settle()

    def _take(self, log: PartitionLog) -> LogKey:
        key = _key_of(log)
        del self._logs[key]
        return key

    async def _secure(self, logs: Sequence[PartitionLog]) -> None:
        """Make everything durable, with a snapshot of each state."""
        for number, log in enumerate(logs, 1):
            for barrier in log.securing():
                assert barrier.is_turn, f"{barrier} of a log without files"
                await asyncio.sleep(0)
            if number % _LOGS_A_TURN == 0:
                await asyncio.sleep(0)
        await self._group_commit.settle()

    def sweep(self) -> None:
        """A process that ends leaves nothing behind."""

    async def close(self) -> None:
        """Make everything durable, and close the store."""
        logs = [*self._logs.values()]
        if self._group_commit.failure is None and self._renewing is not None:
            # Bounded: what was acknowledged is durable already, and the store may be away.
            await self.in_time(self._secure(logs), _CLOSE_S)
        self.abandon()
        await self._store.close()

    def abandon(self) -> None:
        """Release everything at once and write nothing, as the end of the process would."""
        for task in (self._renewing, *self._deletions):
            if task is not None:
                task.cancel()
        for log in self._logs.values():
            log.close()
        self._logs.clear()
        self._reads.close()
        self._commits.close()

    async def _until_answered(
        self, ask: Callable[[], Awaitable[_T]], attempts_max: int | None = None
    ) -> _T:
        """Return the store's answer, however long it takes. Raises StorageFailure."""
        attempts = 0
        while True:
            try:
                answer = await ask()
                self._is_away_told = False
                return answer
            except StoreUnavailable as unavailable:
                attempts += 1
                # One connection that breaks is no trouble yet.
                if attempts >= 2 and not self._is_away_told:
                    self._is_away_told = True
                    self._on_away(str(unavailable))
                if attempts == attempts_max:
                    raise StorageFailure(f"the store does not answer: {unavailable}") from None
                if self._group_commit.failure is not None:
                    raise self._group_commit.failure from unavailable
            await asyncio.sleep(_RETRY_S)


def _key_of(log: PartitionLog) -> LogKey:
    assert log.topic_id is not None, "every topic of a cluster has an id"
    return LogKey(log.topic_id, log.partition)


def _raise_unheard(task: asyncio.Task[None]) -> None:
    """Raise the unexpected error of a background task to the event loop's exception handler."""
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
