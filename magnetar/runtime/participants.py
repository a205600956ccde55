"""Participants: the partitions of a transaction, and the way its outcome reaches them.

`Participants` is a port: the coordinator knows partitions by name and asks for markers; it never
touches a partition's log. `LocalParticipants` are the partitions in this process; WriteTxnMarkers
uses them too. `markers_elsewhere` brings markers to partitions that other nodes lead.

A partition that is gone (its topic was deleted) is skipped. All others get their markers.
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

#: Refusals which mean that nothing of this transaction is, or will be, open in the partition. It is
#: gone, or it was made anew and is led elsewhere, or a later epoch of the producer has ended
#: everything of this one.
_NOTHING_OPEN = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)

#: Refusals of a partition that another node may lead by now. The catalog knows.
_PERHAPS_ELSEWHERE = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
)

#: A marker in a partition's log that may not be durable yet: the work that owes it, the partition,
#: its log, and the log's end offset after the marker (exclusive), which is to be awaited. A plain
#: tuple, because a commit may make thousands.
AppendedMarker: TypeAlias = tuple[MarkerWork, TopicPartition, PartitionLog, int]

#: A marker that is due in a partition which this node does not lead now.
LeftMarker: TypeAlias = tuple[MarkerWork, TopicPartition]


def owed_of(left: Iterable[LeftMarker]) -> list[MarkerWork]:
    """Return the works that owe these markers, each with only the partitions of these markers."""
    partitions: dict[int, tuple[MarkerWork, list[TopicPartition]]] = {}
    for work, partition in left:
        partitions.setdefault(id(work), (work, []))[1].append(partition)
    return [work._replace(partitions=some, votes=()) for work, some in partitions.values()]


class Participants(Protocol):
    """Where markers go."""

    def count_making_files(self, partitions: Iterable[TopicPartition]) -> int:
        """Return for how many of these partitions a marker of this node makes or opens files."""
        ...

    def append(
        self,
        works: Iterable[MarkerWork],
        part: Part,
        coordinator_epoch: int,
        now_ms: int,
        left: list[LeftMarker],
    ) -> Iterator[Sequence[AppendedMarker]]:
        """Append the markers of `works`, without those of their votes, to partitions of this node.

        With MISSING_MARKERS, only partitions in which the transaction is open get one. A partition
        that is gone is skipped. A marker for a partition that another node may lead goes to `left`.

        Yields the markers slice by slice. If a crash is to leave all of them and their decision, or
        nothing, take all slices in the step that appended the decision. Else take one slice in a
        turn of the event loop.
        """
        ...

    def are_durable(self, markers: Sequence[AppendedMarker]) -> bool:
        """Return whether all of them are durable and visible. Ask it once their decision is."""
        ...

    async def durable(self, markers: Sequence[AppendedMarker]) -> None:
        """Return when all of them are durable and visible. Leaves out partitions that are gone."""
        ...


class PartitionsByName(Protocol):
    """Finds the log of a partition."""

    def partition(self, name: str, index: int) -> PartitionLog:
        """Return the log. Raises UNKNOWN_TOPIC_OR_PARTITION."""
        ...


class PendingAcks(Protocol):
    """The shards of the group coordinator, as far as markers go."""

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
        """`turns` says when a slice of markers has to end. `held` is told of each marker; None for
        a node that is alone."""
        self._topics = topics
        self._groups = groups
        self._turns = turns
        self._held = held
        #: Refusals of partitions whose markers are left to `markers_elsewhere`.
        self._not_ours = frozenset[ErrorCode]() if held is None else _PERHAPS_ELSEWHERE
        #: Set where shards of the coordinator move between nodes.
        self.fences: CoordinatorFences | None = None
        #: Markers of ours that met a later coordinator's epoch in a partition.
        self.fenced_markers = 0

    def count_making_files(self, partitions: Iterable[TopicPartition]) -> int:
        find, count = self._topics.partition, 0
        for topic, index in partitions:
            try:
                count += find(topic, index).makes_files
            except KafkaError:
                continue  # It is gone, and gets no marker.
        return count

    def append_marker(
        self, partition: TopicPartition, marker: TransactionMarker, now_ms: int
    ) -> tuple[PartitionLog, int]:
        """Append one marker; return the log and the end offset (exclusive) to await.

        In `__consumer_offsets` the pending acks of the transaction are resolved in the same step.
        Raises UNKNOWN_TOPIC_OR_PARTITION, INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED.
        """
        return self._append_to(self._topics.partition(*partition), partition, marker, now_ms)

    def _append_to(
        self,
        log: PartitionLog,
        partition: TopicPartition,
        marker: TransactionMarker,
        now_ms: int,
    ) -> tuple[PartitionLog, int]:
        """Do as `append_marker`, with the partition's log."""
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
                # A marker that makes files, or opens them again, takes as long as twenty others.
                # One that is refused takes long, too: it has a line in the log.
                if room <= 0 or (part is Part.SLICES and self._turns.is_over()):
                    yield markers
                    markers, room = [], MARKERS_AT_ONCE_MAX
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
                        report_skipped(one, partition, refusal)
                        continue
                    # Any other refusal ends the broker: the decision would lack this marker.
                    log, end_offset = self._append_fenced(one, partition, marker, refusal, now_ms)
                markers.append((one, partition, log, end_offset))
                room -= 1
        yield markers

    def append_owed(
        self,
        work: MarkerWork,
        partition: TopicPartition,
        part: Part,
        coordinator_epoch: int,
        now_ms: int,
    ) -> tuple[PartitionLog, int]:
        """Append one marker that a coordinator on another node owes; else as `append_marker`.

        With MISSING_MARKERS, only if the transaction is open. If it is not, its marker is in the
        log already, perhaps not durable yet: the end to await covers it. Raises
        TRANSACTION_COORDINATOR_FENCED for a coordinator that another node has succeeded.
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
        """Append a coordinator's marker; else as `append_marker`.

        If an earlier, fenced transaction of the producer is still open here, the marker of a commit
        becomes an abort, which ends that transaction. The committed transaction has no data here
        then: the log would have refused it.
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
        """Append a marker to a log that knows a later coordinator of the producer.

        Raises `refusal` if the log has refused the marker for another reason. The nodes of a
        cluster agree on who coordinates a producer. So the later coordinator is one of another
        cluster, whose log was copied here. The marker takes that coordinator's epoch: without a
        marker the outcome would be missing in this partition alone.
        """
        is_fenced = refusal.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
        # Where shards move, the later coordinator may be this one's successor.
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
                report_skipped(work, partition, closed)

    def _pass_over(
        self, work: MarkerWork, partition: TopicPartition, coordinator_epoch: int
    ) -> None:
        """Account for a partition that needs no marker: the transaction is over there already."""
        if self._held is not None:
            # A hold that stays remembered would let in a batch that comes after the end.
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


def report_skipped(work: MarkerWork, partition: TopicPartition, reason: object) -> None:
    """Log that a partition gets no marker, and why."""
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
