"""The batches of one partition as they lie in the log, and what became of each: for those who look
into a log instead of consuming it.

Below the last stable offset everything is decided: a fetch tells which transactions were aborted.
From there on a fetch tells nothing. The leader tells which transactions are open. A batch of a
transaction that has ended is judged by the next marker of its producer, if that was read.

Source: KIP-98.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from magnetar.client.cluster import Client, Leaders, TopicPartition
from magnetar.client.consumer import VERSION_OF_NAMES, Aborted, batches_in
from magnetar.client.errors import ClientError, check
from magnetar.client.partitions import (
    EARLIEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    OpenProducer,
    bounds,
    describe_open,
    list_offsets,
)
from wire.errors import WireError
from wire.messages.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from wire.records import BatchHeader, ControlType, parse_marker

FETCH_BYTES_MAX = 1 << 20


class Outcome(StrEnum):
    """What became of a batch."""

    COMMITTED = "committed"
    """By its transaction, or without one."""
    ABORTED = "aborted"
    OPEN = "open"
    ENDED = "ended"
    """Committed or aborted: the marker lies behind what was read."""
    COMMIT_MARKER = "commit marker"
    ABORT_MARKER = "abort marker"

    @property
    def is_marker(self) -> bool:
        return self in (Outcome.COMMIT_MARKER, Outcome.ABORT_MARKER)


class Judged(NamedTuple):
    """A batch and its outcome."""

    header: BatchHeader
    batch: memoryview
    outcome: Outcome


@dataclass(frozen=True)
class Stretch:
    """Whole batches that follow each other; the first may begin before the offset asked for."""

    batches: Sequence[tuple[BatchHeader, memoryview]]
    aborted: Sequence[AbortedTransaction]
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int

    @property
    def next_offset(self) -> int:
        """The offset behind the last batch; -1 without any."""
        return self.batches[-1][0].next_offset if self.batches else -1


def fetch_stretch(
    client: Client,
    leader: int,
    place: TopicPartition,
    offset: int,
    isolation: int,
    max_bytes: int,
) -> Stretch:
    """Return the batches at an offset, up to `max_bytes` but at least one; none at the end.

    Refused: the partition does not exist, the offset is not in the log. ClientError: damaged.
    """
    topic, index = place
    partition = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=max_bytes,
        isolation_level=isolation,
        topics=[FetchTopic(topic=topic, partitions=[partition])],
    )
    response = client.call(request, FetchResponse, node_id=leader, at_most=VERSION_OF_NAMES)
    name = f"{topic}-{index}"
    check(response.error_code, f"fetching {name}")
    ((found,),) = [each.partitions for each in response.responses]
    check(found.error_code, name)
    try:
        batches = [*batches_in(found, offset)]
    except WireError as error:
        raise ClientError(f"{name} is damaged at or behind offset {offset}: {error}.") from None
    return Stretch(
        batches,
        found.aborted_transactions or (),
        found.log_start_offset,
        found.last_stable_offset,
        found.high_watermark,
    )


def judged(stretch: Stretch) -> Iterator[Judged]:
    """Yield the batches with their outcomes. The stretch was fetched below the stable offset."""
    aborted = Aborted(stretch.aborted)
    for header, batch in stretch.batches:
        is_aborted = aborted.hides(header, batch)
        if header.is_control:
            yield Judged(header, batch, _marker(batch))
        else:
            yield Judged(header, batch, Outcome.ABORTED if is_aborted else Outcome.COMMITTED)


@dataclass
class PartitionView:
    """One partition at one moment, to be read backwards or forwards, window by window."""

    client: Client
    leader: int
    place: TopicPartition
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    open: Sequence[OpenProducer] = ()
    #: What the markers that were read last say of their producers. Reading backwards meets the
    #: marker of a batch before the batch.
    _ended: dict[int, Outcome] = field(default_factory=dict)

    def read(self, first: int, end: int, bytes_max: int) -> tuple[list[Judged], int]:
        """Return the batches with offsets in [first, end), and the offset behind the last one.

        Stops at the end of the log, and after about `bytes_max`, but reads one batch.
        """
        found: list[Judged] = []
        undecided: list[tuple[BatchHeader, memoryview]] = []
        offset, read_bytes = first, 0
        while offset < end and (read_bytes < bytes_max or offset == first):
            is_decided = offset < self.last_stable_offset
            stretch = fetch_stretch(
                self.client,
                self.leader,
                self.place,
                offset,
                READ_COMMITTED if is_decided else READ_UNCOMMITTED,
                min(FETCH_BYTES_MAX, bytes_max),
            )
            if not stretch.batches:
                break
            if is_decided:
                found += judged(stretch)
            else:
                undecided += stretch.batches
            offset = stretch.next_offset
            read_bytes += sum(header.size_bytes for header, _ in stretch.batches)
        found += self._judged_by_markers(undecided)
        return [each for each in found if each.header.base_offset < end], min(offset, end)

    def _judged_by_markers(self, batches: Sequence[tuple[BatchHeader, memoryview]]) -> list[Judged]:
        open_from = {each.producer_id: each.start_offset for each in self.open}
        found = []
        # Backwards: a batch belongs to the next marker of its producer.
        for header, batch in reversed(batches):
            producer_id = header.producer_id
            if header.is_control:
                outcome = _marker(batch)
                is_commit = outcome is Outcome.COMMIT_MARKER
                self._ended[producer_id] = Outcome.COMMITTED if is_commit else Outcome.ABORTED
            elif not header.is_transactional:
                outcome = Outcome.COMMITTED
            elif header.base_offset >= open_from.get(producer_id, self.high_watermark):
                outcome = Outcome.OPEN
            else:
                outcome = self._ended.get(producer_id, Outcome.ENDED)
            found.append(Judged(header, batch, outcome))
        return found[::-1]


def view_partitions(
    client: Client, leaders: Leaders, wanted: Collection[TopicPartition]
) -> list[PartitionView]:
    """Return views of these partitions, in order. Refused: one cannot be asked."""
    starts = list_offsets(client, leaders, wanted, EARLIEST)
    stable, ends = bounds(client, leaders, wanted)
    # Asked last: what is not open now has ended, and its marker lies before the end or behind it.
    held = {each for each in wanted if stable[each] < ends[each]}
    producers = describe_open(client, leaders, held)
    return [
        PartitionView(
            client,
            leaders[place],
            place,
            starts[place],
            stable[place],
            ends[place],
            [each for each in producers if each.place == place],
        )
        for place in sorted(wanted)
    ]


def _marker(batch: memoryview) -> Outcome:
    is_commit = parse_marker(batch).control_type is ControlType.COMMIT
    return Outcome.COMMIT_MARKER if is_commit else Outcome.ABORT_MARKER
