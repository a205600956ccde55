"""A ledger's start, end and durable end: its hooks, its waiters, its part in group commit."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

from logstore.sync.group_commit import GroupCommit, Sync, Waiter


class LedgerClosed(Exception):
    """The ledger was closed before an append was durable: by a deletion, or by the stop."""


def _ignore(_offset: int) -> None:
    """The hook before one is set."""


def _resolve(future: asyncio.Future[None], failure: Exception | None) -> None:
    """End the wait of a coroutine, which may have been cancelled meanwhile."""
    if future.done():
        return
    if failure is None:
        future.set_result(None)
    else:
        future.set_exception(failure)
        # Marked as seen: the coroutine that asked may be gone before it awaits.
        future.exception()


class CommittedLedger(ABC):
    """The durable end offset of a ledger. Only group commit moves it after opening.

    Subclasses say what a sync covers (`begin_sync`), and where the ledger starts and ends.
    """

    def __init__(self, group_commit: GroupCommit, start_offset: int = 0) -> None:
        self.on_durable: Callable[[int], None] = _ignore
        self.on_roll: Callable[[int], None] = _ignore
        self._group_commit = group_commit
        # Plain attributes, not properties: every append and every answer reads them.
        self.start_offset = start_offset
        self.end_offset = self.durable_end_offset = start_offset
        #: What the sync under way, or the last one, covers; subclasses say so when it begins.
        self._begun_end_offset = 0
        #: Why nothing becomes durable any more; None: it does.
        self._end: Exception | None = None
        self._waiters: list[tuple[int, Waiter]] = []

    @property
    def is_closed(self) -> bool:
        """Whether nothing becomes durable any more: closed, or the storage has failed."""
        return self._end is not None

    def check_open(self) -> None:
        if self._end is not None:
            raise self._end

    def when_durable(self, end_offset: int, waiter: Waiter) -> bool:
        if self.durable_end_offset >= end_offset:
            return False
        if self._end is not None:
            raise self._end
        if end_offset > self._begun_end_offset and not self._group_commit.is_due:
            self._group_commit.hasten(self)
        self._waiters.append((end_offset, waiter))
        return True

    def until_durable(self, end_offset: int) -> asyncio.Future[None] | None:
        if self.durable_end_offset >= end_offset:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.when_durable(end_offset, partial(_resolve, future))
        return future

    @abstractmethod
    def begin_sync(self) -> Sync: ...

    def complete_sync(self, sync: Sync) -> None:
        assert sync.end_offset <= self.end_offset, "durable, but never appended"
        if self.durable_end_offset < sync.end_offset:
            self.durable_end_offset = sync.end_offset

    def announce_durable(self) -> None:
        self.on_durable(self.durable_end_offset)

    def take_served(self, served: list[Waiter]) -> None:
        waiting, end_offset = self._waiters, self.durable_end_offset
        if waiting:
            self._waiters = [entry for entry in waiting if entry[0] > end_offset]
            served += [waiter for offset, waiter in waiting if offset <= end_offset]

    def fail_waiters(self, failure: Exception) -> None:
        self._end = failure
        waiting, self._waiters = self._waiters, []
        for _, waiter in waiting:
            waiter(failure)

    def _stop_committing(self) -> None:
        """Leave group commit and fail every waiter: the ledger is closed."""
        self._group_commit.forget(self)
        # The hooks hold what owns this ledger. Without them both go without a garbage collection.
        self.on_durable = self.on_roll = _ignore
        self.fail_waiters(LedgerClosed("closed before it was durable"))
