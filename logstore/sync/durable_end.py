"""A ledger's start, end and durable end: hooks, those who wait for it, its part in group commit.

`CommittedLedger` is the half of `Ledger` that every ledger synced by group commit shares.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from logstore.sync.group_commit import GroupCommit, Sync


class LedgerClosed(Exception):
    """The ledger was closed before an append was durable: by a deletion, or by the stop."""


def _nobody(_offset: int) -> None:
    """The hook that nobody has set."""


class CommittedLedger:
    """The durable end offset, moved by group commit alone. Subclasses say what a sync covers, and
    where the ledger starts and ends."""

    def __init__(self, group_commit: GroupCommit, start_offset: int = 0) -> None:
        self.on_durable: Callable[[int], None] = _nobody
        self.on_roll: Callable[[int], None] = _nobody
        self._group_commit = group_commit
        #: Moved by opening and by trims only.
        self.start_offset = start_offset
        self._end_offset = self._durable_end_offset = start_offset
        #: What the sync under way, or the last one, covers; subclasses say so when it begins.
        self._begun_end_offset = 0
        #: Bytes ever appended since it was opened: in all, below `_begun_end_offset`, durable.
        self._appended_bytes = self._begun_bytes = self._durable_bytes = 0
        self._will_not_be: Exception | None = None
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def end_offset(self) -> int:
        return self._end_offset

    @property
    def durable_end_offset(self) -> int:
        return self._durable_end_offset

    @property
    def durable_bytes(self) -> int:
        return self._durable_bytes

    @property
    def is_closed(self) -> bool:
        """Whether nothing becomes durable any more: closed, or the storage has failed."""
        return self._will_not_be is not None

    async def durable(self, end_offset: int) -> None:
        waiter = self.until_durable(end_offset)
        if waiter is not None:
            await waiter

    def until_durable(self, end_offset: int) -> asyncio.Future[None] | None:
        if self._durable_end_offset >= end_offset:
            return None
        if self._will_not_be is not None:
            raise self._will_not_be
        if end_offset > self._begun_end_offset:
            self._group_commit.hasten(self)
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append((end_offset, waiter))
        return waiter

    def begin_sync(self) -> Sync:
        raise NotImplementedError

    def complete_sync(self, sync: Sync) -> None:
        if self._durable_end_offset < sync.end_offset:
            self._durable_end_offset = sync.end_offset
        self._durable_bytes = self._begun_bytes

    def announce_durable(self) -> None:
        self.on_durable(self._durable_end_offset)

    def resume_waiters(self) -> None:
        if not self._waiters:
            return
        waiting, self._waiters = self._waiters, []
        for entry in waiting:
            if entry[0] > self._durable_end_offset:
                self._waiters.append(entry)
            elif not entry[1].done():
                entry[1].set_result(None)

    def fail_waiters(self, failure: Exception) -> None:
        self._will_not_be = failure
        waiting, self._waiters = self._waiters, []
        for _, waiter in waiting:
            if not waiter.done():
                waiter.set_exception(failure)
                waiter.exception()  # retrieved: who asked may have gone before it waited

    def _stop_committing(self) -> None:
        """Wake all who wait: the ledger is closed."""
        self._group_commit.forget(self)
        # Whoever they are of holds the ledger: so both go without a collection.
        self.on_durable = self.on_roll = _nobody
        self.fail_waiters(LedgerClosed("closed before it was durable"))
