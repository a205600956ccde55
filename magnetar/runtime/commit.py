"""Commits: from the decision over a transaction to the moment when every reader sees it.

A commit, in this module, carries out one decision, which may also be an abort. No client's
disconnect stops it. `coordinator.transactions.commit_plan` says what is appended in which step.
This module appends, waits for the disk, and calls the waiters. One sync makes everything durable
that a plan appends in its first step. If nothing else is due, the outcome is visible in the step of
that sync. Only a commit that has more to do before that goes on in a task.

A transaction is *visible* when all its markers and pending acks are durable. EndTxn is answered
then. What follows is `completions`: COMPLETE_*, and data of the next transaction.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain

from coordinator.transactions.commit_plan import MarkerWork, Part, Plan
from logstore.partition.log import PartitionLog
from logstore.sync.group_commit import Waiter
from magnetar.clock import Clock
from magnetar.runtime.completions import Completions
from magnetar.runtime.delayed_response import DelayedResponse
from magnetar.runtime.markers_elsewhere import MarkersElsewhere, Round
from magnetar.runtime.participants import AppendedMarker, LeftMarker, Participants, owed_of
from magnetar.storage.leaders import shard_missing
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.message import Message

#: How long an answer waits for markers. If the decision is durable by then, EndTxn answers anyway;
#: InitProducerId asks its client to try again. Well below the clients' timeouts.
VISIBLE_TIMEOUT_MS = 5_000
#: Slices of markers of one commit that wait for the disk at once. One would be enough for a fast
#: disk; on a slow one each sync should cover some.
SLICES_WAITING_MAX = 4

#: The plans whose markers are appended in one step once the decision is durable, and which markers.
_MARKED_LATER = {Plan.DECISION_FIRST: Part.MARKERS, Plan.REDRIVE: Part.MISSING_MARKERS}


class _Commit:
    """One decision being carried out. `log` holds it; its markers carry the log's leader epoch."""

    __slots__ = (
        "after",
        "early_round",
        "ended",
        "is_abandoned",
        "left",
        "log",
        "markers",
        "plan",
        "task",
        "work",
        "works",
        "works_elsewhere",
    )

    def __init__(
        self, work: MarkerWork, plan: Plan, log: PartitionLog, after: Sequence[_Commit]
    ) -> None:
        self.work = work
        #: The decision's work, and that of each vote that it decides, for partitions of this node.
        self.works: Sequence[MarkerWork] = (work, *work.votes)
        #: The same for partitions that other nodes lead.
        self.works_elsewhere: Sequence[MarkerWork] = ()
        #: Asks other nodes once the decision is ordered; None: they are asked later, if at all.
        self.early_round: Round | None = None
        self.plan = plan
        self.log = log
        #: Commits whose outcome must be visible before this one's.
        self.after = after
        # Made now: a future made after the commit has ended would never resolve.
        for one in after:
            one.until_ended()
        #: Markers that were appended, and may not be durable yet.
        self.markers: list[AppendedMarker] = []
        #: Markers due in partitions that moved away before the marker was appended.
        self.left: list[LeftMarker] = []
        #: Carries out what is left after the first step, if anything is.
        self.task: asyncio.Task[None] | None = None
        self.is_abandoned = False
        #: Resolves when the outcome is visible. Made by `until_ended`.
        self.ended: asyncio.Future[None] | None = None

    def until_ended(self) -> asyncio.Future[None]:
        """Return `ended`. It fails with the commit, and is cancelled if the commit is abandoned."""
        if self.ended is None:
            self.ended = asyncio.get_running_loop().create_future()
        return self.ended

    def fail(self, failure: Exception) -> None:
        """Tell the waiters of this commit why its outcome will never be visible."""
        ended = self.until_ended()
        if not ended.done():
            ended.set_exception(failure)
            ended.exception()  # Marks the exception as seen: there may be no waiter.

    def abandon(self) -> None:
        """Do nothing more about the decision, nor about those before it: another node, or the next
        start, goes on from them."""
        for one in self.after:
            one.abandon()
        self.is_abandoned = True
        if self.early_round is not None:
            self.early_round.is_given_up = True
        if self.task is not None:
            self.task.cancel()
        self.until_ended().cancel()


class Commits:
    """The transactions that are decided and not yet visible, at most one of each id."""

    def __init__(
        self,
        participants: Participants,
        clock: Clock,
        completions: Completions,
        *,
        stop: Callable[[BaseException], None],
        elsewhere: MarkersElsewhere | None = None,
    ) -> None:
        """`completions` is told of a commit once it is visible, or at once if its decision was
        COMPLETE_*. `stop` ends the broker, and lets nothing that is not durable yet become so.
        `elsewhere`: None for a node that is alone."""
        self._participants = participants
        self._elsewhere = elsewhere
        self._clock = clock
        self._completions = completions
        self._stop = stop
        #: By transactional id: commits whose decision, or a marker, may not be durable yet.
        self.under_way: dict[str, _Commit] = {}
        #: By transactional id: called once the id's last commit is visible, or has failed.
        self._waiters: dict[str, list[Waiter]] = {}
        #: Held by the commit that may append a slice of markers in this turn of the event loop.
        self._slicing = asyncio.Lock()

    # --- a decision is carried out

    def begin(
        self,
        works: Sequence[MarkerWork],
        plan: Plan,
        log: PartitionLog,
        end_offset: int,
        now_ms: int,
    ) -> None:
        """Carry out a decision that `log` holds before `end_offset` (exclusive).

        Call it in the step that appended the decision. The last of `works` is visible only when the
        others are. Any exception here ends the broker: what was appended must not become durable
        without its markers.
        """
        earlier: list[_Commit] = []
        for work in works:
            transactional_id = work.transactional_id
            after = [*earlier] if work is works[-1] else []
            if (known := self.under_way.get(transactional_id)) is not None:
                after.append(known)
            commit = _Commit(work, plan, log, after)
            if self._elsewhere is not None and plan is not Plan.ONE_RECORD:
                commit.works, commit.works_elsewhere = self._elsewhere.divided(commit.works)
            if Part.MARKERS in plan.first:
                # In this step, so that no crash leaves a marker without the decision.
                for markers in self._participants.append(
                    commit.works, Part.MARKERS, log.leader_epoch, now_ms, commit.left
                ):
                    commit.markers += markers
            asked = commit.works_elsewhere
            if self._elsewhere is not None and plan is Plan.OWN_WITH_DECISION and asked:
                # Made while the disk writes the decision, so that the requests leave sooner.
                made = self._elsewhere.round_of(asked, Part.MARKERS, log.leader_epoch)
                commit.early_round = made if made.is_for_others and not commit.left else None
            self.under_way[transactional_id] = commit
            earlier.append(commit)
            if plan is Plan.ONE_RECORD:
                self._completions.note(work, end_offset)
            on_decided = self._go_on if commit.early_round is None else self._ask
            go_on = partial(on_decided, commit, end_offset)
            # Other nodes may append their markers once the decision is ordered: no crash leaves
            # them without it.
            is_ordering = plan is Plan.OWN_WITH_DECISION
            wait = log.ledger.when_ordered if is_ordering else log.ledger.when_durable
            if not wait(end_offset, go_on):
                go_on(None)

    def _ask(self, commit: _Commit, end_offset: int, failure: Exception | None) -> None:
        """Ask other nodes to append their markers, in the step in which the decision is ordered."""
        if failure is not None or commit.is_abandoned:
            self._go_on(commit, end_offset, failure)
            return
        assert self._elsewhere is not None and commit.early_round is not None
        self._elsewhere.ask(commit.early_round, partial(self._go_on, commit, end_offset, None))

    def _go_on(self, commit: _Commit, end_offset: int, failure: Exception | None) -> None:
        """Go on with a commit, in the step in which its decision became durable, or ordered.

        A commit that has asked other nodes goes on in the step of their last answer. A failure is
        raised in a task: raised here, it would end a step that has other waiters to tell.
        """
        if commit.is_abandoned:
            return
        if commit.early_round is not None and failure is None and commit.early_round.is_done:
            # None: the round refers to this commit, and such a cycle is not freed by itself.
            commit.works_elsewhere, commit.early_round = (), None
        has_more = (
            failure is not None
            or commit.after
            or Part.MARKERS not in commit.plan.first
            or commit.works_elsewhere
            or commit.left
        )
        is_durable = commit.log.reader.high_watermark >= end_offset
        if not has_more and is_durable and self._participants.are_durable(commit.markers):
            self._show(commit)
            return
        going_on = self._carry_out(commit, end_offset, failure)
        commit.task = asyncio.get_running_loop().create_task(going_on)
        commit.task.add_done_callback(partial(self._on_ended, commit))

    async def _carry_out(self, commit: _Commit, end_offset: int, failure: Exception | None) -> None:
        if failure is not None:
            raise failure
        await self._mark(commit)
        if commit.log.reader.high_watermark < end_offset:
            await commit.log.durable(end_offset)
        for earlier in commit.after:
            await earlier.until_ended()
        self._show(commit)

    def _show(self, commit: _Commit) -> None:
        """Call the waiters for an outcome: every reader sees it from this step on."""
        if commit.ended is not None and not commit.ended.done():
            commit.ended.set_result(None)
        transactional_id = commit.work.transactional_id
        if self.under_way.get(transactional_id) is not commit:
            return  # A later commit of the id waits for this one, and the waiters for the later.
        del self.under_way[transactional_id]
        for waiter in self._waiters.pop(transactional_id, ()):
            waiter(None)
        if Part.COMPLETE not in commit.plan.first:
            self._completions.owe(commit.work, commit.plan)

    async def _mark(self, commit: _Commit) -> None:
        """Return when every partition has its marker, durably."""
        if commit.plan is Plan.IN_SLICES:
            await self._mark_in_slices(commit)
        elif commit.plan in _MARKED_LATER:
            # At once, however many: a start serves no client before its redrives are over.
            for markers in self._appending(commit, _MARKED_LATER[commit.plan]):
                commit.markers += markers
        # Under OWN_WITH_DECISION the markers of this node and of the others are synced together.
        if commit.plan is not Plan.OWN_WITH_DECISION:
            await self._participants.durable(commit.markers)
        if self._elsewhere is not None and (commit.works_elsewhere or commit.left):
            if commit.early_round is not None:
                await self._elsewhere.bring_rest(commit.early_round)
            else:
                part = Part.MISSING_MARKERS if commit.plan is Plan.REDRIVE else Part.MARKERS
                owed = [*commit.works_elsewhere, *owed_of(commit.left)]
                await self._elsewhere.bring(owed, part, commit.log.leader_epoch)
        await self._participants.durable(commit.markers)

    async def _mark_in_slices(self, commit: _Commit) -> None:
        """Append the markers of a commit slice by slice, one slice in a turn of the event loop.

        At most SLICES_WAITING_MAX of them wait for the disk: the step of a sync stays short.
        """
        appending = self._appending(commit, Part.SLICES)
        waiting: deque[Sequence[AppendedMarker]] = deque()
        while True:
            # One slice in a turn over all commits: an abort may end hundreds of children.
            async with self._slicing:
                markers = next(appending, None)
                await asyncio.sleep(0)
            if markers is None:
                break
            waiting.append(markers)
            if len(waiting) == SLICES_WAITING_MAX:
                await self._participants.durable(waiting.popleft())
        commit.markers = [*chain.from_iterable(waiting)]

    def _appending(self, commit: _Commit, part: Part) -> Iterator[Sequence[AppendedMarker]]:
        return self._participants.append(
            commit.works, part, commit.log.leader_epoch, self._clock.now_ms(), commit.left
        )

    def _on_ended(self, commit: _Commit, task: asyncio.Task[None]) -> None:
        """Stop the broker if the commit failed. A restart finds the decision, and what it owes.

        No client is told that a failed commit is visible.
        """
        if task.cancelled():
            commit.abandon()
        elif isinstance(failure := task.exception(), Exception):
            commit.fail(failure)
            for waiter in self._waiters.pop(commit.work.transactional_id, ()):
                waiter(failure)
            self._stop(failure)

    # --- waiting for an outcome

    async def visible(self, transactional_id: str) -> None:
        """Return when all markers of the id are durable, at most VISIBLE_TIMEOUT_MS later.

        Raises what failed the commit.
        """
        if transactional_id not in self.under_way:
            return
        visible: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(transactional_id, []).append(visible.set_result)
        await asyncio.wait([visible], timeout=VISIBLE_TIMEOUT_MS / 1000)
        if visible.done() and (failure := visible.result()) is not None:
            raise failure

    def when_visible(
        self,
        transactional_id: str,
        log: PartitionLog,
        end_offset: int,
        outcome: Message | KafkaError,
        *,
        on_late: Callable[[str], None],
    ) -> Message | DelayedResponse:
        """Return the response to a client that waits for the outcome of an id.

        It is `outcome`, raised if it is an error, once all markers of the id are durable, and so is
        `log` before `end_offset` (exclusive). If the markers take longer than VISIBLE_TIMEOUT_MS,
        it is given then, and `on_late` is called with the id. If `log` takes longer, the response
        is COORDINATOR_NOT_AVAILABLE, on which a client asks again. Raises what failed the commit.
        """

        def respond(is_late: bool) -> Message:
            if delayed.failure is not None:
                raise delayed.failure
            if log.reader.high_watermark < end_offset:
                if log.reader.is_gone:
                    raise log.reader.gone
                log.ledger.check_open()
                raise KafkaError(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    f"{transactional_id}: its end is not durable after {VISIBLE_TIMEOUT_MS} ms",
                )
            if isinstance(outcome, KafkaError):
                raise outcome
            if is_late:
                on_late(transactional_id)
            return outcome

        delayed = DelayedResponse(VISIBLE_TIMEOUT_MS / 1000, respond)
        if transactional_id in self.under_way:
            # Once the commit is visible, `log` is durable up to its decision.
            self._waiters.setdefault(transactional_id, []).append(delayed.on_durable)
            delayed.waits = 1
        else:
            # A vote, or the end that a retry asks for again, may not be durable yet.
            delayed.wait_for(log.ledger, end_offset)
        if delayed.waits:
            return delayed
        del delayed.make  # It leads back to `delayed`: a cycle that would not be freed.
        return respond(False)

    async def all_own_visible(self, timeout_ms: int | None = None) -> None:
        """Return when all commits that are under way now are visible, or after `timeout_ms`.

        It leaves out those that need markers of other nodes, which may be starting or stopping too.
        """
        waited_for = (one for one in self.under_way.values() if not one.works_elsewhere)
        ends = [commit.until_ended() for commit in waited_for]
        if ends:
            await asyncio.wait(ends, timeout=None if timeout_ms is None else timeout_ms / 1000)

    def abandon(self, transactional_id: str) -> None:
        """Do nothing more about an id that another node coordinates. Waiters get NOT_COORDINATOR.

        That node goes on from the log: what was decided becomes durable before it reads the log.
        """
        commit = self.under_way.pop(transactional_id, None)
        if commit is not None:
            commit.abandon()
        for waiter in self._waiters.pop(transactional_id, ()):
            waiter(shard_missing(transactional_id, is_coming=False))

    async def stop(self) -> None:
        """End what is under way. The next start finds what is left undone, and does it."""
        await self.all_own_visible(VISIBLE_TIMEOUT_MS)
        for commit in self.under_way.values():
            commit.abandon()
