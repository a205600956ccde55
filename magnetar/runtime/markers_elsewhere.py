"""Markers for partitions that other nodes lead, brought there by WriteTxnMarkers.

The decision is ordered before the first of them leaves: durable, or the markers rest on it
(`magnetar.runtime.bases`). COMPLETE_* is written after the last is durable. A node that does not
answer is asked again for as long as it takes: the outcome is decided, and its readers wait for
nothing else. What is sent twice does no harm (`magnetar.peers.listening` has why a late first copy
cannot arrive after the answer to the second).

A partition is skipped only if the catalog, read again, no longer has it. A peer may know less of
the catalog than this node, and a marker skipped for that would lose a commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Protocol

from coordinator.transactions.commit_plan import MarkerWork, Part
from coordinator.transactions.metadata import TopicPartition
from logstore.remote.commit_store import Bases
from magnetar.clock import Clock
from magnetar.logging import get_logger
from magnetar.runtime.bases import name_basis
from magnetar.runtime.marker_messages import VERSION, Codes, OwedMarkers, decode_codes, encode
from magnetar.runtime.participants import LeftMarker, Participants, owed_of
from magnetar.runtime.peers import Peers, PeerUnreachable, SharedCalls
from magnetar.storage.database import CatalogUnavailable
from wire.error_code import ErrorCode
from wire.messages.write_txn_markers import WriteTxnMarkersRequest

_log = get_logger("transactions")

#: The time before a node that has not answered is asked again, at first and at most. A node that
#: was killed is back within half a second.
RETRY_S_MIN = 0.02
RETRY_S_MAX = 0.25

#: The partition has the marker, or had a later one: nothing of this transaction is open there.
_DONE = frozenset({ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH})


class Leaders(Protocol):
    """Who leads a partition."""

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


class MarkersElsewhere:
    """The way of markers to other nodes."""

    def __init__(
        self, leaders: Leaders, peers: Peers, local: Participants, clock: Clock, bases: Bases | None
    ) -> None:
        """`local`: the partitions of this node, should it lead a partition meanwhile. `bases`: what
        the markers rest on: the decision."""
        self._leaders = leaders
        self._local = local
        self._clock = clock
        self._calls: SharedCalls[OwedMarkers, Codes] = SharedCalls(
            peers, VERSION, partial(_encode, bases), decode_codes
        )
        #: Nodes that do not answer, each named in the log once.
        self._silent: set[int] = set()

    def is_led_here(self, partition: TopicPartition) -> bool:
        """Return whether this node leads the partition, and takes markers for it."""
        return self._leaders.is_led_here(*partition)

    def is_coming(self, partition: TopicPartition) -> bool:
        """Return whether this node is to lead a partition that it does not lead yet."""
        return self._leaders.leader_of(*partition) == self._leaders.own_id

    def divided(self, works: Iterable[MarkerWork]) -> tuple[list[MarkerWork], list[MarkerWork]]:
        """Return the parts of `works` that this node appends itself, and those to be brought."""
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

    async def bring(self, owed: Sequence[MarkerWork], part: Part, coordinator_epoch: int) -> None:
        """Return when every partition of `owed`, which was not led here, has its marker durably.

        Call once the decision is ordered. `part`: MARKERS, or MISSING_MARKERS where some may have
        theirs already.
        """
        again_s = RETRY_S_MIN
        while owed:
            owed = await self._bring_once(owed, part, coordinator_epoch)
            if not owed:
                return
            part = Part.MISSING_MARKERS
            await asyncio.sleep(again_s)
            again_s = min(2 * again_s, RETRY_S_MAX)
            await self._has_seen_changes()

    def cancel(self) -> None:
        """Ask no more; what is left undone the next start finds due."""
        self._calls.cancel()

    async def _bring_once(
        self, owed: Sequence[MarkerWork], part: Part, coordinator_epoch: int
    ) -> list[MarkerWork]:
        """Ask every node concerned once; return what is still owed."""
        asked: list[tuple[int, MarkerWork]] = []
        unknown: list[MarkerWork] = []
        for work in owed:
            by_node: dict[int | None, list[TopicPartition]] = {}
            for partition in work.partitions:
                by_node.setdefault(self._leaders.leader_of(*partition), []).append(partition)
            for node_id, partitions in by_node.items():
                theirs = work._replace(partitions=partitions)
                if node_id is None:
                    unknown.append(theirs)
                else:
                    asked.append((node_id, theirs))
        asking = [self._ask(node_id, work, part, coordinator_epoch) for node_id, work in asked]
        # Mostly there is one node, which needs no task of its own.
        left = [await asking[0]] if len(asking) == 1 else await asyncio.gather(*asking)
        return [*chain.from_iterable(left), *await self._not_gone(unknown)]

    async def _ask(
        self, node_id: int, work: MarkerWork, part: Part, coordinator_epoch: int
    ) -> list[MarkerWork]:
        """Ask one node; return what it still owes."""
        if node_id == self._leaders.own_id:
            return await self._append_here(work, part, coordinator_epoch)
        try:
            codes = await self._calls.ask(node_id, OwedMarkers(work, coordinator_epoch, part))
        except PeerUnreachable as unreachable:
            if node_id not in self._silent:
                self._silent.add(node_id)
                _log.warning("markers wait for a node", node_id=node_id, reason=unreachable.reason)
            return [work]
        self._silent.discard(node_id)
        gone = [one for one in work.partitions if codes.get(one) == _UNKNOWN]
        left = [
            one
            for one in work.partitions
            if codes.get(one, ErrorCode.UNKNOWN_SERVER_ERROR) not in _DONE and one not in gone
        ]
        owed = await self._not_gone([work._replace(partitions=gone)]) if gone else []
        return [*owed, work._replace(partitions=left)] if left else owed

    async def _append_here(
        self, work: MarkerWork, part: Part, coordinator_epoch: int
    ) -> list[MarkerWork]:
        """Append what became this node's since the decision; return what is still owed."""
        now_ms = self._clock.now_ms()
        left: list[LeftMarker] = []
        for markers in self._local.append((work,), part, coordinator_epoch, now_ms, left):
            await self._local.durable(markers)
        # Not opened yet, or gone.
        return await self._not_gone(owed_of(left))

    async def _not_gone(self, unknown: Sequence[MarkerWork]) -> list[MarkerWork]:
        """Return what is owed of partitions that some node does not know: of those that there are.

        Reads the catalog first: what is not in it is gone, and what is in it the peer will find.
        """
        if not unknown:
            return []
        if not await self._has_seen_changes():
            return [*unknown]
        return _where(unknown, lambda one: self._leaders.leader_of(*one) is not None)

    async def _has_seen_changes(self) -> bool:
        """Read the catalog again; return whether it has answered.

        A decided transaction outlasts that: what is owed stays owed.
        """
        try:
            await self._leaders.see_changes()
        except CatalogUnavailable:
            return False
        return True


def _encode(bases: Bases | None, owed: Sequence[OwedMarkers]) -> WriteTxnMarkersRequest:
    request = encode(owed)
    name_basis(request, bases)
    return request


_UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _where(
    works: Sequence[MarkerWork], is_there: Callable[[TopicPartition], bool]
) -> list[MarkerWork]:
    """Return the works with the partitions that are there; log the others."""
    kept = []
    for work in works:
        partitions = [one for one in work.partitions if is_there(one)]
        for one in set(work.partitions).difference(partitions):
            _log.warning(
                "marker skipped",
                reason="the partition is gone",
                transactional_id=work.transactional_id,
                producer_id=work.producer_id,
                topic=one.topic,
                partition=one.partition,
            )
        if partitions:
            kept.append(work._replace(partitions=partitions))
    return kept
