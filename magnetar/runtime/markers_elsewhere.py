"""Markers for partitions that other nodes lead. WriteTxnMarkers brings them to these nodes.

The decision is ordered before the first marker leaves: the decision is durable, or the markers rest
on it (`magnetar.runtime.bases`). COMPLETE_* is written once the last marker is durable. A node that
does not answer is asked again for as long as it takes: the outcome is decided, and readers wait for
nothing else. A marker that is sent twice does no harm: `magnetar.peers.listening` says why a late
first copy cannot arrive after the answer to the second.

A partition is skipped only if the catalog, read again, no longer has it. A peer may know less of
the catalog than this node. A marker that is skipped for that reason would lose a commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from coordinator.transactions.commit_plan import MarkerWork, Part
from coordinator.transactions.metadata import TopicPartition
from logstore.remote.commit_store import Bases
from magnetar.clock import Clock
from magnetar.logging import get_logger
from magnetar.runtime.bases import name_basis
from magnetar.runtime.marker_messages import VERSION, Codes, decode_codes, marker_of
from magnetar.runtime.participants import LeftMarker, Participants, owed_of, report_skipped
from magnetar.runtime.peers import Peers, PeerUnreachable, SharedCalls
from magnetar.storage.database import CatalogUnavailable
from wire.error_code import ErrorCode
from wire.messages.write_txn_markers import WritableTxnMarker, WriteTxnMarkersRequest

_log = get_logger("transactions")

#: The time before a node that has not answered is asked again, at first and at most. A node that
#: was killed is back within half a second.
RETRY_S_MIN = 0.02
RETRY_S_MAX = 0.25

#: The partition has the marker, or a later one, so nothing of this transaction is open there.
_DONE = frozenset({ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH})


class Leaders(Protocol):
    """Knows which node leads a partition."""

    own_id: int

    def leader_of(self, topic: str, partition: int) -> int | None:
        """Return the node; None: there is no such partition, as far as this node has read."""
        ...

    def is_led_here(self, topic: str, partition: int) -> bool:
        """Return whether this node leads the partition and has opened it."""
        ...

    async def see_changes(self) -> int:
        """Read the catalog again. Raises CatalogUnavailable."""
        ...


class Round:
    """One attempt to have markers appended elsewhere: a question to each node, and the outcome."""

    __slots__ = (
        "asked",
        "coordinator_epoch",
        "gone",
        "here",
        "is_given_up",
        "left",
        "on_over",
        "part",
        "unanswered",
    )

    def __init__(self, part: Part, coordinator_epoch: int) -> None:
        self.part = part
        self.coordinator_epoch = coordinator_epoch
        #: By node: the work for its partitions, and the marker that it is asked to append there.
        self.asked: list[tuple[int, MarkerWork, WritableTxnMarker]] = []
        #: The work for partitions that this node leads by now, or is about to lead.
        self.here: list[MarkerWork] = []
        #: The work for partitions that this node, or the node that was asked, does not know.
        self.gone: list[MarkerWork] = []
        #: The work for partitions that still lack their marker after the round.
        self.left: list[MarkerWork] = []
        #: How many of `asked` have no answer yet.
        self.unanswered = 0
        #: Called when all of them have one. Set by `MarkersElsewhere.ask`.
        self.on_over: Callable[[], object]
        #: Whether this node does no more about the round: another node, or the next start, goes on.
        self.is_given_up = False

    @property
    def is_for_others(self) -> bool:
        """Whether all markers of the round are for other nodes: this node has none to append."""
        return bool(self.asked) and not (self.here or self.gone)

    @property
    def is_done(self) -> bool:
        """Whether every partition of `asked` has its marker, once all nodes have answered."""
        return not (self.left or self.gone)


class _NodeAnswer:
    """Takes the answer of one node in a round (`Answer`)."""

    __slots__ = ("_markers", "_node_id", "_round", "_work")

    def __init__(
        self, markers: MarkersElsewhere, current: Round, node_id: int, work: MarkerWork
    ) -> None:
        self._markers = markers
        self._round = current
        self._node_id = node_id
        self._work = work

    def done(self) -> bool:
        return self._round.is_given_up

    def set_result(self, codes: Codes, /) -> None:
        self._markers.on_codes(self._round, self._node_id, self._work, codes)

    def set_exception(self, failure: BaseException, /) -> None:
        self._markers.on_silence(self._round, self._work, failure)

    def cancel(self) -> None:
        self._round.is_given_up = True


class MarkersElsewhere:
    """Brings markers to other nodes."""

    def __init__(
        self, leaders: Leaders, peers: Peers, local: Participants, clock: Clock, bases: Bases | None
    ) -> None:
        """`local`: the partitions of this node, for a partition that it has come to lead meanwhile.
        `bases`: what the markers rest on, which is the decision."""
        self._leaders = leaders
        self._local = local
        self._clock = clock
        self._calls: SharedCalls[WritableTxnMarker, Codes] = SharedCalls(
            peers, VERSION, partial(_encode, bases), decode_codes
        )
        #: Nodes that do not answer, each named in the log once.
        self._silent: set[int] = set()

    def is_led_here(self, partition: TopicPartition) -> bool:
        """Return whether this node leads the partition, and takes markers for it."""
        return self._leaders.is_led_here(*partition)

    def is_coming(self, partition: TopicPartition) -> bool:
        """Return whether the catalog lets this node lead a partition, open or not."""
        return self._leaders.leader_of(*partition) == self._leaders.own_id

    def divided(self, works: Iterable[MarkerWork]) -> tuple[list[MarkerWork], list[MarkerWork]]:
        """Return the parts of `works` that this node appends, and those for other nodes."""
        own: list[MarkerWork] = []
        owed: list[MarkerWork] = []
        for work in works:
            here: list[TopicPartition] = []
            there: list[TopicPartition] = []
            for partition in work.partitions:
                (here if self.is_led_here(partition) else there).append(partition)
            if not there:
                own.append(work)
                continue
            owed.append(work._replace(partitions=there, votes=()))
            if here:
                own.append(work._replace(partitions=here))
        return own, owed

    def round_of(self, owed: Iterable[MarkerWork], part: Part, coordinator_epoch: int) -> Round:
        """Return the questions for `owed`; nothing is sent yet.

        `part`: MARKERS, or MISSING_MARKERS where some partitions may have theirs already.
        """
        current = Round(part, coordinator_epoch)
        for work in owed:
            by_node: dict[int | None, list[TopicPartition]] = {}
            for partition in work.partitions:
                by_node.setdefault(self._leaders.leader_of(*partition), []).append(partition)
            for node_id, partitions in by_node.items():
                theirs = work._replace(partitions=partitions)
                if node_id is None:
                    current.gone.append(theirs)
                elif node_id == self._leaders.own_id:
                    current.here.append(theirs)
                else:
                    marker = marker_of(theirs, coordinator_epoch, part)
                    current.asked.append((node_id, theirs, marker))
        return current

    def ask(self, current: Round, on_over: Callable[[], object]) -> None:
        """Ask the nodes of a round. Call once the decision is ordered.

        `on_over` is called in the step of the last answer. An unreachable node counts as answered.
        """
        current.unanswered = len(current.asked)
        current.on_over = on_over
        for node_id, work, marker in current.asked:
            self._calls.send(node_id, marker, _NodeAnswer(self, current, node_id, work))

    async def bring(self, owed: Sequence[MarkerWork], part: Part, coordinator_epoch: int) -> None:
        """Return when every partition of `owed`, which was not led here, has its marker durably.

        Call once the decision is ordered. `part`: as `round_of`.
        """
        first = self.round_of(owed, part, coordinator_epoch)
        await self._carry_out(first)
        await self.bring_rest(first)

    async def bring_rest(self, current: Round) -> None:
        """Return when every partition of a round has its marker durably. The round must be over."""
        again_s = RETRY_S_MIN
        while owed := [*current.left, *await self._not_gone(current.gone)]:
            await asyncio.sleep(again_s)
            again_s = min(2 * again_s, RETRY_S_MAX)
            await self._has_seen_changes()
            current = self.round_of(owed, Part.MISSING_MARKERS, current.coordinator_epoch)
            await self._carry_out(current)

    def cancel(self) -> None:
        """Ask no more. The next start finds what is left undone."""
        self._calls.cancel()

    async def _carry_out(self, current: Round) -> None:
        """Ask the nodes of a round, append what this node leads, and return when that is over."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if current.asked:
            self.ask(current, partial(_end, over))
        else:
            over.set_result(None)
        try:
            if current.here:
                await self._append_here(current)
            await over
        finally:
            # If the task was cancelled, nothing waits for the answers that are still to come.
            current.is_given_up = True

    def on_codes(self, current: Round, node_id: int, work: MarkerWork, codes: Codes) -> None:
        """Take a node's answer: a code for each partition that it knows."""
        self._silent.discard(node_id)
        left = [
            partition
            for partition in work.partitions
            if codes.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR) not in _DONE
        ]
        if left:
            gone = [
                partition
                for partition in left
                if codes.get(partition) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            ]
            if gone:
                current.gone.append(work._replace(partitions=gone))
            if len(gone) < len(left):
                rest = [partition for partition in left if partition not in gone]
                current.left.append(work._replace(partitions=rest))
        self._on_answer(current)

    def on_silence(self, current: Round, work: MarkerWork, failure: BaseException) -> None:
        """Note that a node has not answered; it may have done what it was asked."""
        assert isinstance(failure, PeerUnreachable), failure
        if failure.node_id not in self._silent:
            self._silent.add(failure.node_id)
            _log.warning("markers wait for a node", node_id=failure.node_id, reason=failure.reason)
        current.left.append(work)
        self._on_answer(current)

    def _on_answer(self, current: Round) -> None:
        current.unanswered -= 1
        if not current.unanswered:
            current.on_over()

    async def _append_here(self, current: Round) -> None:
        """Append the markers of partitions that this node has come to lead since the decision."""
        now_ms = self._clock.now_ms()
        left: list[LeftMarker] = []
        epoch = current.coordinator_epoch
        for markers in self._local.append(current.here, current.part, epoch, now_ms, left):
            await self._local.durable(markers)
        # These partitions are not opened yet, or are gone.
        current.gone += owed_of(left)

    async def _not_gone(self, unknown: Sequence[MarkerWork]) -> list[MarkerWork]:
        """Return the works with only those partitions that exist. Some node did not know them.

        Reads the catalog first. A partition that the catalog does not have is gone. The peer will
        soon know any other.
        """
        if not unknown:
            return []
        if not await self._has_seen_changes():
            return [*unknown]
        return _where(unknown, lambda one: self._leaders.leader_of(*one) is not None)

    async def _has_seen_changes(self) -> bool:
        """Read the catalog again; return whether it has answered. If not, no marker is skipped."""
        try:
            await self._leaders.see_changes()
        except CatalogUnavailable:
            return False
        return True


def _end(over: asyncio.Future[None]) -> None:
    """End a wait, unless its task was cancelled in this step."""
    if not over.done():
        over.set_result(None)


def _encode(bases: Bases | None, markers: Sequence[WritableTxnMarker]) -> WriteTxnMarkersRequest:
    request = WriteTxnMarkersRequest(markers=[*markers])
    name_basis(request, bases)
    return request


def _where(
    works: Sequence[MarkerWork], is_there: Callable[[TopicPartition], bool]
) -> list[MarkerWork]:
    """Return the works with only those partitions that are there; log the others."""
    kept = []
    for work in works:
        partitions = [one for one in work.partitions if is_there(one)]
        for one in set(work.partitions).difference(partitions):
            report_skipped(work, one, "the partition is gone")
        if partitions:
            kept.append(work._replace(partitions=partitions))
    return kept
