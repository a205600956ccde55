"""Group commit: appends return at once, one sync at a time makes whole groups of them durable.

A ledger that has written something calls `touch`. When no sync is under way, one begins at the end
of the event loop's turn, so that it covers all that a turn wrote (a transaction's markers on many
partitions). It covers everything written before it began. What is written meanwhile is covered by
the next one, which begins when this one ends. Completion is one step on the event loop over all
ledgers covered: first every durable end offset, then the hooks, then the waiters. No reader can run
in between, so no reader sees half of a group. The next sync of files begins before the waiters are
called, so that the disk works while hundreds of answers are made. The next commit of a store begins
one turn later, and covers more. A medium that keeps the order of syncs by itself may let the next
one begin earlier (`make_room`). Syncs end in the order in which they began.

An append that may wait (`may_wait`) starts no sync. The next one covers it, which begins when a
waiter asks for it (`hasten`), when another append needs one, or after `UNSYNCED_S_MAX` seconds.

A failed sync is final. The kernel may have dropped the pages and marked them clean, so a second
fsync that succeeds proves nothing. Every waiter fails, `on_failure` is called, the process stops,
and the next start recovers. Source: Rebello et al., "Can Applications Recover from fsync
Failures?", 2020.

What a sync does is the medium's: files and a journal (`logstore.sync.file_syncs`), or a database
(`logstore.remote`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from time import perf_counter
from typing import TypeAlias

from logstore.disk.barriers import SYNC_ALL_FROM, Procedure, sync_barriers
from logstore.disk.durability import Durability
from logstore.disk.files import FileSystem, StorageFailure
from logstore.sync.committed_ledger import CommittedLedger as CommittedLedger
from logstore.sync.committed_ledger import LedgerClosed as LedgerClosed
from logstore.sync.committed_ledger import Waiter as Waiter
from logstore.sync.file_syncs import FileSyncs
from logstore.sync.journal import JOURNALED_BYTES_MAX, Journal
from logstore.sync.medium import Medium, Performed
from logstore.sync.sync_executors import BesideLoop, SyncDurations, SyncExecutor
from logstore.sync.sync_executors import Sync as Sync

#: The longest time that an append which may wait is not synced: a power loss takes no more back.
UNSYNCED_S_MAX = 0.05


def _tell_none() -> None:
    """Stand in for the hook about a full disk until that is set."""


#: A sync under way: the ledgers that it covers, the futures that wait for its end, and when it
#: began (seconds). A plain tuple, because each request that appends makes one.
_Round: TypeAlias = "tuple[list[tuple[CommittedLedger, Sync]], list[asyncio.Future[None]], float]"

#: Chooses, among the ledgers that have something to write, those that the next sync covers. The
#: others wait for the sync after it. What has to survive a crash together is chosen together.
Choose: TypeAlias = Callable[["Iterable[CommittedLedger]"], "Sequence[CommittedLedger]"]


class GroupCommit:
    """Makes durable what ledgers have written, many at a time."""

    def __init__(
        self,
        files: FileSystem | None,
        durability: Durability,
        *,
        on_failure: Callable[[StorageFailure], None],
        executor: SyncExecutor | None = None,
        sync_all_from: int = SYNC_ALL_FROM,
        medium: Medium | None = None,
        choose: Choose | None = None,
    ) -> None:
        """`files` may be None unless `durability` is FSYNC. `medium`: what makes appends durable
        in place of files; all that one of its syncs covers survives a crash, or nothing of it.
        `choose`: None covers everything by each sync.

        `on_failure` is called once, on the event loop, when a sync or a write has failed: it stops
        the process. An exception out of a ledger's hook reaches the loop's exception handler and
        must stop the process too.
        """
        self.durability = durability
        self.failure: StorageFailure | None = None
        self.sync_durations = SyncDurations()
        #: Is told of each append that was refused because its write found no room.
        self.on_full: Callable[[], None] = _tell_none
        #: Whether entries may be kept out of their files until the journal has them (`Sync.held`).
        self.has_journal = False
        #: Whether all that a sync covers survives a crash, or nothing of it.
        self.is_all_or_nothing = medium is not None
        #: Whether a sync is about to begin that covers everything written by now.
        self.is_due = False
        self._files = files
        self._on_failure = on_failure
        self._executor: SyncExecutor = BesideLoop() if executor is None else executor
        self._file_syncs: FileSyncs | None = None
        if medium is None and files is not None:
            on_error = partial(self.failed, "sync failed")
            medium = self._file_syncs = FileSyncs(files, self._executor, sync_all_from, on_error)
        self._medium = medium
        # Looked up once, because every sync calls it.
        self._perform = _perform_nothing if medium is None else medium.perform
        self._dirty: dict[CommittedLedger, None] = {}
        self._unsynced_bytes = 0  # written since the last sync began, to files that the journal has
        self._choose = choose
        self._under_way: deque[_Round] = deque()  # the oldest first
        #: How many of these are ordered; None: the medium orders nothing before it is durable.
        self._ordered: int | None = None
        self._has_room = False  # whether the newest of these does not hold up the next one
        #: Callers of `settle`. They wait for the end of a sync that has not begun.
        self._settling: list[asyncio.Future[None]] = []
        # Whether a sync that holds up the next one is under way, or about to begin.
        self._busy = False
        self._has_timer = False  # the timer runs that begins a sync for appends that may wait

    @property
    def is_atomic(self) -> bool:
        """Whether appends with `is_atomic`, made in one step of the event loop to any ledgers,
        survive a crash only together with everything before them.

        That is: a crash that the durability covers at all, of the process where it asks for less.
        """
        return self.is_all_or_nothing or self.durability is not Durability.FSYNC

    def use_journal(self, journal: Journal) -> None:
        """Write small syncs there. Call it before any append. `close` closes the journal too."""
        assert self.durability is Durability.FSYNC, "a journal is for what must survive power loss"
        assert self._files is not None and self._files.can_sync_all, "it is emptied by a syncfs"
        assert self._file_syncs is not None
        self._file_syncs.journal = journal
        self.has_journal = self.is_all_or_nothing = True

    async def settle(self) -> None:
        """Return when a sync has ended that began after the call, even an empty one.

        With a journal, everything durable is in its own file then, and the journal is empty. With a
        store, all that was read from it before the call is proven, and this node was not taken over
        before the call. Without either it returns at once. Raises the failure, if there is one.
        """
        if self.failure is not None:
            raise self.failure
        if self.is_all_or_nothing:
            settled = asyncio.get_running_loop().create_future()
            self._settling.append(settled)
            self._schedule()
            await settled

    def begin_order(self) -> Callable[[], None]:
        """Return the hook that the medium calls for each sync, in their order, when it is ordered.

        That is before the sync has ended. Call `begin_order` before any append.
        """
        self._ordered = 0
        return self._note_ordered

    @property
    def has_order(self) -> bool:
        """Whether the medium orders appends before they are durable."""
        return self._ordered is not None

    def _note_ordered(self) -> None:
        assert self._ordered is not None
        covered = self._under_way[self._ordered][0]
        self._ordered += 1
        served = [
            member.order.advance(sync.end_offset)
            for member, sync in covered
            if member.order is not None
        ]
        for waiters in served:
            for waiter in waiters:
                waiter(None)

    @property
    def is_idle(self) -> bool:
        """Whether everything written is durable."""
        return not (self._busy or self._dirty or self._under_way)

    def touch(self, member: CommittedLedger, *, may_wait: bool = False) -> None:
        """Let the next sync cover what `member` wrote. Raises the failure, if there is one.

        With `may_wait`, no sync begins for its sake before `UNSYNCED_S_MAX` seconds have passed.
        """
        if self.failure is not None:
            raise self.failure
        self._dirty[member] = None
        if may_wait:
            self._start_timer()
        elif not self.is_due:
            self._schedule()

    def may_journal(self, size_bytes: int) -> bool:
        """Account for bytes just written; return whether the next sync may put them in the journal.

        Once a sync has too many bytes, over all ledgers, ledgers need not keep copies for it.
        """
        self._unsynced_bytes += size_bytes
        return self._unsynced_bytes <= JOURNALED_BYTES_MAX

    def hasten(self, member: CommittedLedger) -> None:
        """Begin the sync that covers what `member` wrote, if none has: a waiter asks for it."""
        if member in self._dirty and not self.is_due:
            self._schedule()

    def _schedule(self) -> None:
        self.is_due = True
        if not self._busy:
            self._busy = True
            self._executor.call_soon(self._begin)

    def _start_timer(self) -> None:
        if not self._has_timer and not self._busy:
            self._has_timer = True
            self._executor.call_later(UNSYNCED_S_MAX, self._on_timer)

    def _on_timer(self) -> None:
        self._has_timer = False
        if self._dirty:
            self._schedule()

    def forget(self, member: CommittedLedger) -> None:
        """Leave out a ledger that is being closed."""
        self._dirty.pop(member, None)

    def failed(self, what: str, error: OSError) -> StorageFailure:
        """Fail because of an error of the disk at `what`; return the failure, to be raised."""
        failure = StorageFailure(f"{what}: {error}")
        self.fail(failure)
        return failure

    def carry_out(
        self, procedure: Procedure[None], is_wanted: Callable[[], bool], done: Waiter
    ) -> None:
        """Do a procedure on the event loop, but its syncs beside it; then call `done`.

        After each barrier the rest is given up, without `done`, unless `is_wanted`.
        """
        barrier = None
        if self.failure is None:
            with suppress(StorageFailure), self.storing("a small file"):
                barrier = next(procedure, None)
        if barrier is None or self.failure is not None:
            procedure.close()
            done(self.failure)
            return

        def synced(error: OSError | None) -> None:
            if error is not None:
                self.failed("sync failed", error)
            if is_wanted():
                self.carry_out(procedure, is_wanted, done)
            else:
                procedure.close()

        if barrier.is_turn:
            self._executor.call_soon(partial(synced, None))
            return
        assert self._files is not None
        self._executor.submit(partial(sync_barriers, self._files, (barrier,)), synced)

    @contextmanager
    def storing(self, what: str) -> Iterator[None]:
        """Turn an error of the disk at `what` into a StorageFailure, which is final."""
        try:
            yield
        except OSError as error:
            raise self.failed(what, error) from error

    def fail(self, failure: StorageFailure) -> None:
        """Fail for good, at the first failure: nothing becomes durable any more."""
        if self.failure is not None:
            return
        self.failure = failure
        rounds = [*self._under_way]
        waiting = self._members_under_way() | self._dirty
        self._dirty.clear()
        for member in waiting:
            member.fail_waiters(failure)
        for _, settling, _ in rounds:
            _fail_all(settling, failure)
        _fail_all(self._settling, failure)
        self._on_failure(failure)

    def _members_under_way(self) -> dict[CommittedLedger, None]:
        covered = (member for members, _, _ in self._under_way for member, _ in members)
        return dict.fromkeys(covered)

    def close(self) -> None:
        """End the thread. Close the ledgers first: what is dirty is not synced any more."""
        self._executor.close()
        if self._medium is not None:
            self._medium.close()
        self.has_journal = self.is_all_or_nothing = False

    def _begin(self) -> None:
        self.is_due = False
        if self.failure is not None or not (self._dirty or self._settling):
            self._busy = False
            return
        covered: list[tuple[CommittedLedger, Sync]] = []
        syncs: list[Sync] = []
        members, others = self._dirty, {}
        if self._choose is not None and not self._settling:
            members = dict.fromkeys(self._choose(members))
            others = {member: None for member in self._dirty if member not in members}
        try:
            for member in members:
                sync = member.begin_sync()
                covered.append((member, sync))
                syncs.append(sync)
        except StorageFailure as failure:
            self.fail(failure)
            return
        self._dirty, self.is_due = others, bool(others)
        self._unsynced_bytes = 0
        settling, self._settling = self._settling, []
        self._under_way.append((covered, settling, perf_counter()))
        self._has_room = False
        if self.durability is Durability.FSYNC:
            self._perform(syncs, self._performed, self._make_room, settles=bool(settling))
        elif flushes := [sync for sync in syncs if sync.is_flush]:
            self._perform(flushes, self._performed, self._make_room, settles=bool(settling))
        else:
            self._complete()

    def _make_room(self) -> None:
        """Let the next sync begin, although the newest one has not ended."""
        if self.failure is None:
            self._has_room = True
            self._go_on()

    def _performed(self, error: OSError | StorageFailure | None) -> None:
        self.sync_durations.observe(perf_counter() - self._under_way[0][2])
        if error is None and self.failure is None:
            self._complete()
            return
        self._busy = False
        # Dirty again, so that `fail` finds each member once.
        self._dirty |= self._members_under_way()
        self._settling += [each for _, settling, _ in self._under_way for each in settling]
        self._under_way.clear()
        if isinstance(error, StorageFailure):
            self.fail(error)
        elif error is not None:
            self.failed("sync failed", error)

    def _complete(self) -> None:
        covered, settling, _ = self._under_way.popleft()
        self._ordered = self._ordered and self._ordered - 1
        try:
            for member, sync in covered:
                end_offset = sync.end_offset
                assert end_offset <= member.end_offset, "durable, but never appended"
                if member.durable_end_offset < end_offset:
                    member.durable_end_offset = end_offset
                member.complete_sync(sync)
        except StorageFailure as failure:
            _fail_round(covered, settling, failure)
            return
        for member, _ in covered:
            member.on_durable(member.durable_end_offset)
        # Taken before the next sync begins: if that one fails, these have still succeeded.
        served: list[Waiter] = []
        for member, _ in covered:
            if member.waiters:
                served += member.take_served()
        if settling:
            _resume(settling)
        if not (self._has_room or self._under_way):
            self._go_on()
        for waiter in served:
            waiter(None)

    def _go_on(self) -> None:
        """Begin the next sync, if one is asked for."""
        if not self.is_due:
            self._busy = False
            if self._dirty:
                self._start_timer()
        elif self._file_syncs is not None and self.durability is Durability.FSYNC:
            self._begin()
        else:
            # In the next turn. Without a wait for the disk, the loop would do nothing else. And a
            # commit costs as much as several records: it should cover what clients send after the
            # answers of this step.
            self._executor.call_soon(self._begin)


def _resume(settling: Sequence[asyncio.Future[None]]) -> None:
    for settled in settling:
        if not settled.done():
            settled.set_result(None)


def _fail_all(settling: Sequence[asyncio.Future[None]], failure: StorageFailure) -> None:
    for settled in settling:
        if not settled.done():
            settled.set_exception(failure)


def _fail_round(
    covered: Sequence[tuple[CommittedLedger, Sync]],
    settling: Sequence[asyncio.Future[None]],
    failure: StorageFailure,
) -> None:
    for member, _ in covered:
        member.fail_waiters(failure)
    _fail_all(settling, failure)


def _perform_nothing(
    _syncs: Sequence[Sync], _done: Performed, _make_room: Callable[[], None], *, settles: bool
) -> None:
    raise AssertionError("without a medium nothing has to be durable")
