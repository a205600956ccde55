"""Reading records: where to begin, fetching, and leaving out aborted transactions.

A fetch tells a read_committed reader which aborted transactions overlap its records. The reader
skips the records of each: from the transaction's first offset to its marker. Source: KIP-98,
Kafka's Fetcher.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from magnetar.client.cluster import RETRY_DELAY_S, Client, Leaders, TopicPartition, by_leader
from magnetar.client.errors import ClientError, check
from magnetar.client.partitions import (
    EARLIEST,
    LATEST,
    MOVED,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    list_offsets,
)
from wire.error_code import ErrorCode
from wire.errors import WireError
from wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from wire.records import (
    BatchHeader,
    ControlType,
    Record,
    crc_ok,
    iterate_batches,
    iterate_records,
    parse_marker,
)

#: The last version of Fetch that names topics. Later ones have topic ids.
VERSION_OF_NAMES = 12
_WAIT_MS = 500
_MIN_BYTES = 1
#: Bounds of one fetch. A batch larger than both is sent all the same (KIP-74), so no record can
#: block a reader.
_MAX_BYTES = 16 << 20
_PARTITION_MAX_BYTES = 1 << 20

Positions = dict[TopicPartition, int]


class Fetched(NamedTuple):
    """A record and its partition."""

    topic: str
    partition: int
    record: Record


@dataclass(frozen=True)
class Begin:
    """Where to begin: exactly one of these is set."""

    word: int | None = None
    """EARLIEST or LATEST."""
    offset: int | None = None
    before_end: int | None = None
    """So many records before the end of each partition."""
    timestamp: int | None = None
    """The first record that is not older, in ms."""

    def resolve(
        self,
        client: Client,
        leaders: Leaders,
        wanted: Collection[TopicPartition],
        isolation: int,
    ) -> Positions:
        """Return the offset to begin with in each partition."""
        if self.offset is not None:
            return dict.fromkeys(wanted, self.offset)
        if self.word is not None:
            return list_offsets(client, leaders, wanted, self.word, isolation)
        ends = list_offsets(client, leaders, wanted, LATEST, isolation)
        if self.timestamp is not None:
            found = list_offsets(client, leaders, wanted, self.timestamp, isolation)
            # -1: no record is as young as that. So reading begins with what is yet to come.
            return {each: ends[each] if offset < 0 else offset for each, offset in found.items()}
        assert self.before_end is not None
        starts = list_offsets(client, leaders, wanted, EARLIEST, isolation)
        # Retention or DeleteRecords may have removed some of the records asked for.
        return {each: max(ends[each] - self.before_end, starts[each]) for each in ends}


@dataclass
class Reader:
    """Reads partitions from `positions` on, and moves the position with every record it yields."""

    client: Client
    leaders: Leaders
    positions: Positions
    isolation: int
    #: Whether a fetch without records waits a little for new ones.
    waits: bool = True
    #: Where to stop (exclusive); partitions that are not there go on for ever.
    until: Positions = field(default_factory=dict)
    #: The end (exclusive) that each partition had for this reader in the last fetch.
    ends: dict[TopicPartition, int] = field(default_factory=dict)

    @property
    def is_at_end(self) -> bool:
        """Whether the reader has reached the last known end of every partition, or `until`."""
        return all(
            # A partition that was not fetched yet has no known end, so it is not at its end.
            self.positions[each] >= self.ends.get(each, self.positions[each] + 1)
            or self._is_finished(each)
            for each in self.positions
        )

    @property
    def is_finished(self) -> bool:
        """Whether the reader has reached `until` in every partition."""
        return bool(self.positions) and all(map(self._is_finished, self.positions))

    def _is_finished(self, place: TopicPartition) -> bool:
        return place in self.until and self.positions[place] >= self.until[place]

    def find_leaders(self) -> None:
        """Ask who leads the partitions now, because a leader has moved or is away."""
        self.leaders = self.client.topics({name for name, _ in self.positions})

    def fetch(self) -> Iterator[Fetched]:
        """Yield the records of one fetch from each leader.

        ClientError: a position is not in the log, or a batch is damaged.
        """
        wanted = [each for each in self.positions if not self._is_finished(each)]
        by_node = list(by_leader(self.leaders, wanted))
        # The leaders are asked one after the other, so each may hold up the next one only for its
        # share.
        wait_ms = _WAIT_MS // max(len(by_node), 1) if self.waits else 0
        for node_id, topics in by_node:
            request = FetchRequest(
                max_wait_ms=wait_ms,
                min_bytes=_MIN_BYTES,
                max_bytes=_MAX_BYTES,
                isolation_level=self.isolation,
                topics=[
                    FetchTopic(
                        topic=topic,
                        partitions=[
                            FetchPartition(
                                partition=index,
                                fetch_offset=self.positions[topic, index],
                                partition_max_bytes=_PARTITION_MAX_BYTES,
                            )
                            for index in indexes
                        ],
                    )
                    for topic, indexes in topics.items()
                ],
            )
            response = self.client.call(
                request, FetchResponse, node_id=node_id, at_most=VERSION_OF_NAMES
            )
            check(response.error_code, "fetching")
            for topic in response.responses:
                yield from self._read_topic(topic)

    def _read_topic(self, topic: FetchableTopicResponse) -> Iterator[Fetched]:
        for partition in topic.partitions:
            place = topic.topic, partition.partition_index
            # The position stays: the next fetch asks the new leader for the same offset.
            if partition.error_code in MOVED:
                time.sleep(RETRY_DELAY_S)
                self.find_leaders()
                continue
            # No reset, unlike a consumer with auto.offset.reset: a person who named an offset wants
            # to know.
            if partition.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                raise self._out_of_range(place)
            check(partition.error_code, f"{place[0]}-{place[1]}")
            yield from self._read_partition(place, partition)

    def _out_of_range(self, place: TopicPartition) -> ClientError:
        (start,) = list_offsets(self.client, self.leaders, [place], EARLIEST).values()
        (end,) = list_offsets(self.client, self.leaders, [place], LATEST).values()
        return ClientError(
            f"{place[0]}-{place[1]} has no offset {self.positions[place]}: it begins at {start}"
            f" and ends before {end}."
        )

    def _read_partition(self, place: TopicPartition, partition: PartitionData) -> Iterator[Fetched]:
        aborted = (
            Aborted(partition.aborted_transactions) if self.isolation == READ_COMMITTED else None
        )
        try:
            for header, batch in batches_in(partition, self.positions[place]):
                # Asked for every batch, control batches too: the markers close the aborted
                # transactions.
                is_hidden = aborted is not None and aborted.hides(header, batch)
                if not header.is_control and not is_hidden:
                    for record in iterate_records(batch):
                        if record.offset >= self.until.get(place, record.offset + 1):
                            break
                        if record.offset >= self.positions[place]:
                            # Before the record is handed out: a caller that stops here has consumed
                            # it, and may commit this.
                            self.positions[place] = record.offset + 1
                            yield Fetched(*place, record)
                # Past the batch, not past its last record: compaction may have removed records at
                # its end, and markers hold none for a reader.
                self.positions[place] = header.next_offset
        except WireError as error:
            raise ClientError(
                f"{place[0]}-{place[1]} is damaged at offset {self.positions[place]}: {error}."
                f" Offset {self.positions[place] + 1} begins behind the damage."
            ) from None
        is_uncommitted = self.isolation == READ_UNCOMMITTED
        self.ends[place] = (
            partition.high_watermark if is_uncommitted else partition.last_stable_offset
        )


def batches_in(fetched: PartitionData, offset: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the batches that a fetch from `offset` on has brought. Raises WireError for a damaged
    one."""
    data = fetched.records or b""
    assert isinstance(data, bytes | bytearray | memoryview), "a decoded response holds one buffer"
    for header, batch in iterate_batches(data):
        # A broker sends whole batches: the first one may begin, or even end, before the offset
        # asked for.
        if header.next_offset <= offset:
            continue
        # Checked before decompression, which would trust the bytes.
        if not crc_ok(batch):
            raise WireError("the CRC does not match")
        yield header, batch


class Aborted:
    """Tells which batches belong to aborted transactions; asked in offset order."""

    def __init__(self, transactions: Iterable[AbortedTransaction] | None) -> None:
        """`transactions`: of the fetch that the batches are from."""
        #: By descending first offset, so that the next one to begin is the last.
        self._coming = sorted(
            ((each.first_offset, each.producer_id) for each in transactions or ()), reverse=True
        )
        self._open: set[int] = set()

    def hides(self, header: BatchHeader, batch: memoryview) -> bool:
        # A transaction counts from its first batch on: an older one of the same producer may have
        # been committed, and its batches are shown.
        while self._coming and self._coming[-1][0] <= header.last_offset:
            self._open.add(self._coming.pop()[1])
        if header.is_control:
            if parse_marker(batch).control_type is ControlType.ABORT:
                self._open.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._open
