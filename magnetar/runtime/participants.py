"""Participants: the partitions of a transaction, and the way its outcome reaches them.

A port. The coordinator knows partitions by name and asks for markers; it never touches a
partition's log. Here the partitions are in this process; those that other nodes lead are left to
`markers_elsewhere`. What WriteTxnMarkers asks of this broker goes the same way.

A partition that is gone (its topic was deleted) is skipped, alone: the others get their markers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

from coordinator.transactions.commit_plan import MARKERS_AT_ONCE_MAX, MarkerWork, Part
from coordinator.transactions.coordinator_fences import CoordinatorFences
from coordinator.transactions.metadata import TRANSACTION_VERSION_1, TopicPartition
from coordinator.transactions.remembered_holds import RememberedHolds
from logstore.partition.log import PartitionLog
from logstore.partition.transaction_buffer import TransactionMarker
from logstore.sync.group_commit import LedgerClosed
from magnetar.logging import get_logger
from magnetar.runtime.turns import Turns
from magnetar.storage.topic_names import CONSUMER_OFFSETS
from wire.error_code import ErrorCode
from wire.errors import KafkaError

_log = get_logger("transactions")

#: Refusals that mean that the partition has nothing of this transaction, now or ever: it is gone,
#: or made anew and led elsewhere, or a later epoch of the producer has passed and everything of
#: this one is closed.
_NOTHING_OPEN = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)

#: Refusals of a partition that another node may lead since: the catalog will tell.
_PERHAPS_ELSEWHERE = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
)

#: A marker in a partition's log, not durable yet: whose it is, where, and the end of the log after
#: the marker (exclusive), which is to be awaited. A plain tuple: a commit may make thousands.
AppendedMarker: TypeAlias = tuple[MarkerWork, TopicPartition, PartitionLog, int]

#: A marker that is due in a partition which was not led here.
LeftMarker: TypeAlias = tuple[MarkerWork, TopicPartition]


def owed_of(left: Iterable[LeftMarker]) -> list[MarkerWork]:
    """Return the works of these markers, each with the partitions that are left of it."""
    partitions: dict[int, tuple[MarkerWork, list[TopicPartition]]] = {}
    for work, partition in left:
        partitions.setdefault(id(work), (work, []))[1].append(partition)
    return [work._replace(partitions=some, votes=()) for work, some in partitions.values()]


class Participants(Protocol):
    """Where markers go."""

    def append(
        self,
        works: Iterable[MarkerWork],
        part: Part,
        coordinator_epoch: int,
        now_ms: int,
        left: list[LeftMarker],
    ) -> Iterator[Sequence[AppendedMarker]]:
        """Append the own markers of each of `works` to every partition that exists, all of them led
        here; of MISSING_MARKERS, only to those where the transaction is open.

        Those of partitions that another node may lead are added to `left`.

        Yields the markers slice by slice. Take all slices in one step where they are to be all or
        nothing with a decision that was appended in it; else one slice in a turn of the event loop.
        """
        ...

    def are_durable(self, markers: Sequence[AppendedMarker]) -> bool:
        """Return whether all of them are durable and visible. Ask it once their decision is."""
        ...

    async def durable(self, markers: Sequence[AppendedMarker]) -> None:
        """Return when all of them are durable and visible, but for those of partitions that are
        gone meanwhile."""
        ...


class PartitionsByName(Protocol):
    """Where the log of a partition is found."""

    def partition(self, name: str, index: int) -> PartitionLog:
        """Return the log. Raises UNKNOWN_TOPIC_OR_PARTITION."""
        ...


class PendingAcks(Protocol):
    """The group coordinator, as far as transactions go."""

    def partition_of(self, group_id: str) -> int:
        """Return the partition of `__consumer_offsets` that has the group."""
        ...

    def append_marker(
        self, partition_index: int, marker: TransactionMarker, now_ms: int
    ) -> tuple[PartitionLog, int]:
        """Append a marker to a partition of `__consumer_offsets` and resolve its pending acks;
        return the log and the end offset to await."""
        ...


class LocalParticipants:
    """Partitions in this process."""

    def __init__(
        self,
        topics: PartitionsByName,
        groups: PendingAcks,
        turns: Turns,
        held: RememberedHolds | None = None,
    ) -> None:
        """`turns`: a slice of markers ends with the turn. `held` is told of each marker; None for a
        node that is alone."""
        self._topics = topics
        self._groups = groups
        self._turns = turns
        self._held = held
        #: Refusals of partitions that `markers_elsewhere` sees to.
        self._not_ours = frozenset[ErrorCode]() if held is None else _PERHAPS_ELSEWHERE
        #: Where shards of the coordinator move between nodes.
        self.fences: CoordinatorFences | None = None
        #: Markers of ours that met a later coordinator's epoch in a partition.
        self.fenced_markers = 0

    def append_marker(
        self, partition: TopicPartition, marker: TransactionMarker, now_ms: int
    ) -> tuple[PartitionLog, int]:
        """Append one marker; return the log and the end offset (exclusive) to await.

        In `__consumer_offsets` the pending acks of the transaction are resolved in the same step.
        UNKNOWN_TOPIC_OR_PARTITION, INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED.
        """
        return self._append_to(self._topics.partition(*partition), partition, marker, now_ms)

    def _append_to(
        self,
        log: PartitionLog,
        partition: TopicPartition,
        marker: TransactionMarker,
        now_ms: int,
    ) -> tuple[PartitionLog, int]:
        """As `append_marker`, where the log was found."""
        if self._held is not None:
            self._held.on_marker(marker.producer_id, partition)
        if partition.topic == CONSUMER_OFFSETS:
            return self._groups.append_marker(partition.partition, marker, now_ms)
        return log, log.append_marker(marker, now_ms).end_offset

    def append(
        self,
        works: Iterable[MarkerWork],
        part: Part,
        coordinator_epoch: int,
        now_ms: int,
        left: list[LeftMarker],
    ) -> Iterator[Sequence[AppendedMarker]]:
        markers: list[AppendedMarker] = []
        room = MARKERS_AT_ONCE_MAX
        for one in works:
            marker = _marker_of(one, coordinator_epoch)
            # Sorted, so that a retry after a restart meets the partitions in the same order.
            for partition in sorted(one.partitions):
                try:
                    if part is Part.MISSING_MARKERS and self._is_closed(partition, one.producer_id):
                        self._pass_over(one, partition, coordinator_epoch)
                        continue
                    log, end_offset = self._append_of(one, partition, marker, now_ms)
                except KafkaError as refusal:
                    if refusal.code in self._not_ours:
                        left.append((one, partition))
                        continue
                    if refusal.code in _NOTHING_OPEN:
                        _report_skipped(one, partition, refusal)
                        continue
                    # Any other ends the broker: a decision would be without its marker.
                    log, end_offset = self._append_fenced(one, partition, marker, refusal, now_ms)
                markers.append((one, partition, log, end_offset))
                room -= 1
                # A marker that makes files, or opens them again, takes as long as twenty others.
                if room <= 0 or (part is Part.SLICES and self._turns.is_over()):
                    yield markers
                    markers, room = [], MARKERS_AT_ONCE_MAX
        yield markers

    def append_owed(
        self,
        work: MarkerWork,
        partition: TopicPartition,
        part: Part,
        coordinator_epoch: int,
        now_ms: int,
    ) -> tuple[PartitionLog, int]:
        """Append one marker that a coordinator on another node owes; as `append_marker`.

        Of MISSING_MARKERS, only where the transaction is open. Where it is not, its marker may not
        be durable yet: the end to await covers it. TRANSACTION_COORDINATOR_FENCED of a coordinator
        that another node has succeeded.
        """
        self._check_fence(work, coordinator_epoch)
        if part is Part.MISSING_MARKERS and self._is_closed(partition, work.producer_id):
            log = self._topics.partition(*partition)
            self._pass_over(work, partition, coordinator_epoch)
            return log, log.log_end_offset
        marker = _marker_of(work, coordinator_epoch)
        try:
            return self._append_of(work, partition, marker, now_ms)
        except KafkaError as refusal:
            return self._append_fenced(work, partition, marker, refusal, now_ms)

    def _append_of(
        self, work: MarkerWork, partition: TopicPartition, marker: TransactionMarker, now_ms: int
    ) -> tuple[PartitionLog, int]:
        """Append a coordinator's marker; as `append_marker`.

        A commit aborts what an earlier, fenced transaction of the producer has left open: its own
        has nothing here then, or the log would have refused it.
        """
        log = self._topics.partition(*partition)
        if marker.commit and log.transactions.is_of_earlier(marker):
            _log.warning(
                "an earlier transaction of the producer was left open; it is aborted",
                **_described(work, partition),
            )
            marker = marker._replace(commit=False)
        return self._append_to(log, partition, marker, now_ms)

    def _append_fenced(
        self,
        work: MarkerWork,
        partition: TopicPartition,
        marker: TransactionMarker,
        refusal: KafkaError,
        now_ms: int,
    ) -> tuple[PartitionLog, int]:
        """Append a marker to a log that knows a later coordinator of the producer; as
        `append_marker`. Raises `refusal` where that is not why the log has refused it.

        The nodes of a cluster agree on who coordinates a producer. So the later one is another
        cluster's, whose log was copied here. The marker takes that coordinator's epoch: without a
        marker the outcome would be missing in this partition alone.
        """
        is_fenced = refusal.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
        # Where shards move, the later one may be this one's successor.
        if not is_fenced or self.fences is not None:
            raise refusal
        state = self._topics.partition(*partition).producers[marker.producer_id]
        self.fenced_markers += 1
        _log.error(
            "a later coordinator has written to this partition; the marker takes its epoch",
            coordinator_epoch=marker.coordinator_epoch,
            later_coordinator_epoch=state.coordinator_epoch,
            **_described(work, partition),
        )
        marker = marker._replace(coordinator_epoch=state.coordinator_epoch)
        return self._append_of(work, partition, marker, now_ms)

    def are_durable(self, markers: Sequence[AppendedMarker]) -> bool:
        return all(log.reader.high_watermark >= end_offset for _, _, log, end_offset in markers)

    async def durable(self, markers: Sequence[AppendedMarker]) -> None:
        for work, partition, log, end_offset in markers:
            if log.reader.high_watermark >= end_offset:
                continue
            try:
                await log.durable(end_offset)
            except LedgerClosed as closed:
                # A topic may be deleted while its marker is being synced: readers are gone too.
                if not self._is_gone(partition, log):
                    raise
                _report_skipped(work, partition, closed)

    def _pass_over(
        self, work: MarkerWork, partition: TopicPartition, coordinator_epoch: int
    ) -> None:
        """Write no marker where the transaction has nothing open: it is over there all the same."""
        if self._held is not None:
            # Else what was remembered of it would let in a batch that comes after its end.
            self._held.on_marker(work.producer_id, partition)
        if self.fences is not None and work.transaction_version == TRANSACTION_VERSION_1:
            self.fences.raise_to(work.producer_id, coordinator_epoch)

    def _check_fence(self, work: MarkerWork, coordinator_epoch: int) -> None:
        if self.fences is not None and self.fences.is_fenced(work.producer_id, coordinator_epoch):
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"another node coordinates {work.transactional_id}",
            )

    def _is_closed(self, partition: TopicPartition, producer_id: int) -> bool:
        return not self._topics.partition(*partition).transactions.is_open(producer_id)

    def _is_gone(self, partition: TopicPartition, log: PartitionLog) -> bool:
        try:
            return self._topics.partition(*partition) is not log
        except KafkaError:
            return True


def _marker_of(work: MarkerWork, coordinator_epoch: int) -> TransactionMarker:
    return TransactionMarker(
        work.producer_id,
        work.producer_epoch,
        coordinator_epoch,
        work.commit,
        work.transaction_version,
    )


def _report_skipped(work: MarkerWork, partition: TopicPartition, reason: Exception) -> None:
    _log.warning("marker skipped", reason=str(reason), **_described(work, partition))


def _described(work: MarkerWork, partition: TopicPartition) -> dict[str, Any]:
    return {
        "transactional_id": work.transactional_id,
        "producer_id": work.producer_id,
        "producer_epoch": work.producer_epoch,
        "commit": work.commit,
        "topic": partition.topic,
        "partition": partition.partition,
    }
