"""Group commit: appends return at once, one sync at a time makes whole groups of them durable.

A ledger that has written something calls `touch`. When no sync is under way, one begins at the end
of the event loop's turn, so that all that a turn wrote (a transaction's markers on many partitions)
rides together. It covers everything written before it began; what is written meanwhile rides the
next, which begins when this one ends. Completion is one step on the event loop over all ledgers
covered: first every durable end offset, then the hooks, then the waiters. No reader can run
between, so nobody sees half of a group.

What nobody waits for yet (`may_wait`) starts no sync: it rides the next, which begins when somebody
asks for it (`hasten`) or for anything else, or after `PATIENCE_SECONDS`.

A failed sync is final. The kernel may have dropped the pages and called them clean, so a second
fsync that succeeds says nothing: every waiter fails, `on_failure` is called, the process stops and
recovers at the next start. (Rebello et al., "Can Applications Recover from fsync Failures?", 2020.)

Where there is a journal, a sync that covers little writes that there, once
(`logstore.sync.journal`).
Otherwise one dirty file is synced by fdatasync, more by one syncfs, or one by one where there is
none. Figures and alternatives: docs/decisions/0002-group-commit.md, 0018-journal.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Protocol

from logstore.disk.barriers import SYNC_ALL_FROM, Barrier, sync_barriers
from logstore.disk.durability import Durability
from logstore.disk.files import File, FileSystem, StorageFailure
from logstore.sync.journal import JOURNALED_BYTES_MAX, Entry, Journal
from logstore.sync.sync_durations import SyncDurations
from logstore.sync.sync_executors import BesideLoop, SyncExecutor

#: How long what nobody waits for stays without a sync: what a power loss may take back is bounded.
PATIENCE_SECONDS = 0.05


@dataclass(slots=True)
class Sync:
    """What one ledger wants of one sync, and the end offset that is durable after it."""

    end_offset: int
    files: Sequence[File] = ()
    directories: Sequence[str] = ()
    #: Whether it is to be performed also where durability asks for none: `flush.messages`.
    is_flush: bool = False
    #: What was appended to the files, where nothing else has to be durable: the journal may have
    #: that instead. None: it may not.
    written: Sequence[Entry] | None = None
    #: What is in no file yet, and may be after this sync: nothing of it may become durable without
    #: all of it, over all ledgers, and without what else they wrote. Only where there is a journal.
    held: Sequence[Entry] = ()
    #: Whether the journal is to be empty afterwards.
    settles: bool = False


class Member(Protocol):
    """A ledger, as group commit sees it. All of it is called on the event loop."""

    def begin_sync(self) -> Sync:
        """Everything written so far; the files stay pinned until `complete_sync`.

        Raises `StorageFailure` where something had to be written for it and could not be.
        """
        ...

    def complete_sync(self, sync: Sync) -> None:
        """Move the durable end offset. Nobody is to be called from here."""
        ...

    def announce_durable(self) -> None:
        """Call the hook; every member covered has been completed."""
        ...

    def resume_waiters(self) -> None:
        """Wake those who waited; every member covered has been announced."""
        ...

    def fail_waiters(self, failure: StorageFailure) -> None:
        """Tell those who wait that it will never be durable."""
        ...


class _Settlement:
    """Takes part in one sync, so that it empties the journal."""

    def __init__(self, done: asyncio.Future[None]) -> None:
        self._done = done

    def begin_sync(self) -> Sync:
        return Sync(0, settles=True)

    def complete_sync(self, sync: Sync) -> None: ...

    def announce_durable(self) -> None: ...

    def resume_waiters(self) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def fail_waiters(self, failure: StorageFailure) -> None:
        if not self._done.done():
            self._done.set_exception(failure)


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
    ) -> None:
        """`files` may be None unless `durability` is FSYNC.

        `on_failure` is called once, on the event loop, when a sync or a write has failed: it stops
        the process. An exception out of a ledger's hook reaches the loop's exception handler and
        must stop the process too.
        """
        self.durability = durability
        self.failure: StorageFailure | None = None
        self.sync_durations = SyncDurations()
        self._files = files
        self._on_failure = on_failure
        self._executor: SyncExecutor = BesideLoop() if executor is None else executor
        self._sync_all_from = sync_all_from
        #: Whether appends may be held back until the journal has them: `is_atomic`, and none of a
        #: step is there after a crash without all of it.
        self.has_journal = False
        self._journal: Journal | None = None
        self._dirty: dict[Member, None] = {}
        self._covered: list[tuple[Member, Sync]] = []
        self._busy = False  # a sync is under way, or about to begin
        self._is_awaited = False  # somebody waits for what the sync under way does not cover
        self._is_flushing = False  # what the journal has is being synced where it belongs
        self._is_patient = False  # the time runs after which what may wait has waited long enough

    @property
    def is_atomic(self) -> bool:
        """Whether what is appended in one step of the event loop, to whichever ledgers, with
        `Ledger.append`'s `is_atomic`, is there after a crash only with all that was before it.

        Against a crash that it survives at all: of the process where durability asks for no more.
        """
        return self._journal is not None or self.durability is not Durability.FSYNC

    def use_journal(self, journal: Journal) -> None:
        """Have small syncs go there; before anything is appended. It is closed with this."""
        assert self.durability is Durability.FSYNC
        assert self._files is not None and self._files.can_sync_all
        self._journal = journal
        self.has_journal = True

    async def settle(self) -> None:
        """Return when everything durable is so in its own file, and nothing is in the journal.

        Raises the failure, if there was one.
        """
        if self._journal is not None:
            done = asyncio.get_running_loop().create_future()
            self.touch(_Settlement(done))
            await done

    @property
    def is_idle(self) -> bool:
        """Whether everything written is durable."""
        return not self._busy and not self._dirty

    def touch(self, member: Member, *, may_wait: bool = False) -> None:
        """Have what `member` wrote covered by the next sync. Raises the failure that was.

        With `may_wait` none is begun for it but after `PATIENCE_SECONDS`.
        """
        if self.failure is not None:
            raise self.failure
        self._dirty[member] = None
        if may_wait:
            self._be_patient()
        else:
            self._start()

    def hasten(self, member: Member) -> None:
        """Somebody waits for what `member` wrote: begin the sync that covers it, if none has."""
        if member in self._dirty:
            self._start()

    def _start(self) -> None:
        if self._busy:
            self._is_awaited = True
        else:
            self._busy = True
            self._executor.call_soon(self._begin)

    def _be_patient(self) -> None:
        if not self._is_patient and not self._busy:
            self._is_patient = True
            self._executor.call_later(PATIENCE_SECONDS, self._lose_patience)

    def _lose_patience(self) -> None:
        self._is_patient = False
        if self._dirty:
            self._start()

    def forget(self, member: Member) -> None:
        """Leave out a ledger that is being closed."""
        self._dirty.pop(member, None)

    def fail(self, failure: StorageFailure) -> None:
        """Nothing becomes durable any more: a write or a sync has failed."""
        if self.failure is not None:
            return
        self.failure = failure
        waiting = dict.fromkeys(member for member, _ in self._covered) | self._dirty
        self._dirty.clear()
        for member in waiting:
            member.fail_waiters(failure)
        self._on_failure(failure)

    def close(self) -> None:
        """End the thread. Close the ledgers first: what is dirty is not synced any more."""
        self._executor.close()
        if self._journal is not None:
            self._journal.close()
            self._journal, self.has_journal = None, False

    def _begin(self) -> None:
        self._is_awaited = False
        if self.failure is not None or not self._dirty:
            self._busy = False
            return
        try:
            self._covered = [(member, member.begin_sync()) for member in self._dirty]
        except StorageFailure as failure:
            self.fail(failure)
            return
        self._dirty = {}
        performed = [sync for _, sync in self._covered]
        if self.durability is not Durability.FSYNC:
            performed = [sync for sync in performed if sync.is_flush]
            if not performed:
                self._complete(None)
                return
        self._perform(performed)

    def _perform(self, syncs: Sequence[Sync]) -> None:
        """Have these done, then `_complete`."""
        entries = None if self._journal is None else _entries_of(syncs)
        began = perf_counter()

        def done(error: OSError | None) -> None:
            self.sync_durations.observe(perf_counter() - began)
            self._complete(error)

        if entries is None or self._journal is None:
            self._executor.submit(self._work_of(syncs), done)
            return
        try:
            is_written = self._journal.write(entries)
        except OSError as error:
            self._complete(error)
            return
        if is_written:
            if self._executor.sync(self._journal.file, done):
                self._flush_if_due()
        else:
            self._executor.submit(partial(self._journal.append, entries), done)

    def _flush_if_due(self) -> None:
        assert self._files is not None and self._journal is not None
        if not self._is_flushing and self._journal.take_flush_due():
            self._is_flushing = True
            self._executor.submit(self._files.sync_all, self._flushed)

    def _flushed(self, error: OSError | None) -> None:
        self._is_flushing = False
        if error is not None:
            self.fail(StorageFailure(f"sync failed: {error}"))

    def _work_of(self, syncs: Sequence[Sync]) -> Callable[[], None]:
        """What is to be done in the thread where the files themselves are to be synced."""
        settles = any(sync.settles for sync in syncs)
        entries = [entry for sync in syncs for entry in sync.held]
        files = [file for sync in syncs for file in sync.files]
        directories = {directory for sync in syncs for directory in sync.directories}

        def work() -> None:
            self._sync(files, directories, settles=settles)
            if self._journal is not None and (entries or settles):
                self._journal.append(entries)

        return work

    def _sync(self, files: list[File], directories: set[str], *, settles: bool) -> None:
        """In the thread."""
        assert self._files is not None
        if self._journal is None:
            sync_barriers(self._files, [Barrier(files, list(directories))], self._sync_all_from)
        elif settles or directories or len(files) >= self._sync_all_from:
            # With a new name also what is written beside it unsynced: the topic id, by which a
            # start knows whose entries the journal has.
            self._files.sync_all()
            self._journal.restart()
        else:
            sync_barriers(self._files, [Barrier(files)])

    def _complete(self, error: OSError | None) -> None:
        covered, self._covered = self._covered, []
        if error is not None or self.failure is not None:
            self._busy = False
            for member, _ in covered:
                self._dirty[member] = None
            if error is not None:
                self.fail(StorageFailure(f"sync failed: {error}"))
            return
        try:
            for member, sync in covered:
                member.complete_sync(sync)
        except StorageFailure as failure:
            for member, _ in covered:
                member.fail_waiters(failure)
            return
        for member, _ in covered:
            member.announce_durable()
        for member, _ in covered:
            member.resume_waiters()
        self._go_on()

    def _go_on(self) -> None:
        """A sync has ended: begin the next, if somebody waits for it."""
        if not self._is_awaited:
            self._busy = False
            if self._dirty:
                self._be_patient()
        elif self.durability is Durability.FSYNC:
            self._begin()
        else:
            self._executor.call_soon(self._begin)


def _entries_of(syncs: Sequence[Sync]) -> list[Entry] | None:
    """What the journal is to have of these, so that no file needs a sync; None: it is too much, or
    one wants it empty."""
    entries: list[Entry] = []
    written_bytes = 0
    for sync in syncs:
        if sync.written is None or sync.settles:
            return None
        for entry in sync.written:
            written_bytes += len(entry.data)
            entries.append(entry)
        entries += sync.held
    return None if written_bytes > JOURNALED_BYTES_MAX else entries
