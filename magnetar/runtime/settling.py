"""Settling: from the decision over a transaction to the moment when nothing of it is open.

Each decided transaction has a task of its own, which no client's disconnect can stop: until its
decision, every marker and pending ack are durable and visible. That wakes who waits for it, in that
step. Where appends of one step are atomic the markers are appended in that of the decision, and one
sync makes both durable; elsewhere the decision is durable first.

COMPLETE_* is due after that, and no answer to this transaction waits for it. Under version 1 the
next transaction does (`completions`), so it is appended with the markers where that is atomic, and
else as soon as they are durable. Under version 2 it is appended at the next request for the id or
after a short delay, whichever is first, and costs no sync of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from coordinator.transactions.work import MarkerWork
from logstore.partition.log import PartitionLog
from magnetar.runtime.participants import AppendedMarker, Participants

#: How long an answer waits for markers. The outcome is decided and durable by then, so EndTxn
#: answers anyway; InitProducerId asks its client to try again. Well below the clients' patience.
SETTLE_TIMEOUT_MS = 5_000

#: How long COMPLETE_* may wait for company. Until then a crash costs a re-drive, no more.
COMPLETION_DELAY_MS = 50

#: Completions in one turn of the event loop: a few milliseconds.
_SLICE = 50


@dataclass(slots=True)
class _Drive:
    """One decision being carried out, which `log` holds."""

    work: MarkerWork
    log: PartitionLog
    is_redrive: bool
    behind: Sequence[asyncio.Task[None]]
    #: Of the decision's being durable; asked for in its step, so woken before who waits for it all.
    decided: asyncio.Future[None] | None
    #: None: not appended yet.
    markers: Sequence[AppendedMarker] | None = None
    #: Whether COMPLETE_* is in the log, with them.
    is_completed: bool = False
    #: What carries it out; None until it is set to work.
    task: asyncio.Task[None] | None = None

    def append_markers(self, participants: Participants) -> None:
        self.markers = participants.append(
            self.work, self.log.leader_epoch, is_redrive=self.is_redrive
        )


class Settling:
    """The transactions that are decided and not yet COMPLETE_*, at most one of each id."""

    def __init__(
        self,
        participants: Participants,
        *,
        is_atomic: bool,
        complete: Callable[[str], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        """`is_atomic`: as `GroupCommit.is_atomic`, of all logs that take part.

        `complete` is called with an id whose work `take_done` will return; `fail` stops.
        """
        self._participants = participants
        self._is_atomic = is_atomic
        self._complete = complete
        self._fail = fail
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._waiters: dict[str, list[asyncio.Future[bool]]] = {}
        #: What was done and is to be completed, by id: see `take_done`.
        self.done: dict[str, MarkerWork] = {}
        self._completing: asyncio.TimerHandle | None = None

    def begin(
        self,
        work: MarkerWork,
        log: PartitionLog,
        end_offset: int,
        *,
        is_redrive: bool,
        is_completed: bool = False,
        others: Sequence[str] = (),
    ) -> None:
        """Carry out the decision that `log` holds before `end_offset`, appended in this step unless
        it `is_redrive`.

        It is done only when those of `others` are too that are under way now; and of its own id,
        which has none but where an abort of nothing waits for its children. `is_completed`: what
        was appended is COMPLETE_* itself.
        """
        behind: Sequence[asyncio.Task[None]] = ()
        if others or work.transactional_id in self._under_way:
            related = (work.transactional_id, *others)
            behind = [self._under_way[each] for each in related if each in self._under_way]
        decided = log.until_durable(end_offset)
        drive = _Drive(work, log, is_redrive, behind, decided, is_completed=is_completed)
        if self._is_atomic and not is_redrive:
            self._append_markers(drive)
        task = asyncio.get_running_loop().create_task(self._settle(drive))
        drive.task = self._under_way[work.transactional_id] = task
        task.add_done_callback(partial(self._on_ended, work.transactional_id))
        is_with_markers = drive.markers is not None and work.is_completion_awaited and not behind
        if is_with_markers and not is_completed:
            drive.is_completed = True
            self.done[work.transactional_id] = work
            self._complete(work.transactional_id)

    def is_under_way(self, transactional_id: str) -> bool:
        """Whether the id's decision, or one of its markers, may not be durable yet."""
        return transactional_id in self._under_way

    def _append_markers(self, drive: _Drive) -> None:
        """In the step of the decision. A failure stops, and nothing of the step is durable, or only
        that it is decided and due: replay."""
        try:
            drive.append_markers(self._participants)
        except BaseException as failure:
            self._fail(failure)
            raise

    async def settled(self, transactional_id: str) -> bool:
        """Return whether all markers of the id are durable, waiting up to the bound for it."""
        if transactional_id not in self._under_way:
            return True
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiters.setdefault(transactional_id, []).append(waiter)
        bound = loop.call_later(SETTLE_TIMEOUT_MS / 1000, _give_up, waiter)
        try:
            return await waiter
        finally:
            bound.cancel()

    async def all_settled(self, timeout_ms: int | None = None) -> None:
        """Return when nothing of what is under way now is any more, or after the bound, if any."""
        if self._under_way:
            timeout_s = None if timeout_ms is None else timeout_ms / 1000
            await asyncio.wait(self._under_way.values(), timeout=timeout_s)

    def take_done(self, transactional_id: str) -> MarkerWork | None:
        """Return the work that was done and is to be completed, once; None where there is none."""
        return self.done.pop(transactional_id, None)

    async def stop(self) -> None:
        """End what is under way. What is left undone the next start finds due."""
        await self.all_settled(SETTLE_TIMEOUT_MS)
        for task in self._under_way.values():
            task.cancel()
        if self._completing is not None:
            self._completing.cancel()
        self.complete_all()

    async def _settle(self, drive: _Drive) -> None:
        if drive.decided is not None:
            await drive.decided
        if drive.markers is None:
            drive.append_markers(self._participants)
        await self._participants.durable(drive.markers or ())
        if drive.behind:
            await asyncio.gather(*drive.behind)
        work = drive.work
        transactional_id = work.transactional_id
        if self._under_way[transactional_id] is not drive.task:
            return  # The id has gone on: all wait for its later work, which waits for this.
        del self._under_way[transactional_id]
        for waiter in self._waiters.pop(transactional_id, ()):
            if not waiter.done():
                waiter.set_result(True)
        if not drive.is_completed:
            self.done[transactional_id] = work
            self._complete_soon(work)

    def _complete_soon(self, work: MarkerWork) -> None:
        loop = asyncio.get_running_loop()
        if work.is_completion_awaited:
            # Behind those who have been woken.
            loop.call_soon(self._complete, work.transactional_id)
        elif self._completing is None:
            self._completing = loop.call_later(COMPLETION_DELAY_MS / 1000, self._complete_some)

    def _complete_some(self) -> None:
        self._completing = None
        for transactional_id in tuple(islice(self.done, _SLICE)):
            self._complete(transactional_id)
        if self.done:
            self._completing = asyncio.get_running_loop().call_later(0, self._complete_some)

    def complete_all(self) -> None:
        """Append what is due of COMPLETE_*, waiting for no company.

        At a start before healing, which leaves alone what is PREPARE_*: data of the transaction
        after that, whose add was lost, is to be adopted before its producer can be fenced. Markers
        of a later epoch would end it as they end their own.
        """
        for transactional_id in tuple(self.done):
            self._complete(transactional_id)

    def _on_ended(self, transactional_id: str, task: asyncio.Task[None]) -> None:
        """A drive that failed leaves its transaction decided and due: stop, replay, drive again.

        Where it failed nobody is to hear that it is done.
        """
        failure = asyncio.CancelledError() if task.cancelled() else task.exception()
        if failure is None:
            return
        for waiter in self._waiters.pop(transactional_id, ()):
            if not waiter.done():
                waiter.set_exception(failure)
        if not task.cancelled():
            self._fail(failure)


def _give_up(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)
