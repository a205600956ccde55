"""How far the appends of one ledger are durable, how far they are ordered, and what waits for that.

Group commit begins and ends syncs (`logstore.sync.group_commit`). At the end of its sync an append
is *durable*. A store that all nodes share puts their syncs in one order, and there an append is
*ordered* earlier: what a node writes because of it comes after it, and a fail-over that takes the
append back takes that back too (`logstore.remote.commit_store.Basis`). So other nodes may begin
work that follows from an ordered append. No reader may see the append before it is durable. Files
of several nodes have no common order: there an append is ordered when it is durable.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeAlias

from logstore.sync.sync_executors import Sync

#: Called in the step in which the awaited append is durable or ordered, or with the reason why it
#: never will be. A failure comes in the middle of a step: only remember it, or act in a later step.
Waiter: TypeAlias = Callable[[Exception | None], None]


class LedgerClosed(Exception):
    """The ledger was closed before an append was durable: by a deletion, or by the stop."""


class Syncs(Protocol):
    """Begins syncs: group commit, as a ledger sees it."""

    is_due: bool

    @property
    def has_order(self) -> bool:
        """Whether appends are ordered before they are durable."""

    def hasten(self, member: CommittedLedger, /) -> None:
        """Begin the sync that covers what `member` wrote, if none has."""

    def forget(self, member: CommittedLedger, /) -> None:
        """Leave out a ledger that is being closed."""

    async def settle(self) -> None:
        """Return when everything durable is in its own place."""


class Order:
    """How far the appends of one ledger are ordered, and what waits for that."""

    __slots__ = ("end_offset", "waiters")

    def __init__(self) -> None:
        #: Everything below is ordered.
        self.end_offset = 0
        self.waiters: list[tuple[int, Waiter]] = []

    def advance(self, end_offset: int) -> list[Waiter]:
        """Move the end; return the waiters to be called."""
        self.end_offset = max(self.end_offset, end_offset)
        waiting = self.waiters
        self.waiters = [entry for entry in waiting if entry[0] > self.end_offset]
        return [waiter for offset, waiter in waiting if offset <= self.end_offset]


class CommittedLedger(ABC):
    """The durable end offset of a ledger. Only group commit moves it after opening.

    Subclasses say what a sync covers (`begin_sync`), and where the ledger starts and ends.
    """

    #: Whether a sync that covers this ledger covers all others too.
    is_synced_with_others = True
    #: Whether Kafka and its tools may read the files beside the log.
    is_read_by_kafka = True
    #: Whether the first append after an opening makes or opens files.
    has_files = False

    def __init__(self, syncs: Syncs, start_offset: int = 0) -> None:
        self.on_durable: Callable[[int], None] = _ignore
        self.on_roll: Callable[[int], None] = _ignore
        self._syncs = syncs
        # Plain attributes, not properties: every append and every answer reads them.
        self.start_offset = start_offset
        self.end_offset = self.durable_end_offset = start_offset
        #: The end offset (exclusive) of what the sync under way, or the last one, covers.
        #: Subclasses set it when they begin a sync.
        self._begun_end_offset = 0
        #: Why nothing becomes durable any more. None: the ledger is open.
        self._end: Callable[[], Exception] | None = None
        self.waiters: list[tuple[int, Waiter]] = []
        #: None: an append is ordered once it is durable.
        self.order = Order() if syncs.has_order else None

    @property
    def is_closed(self) -> bool:
        """Whether nothing becomes durable any more: closed, or the storage has failed."""
        return self._end is not None

    def check_open(self) -> None:
        if self._end is not None:
            raise self._end()

    def when_durable(self, end_offset: int, waiter: Waiter) -> bool:
        if self.durable_end_offset >= end_offset:
            return False
        if self._end is not None:
            raise self._end()
        if end_offset > self._begun_end_offset and not self._syncs.is_due:
            self._syncs.hasten(self)
        self.waiters.append((end_offset, waiter))
        return True

    def is_ordered(self, end_offset: int) -> bool:
        order = self.order
        return self.durable_end_offset >= end_offset or (
            order is not None and order.end_offset >= end_offset
        )

    def when_ordered(self, end_offset: int, waiter: Waiter) -> bool:
        if self.order is None:
            return self.when_durable(end_offset, waiter)
        if self.is_ordered(end_offset):
            return False
        self.check_open()
        if end_offset > self._begun_end_offset and not self._syncs.is_due:
            self._syncs.hasten(self)
        self.order.waiters.append((end_offset, waiter))
        return True

    def until_durable(self, end_offset: int) -> asyncio.Future[None] | None:
        if self.durable_end_offset >= end_offset:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.when_durable(end_offset, partial(_resolve, future))
        return future

    def until_ordered(self, end_offset: int) -> asyncio.Future[None] | None:
        if self.is_ordered(end_offset):
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.when_ordered(end_offset, partial(_resolve, future))
        return future

    async def settled(self) -> None:
        await self._syncs.settle()

    # Called by group commit.

    @abstractmethod
    def begin_sync(self) -> Sync:
        """Return a sync of everything written so far. The files stay the ledger's, which may close
        them.

        Raises `StorageFailure` where something had to be written first and could not be.
        """

    def complete_sync(self, sync: Sync) -> None:  # noqa: B027  # not every storage has to
        """Take note that `durable_end_offset` has moved. Do not call anything else from here."""

    def take_served(self) -> list[Waiter]:
        """Remove the waiters for what is durable now; return them, to be called."""
        waiting, end_offset = self.waiters, self.durable_end_offset
        self.waiters = [entry for entry in waiting if entry[0] > end_offset]
        return [waiter for offset, waiter in waiting if offset <= end_offset]

    def fail_waiters(self, failure: Exception) -> None:
        """Fail every waiter: nothing becomes durable any more."""
        self._end = lambda: failure
        waiting, self.waiters = self.waiters, []
        if self.order is not None:
            waiting += self.order.waiters
            self.order.waiters = []
        for _, waiter in waiting:
            waiter(failure)

    def _stop_committing(self) -> None:
        """Leave group commit and fail every waiter: the ledger is closed."""
        self._syncs.forget(self)
        # The hooks refer to the owner of this ledger: a cycle, which reference counts cannot free.
        self.on_durable = self.on_roll = _ignore
        self.fail_waiters(_closed())
        # A new error each time: the traceback of one that is kept would lead back here.
        self._end = _closed


def _closed() -> LedgerClosed:
    return LedgerClosed("closed before it was durable")


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
