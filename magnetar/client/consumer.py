"""Reading records: where to begin, fetching, and leaving out what was aborted.

A read_committed reader is told of the aborted transactions that overlap what it gets, and skips
their records: from a transaction's first offset to its marker. Source: KIP-98, Kafka's Fetcher.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from magnetar.client.cluster import Client, ClientError, TopicPartition, check
from magnetar.client.partitions import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    by_leader,
    list_offsets,
)
from wire.error_code import ErrorCode
from wire.errors import WireError
from wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from wire.records import ControlType, Record, crc_ok, iterate_batches, iterate_records, parse_marker

#: From 13 on topics go by their ids.
_VERSION_OF_NAMES = 12
_NO_REPLICA = -1
_WAIT_MS = 500
_MIN_BYTES = 1
_MAX_BYTES = 16 << 20
_PARTITION_MAX_BYTES = 1 << 20
_RETRY_DELAY_S = 0.1
_MOVED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
_WORDS = {"beginning": EARLIEST, "earliest": EARLIEST, "end": LATEST, "latest": LATEST}
_STAMPED = re.compile(r"s@(.+)")

Positions = dict[TopicPartition, int]


class Fetched(NamedTuple):
    """One record and where it was."""

    topic: str
    partition: int
    record: Record


@dataclass(frozen=True)
class Begin:
    """Where to begin: at an offset, so many records before the end, or at a time."""

    word: int | None = None
    offset: int | None = None
    before_end: int | None = None
    timestamp: int | None = None

    @classmethod
    def parse(cls, text: str) -> Begin:
        """Return what `beginning`, `end`, `17`, `-5` or `s@TIME` means. ValueError: nothing.

        TIME is ms since 1970, or ISO 8601; UTC where it says no zone.
        """
        if text in _WORDS:
            return cls(word=_WORDS[text])
        if (stamped := _STAMPED.fullmatch(text)) is not None:
            return cls(timestamp=_time_ms(stamped[1]))
        try:
            number = int(text)
        except ValueError:
            raise ValueError(
                f"{text!r} is no offset: write beginning, end, 17, -5 (the last five),"
                " s@1795273200000 or s@2026-11-21T15:00"
            ) from None
        return cls(offset=number) if number >= 0 else cls(before_end=-number)

    def resolve(
        self,
        client: Client,
        leaders: Mapping[TopicPartition, int],
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
            return {each: ends[each] if offset < 0 else offset for each, offset in found.items()}
        assert self.before_end is not None
        starts = list_offsets(client, leaders, wanted, EARLIEST, isolation)
        return {each: max(ends[each] - self.before_end, starts[each]) for each in ends}


def _time_ms(text: str) -> int:
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither milliseconds since 1970 nor ISO 8601") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


@dataclass
class Reader:
    """Reads partitions from `positions` on, which it moves with every record it yields."""

    client: Client
    leaders: Mapping[TopicPartition, int]
    positions: Positions
    isolation: int
    #: Whether a fetch that finds nothing waits a little for something to come.
    waits: bool = True
    #: The end (exclusive) of what each partition had for this reader when it was asked last.
    ends: dict[TopicPartition, int] = field(default_factory=dict)

    @property
    def is_at_end(self) -> bool:
        """Whether everything that there was has been read, in every partition."""
        return all(
            self.positions[each] >= self.ends.get(each, self.positions[each] + 1)
            for each in self.positions
        )

    def fetch(self) -> Iterator[Fetched]:
        """Yield what there is, waiting shortly where there is nothing yet.

        Refused, in words, where a position is not in the log.
        """
        by_node = list(by_leader(self.leaders, self.positions))
        wait_ms = _WAIT_MS // max(len(by_node), 1) if self.waits else 0
        for node_id, topics in by_node:
            request = FetchRequest(
                replica_id=_NO_REPLICA,
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
                    for topic, indexes in topics
                ],
            )
            answer = self.client.call(
                request, FetchResponse, node_id=node_id, at_most=_VERSION_OF_NAMES
            )
            check(answer.error_code, "fetching")
            for topic in answer.responses:
                yield from self._read_topic(topic)

    def _read_topic(self, topic: FetchableTopicResponse) -> Iterator[Fetched]:
        for partition in topic.partitions:
            place = topic.topic, partition.partition_index
            if partition.error_code in _MOVED:
                time.sleep(_RETRY_DELAY_S)
                self.leaders = self.client.topics({name for name, _ in self.positions})
                continue
            if partition.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                raise self._out_of_range(place)
            check(partition.error_code, f"{place[0]}-{place[1]}")
            yield from self._read_partition(place, partition)

    def _out_of_range(self, place: TopicPartition) -> ClientError:
        (start,) = list_offsets(self.client, self.leaders, [place], EARLIEST).values()
        (end,) = list_offsets(self.client, self.leaders, [place], LATEST).values()
        return ClientError(
            f"{place[0]}-{place[1]} has no offset {self.positions[place]}: it begins at {start}"
            f" and ends before {end}. --offset says where to begin."
        )

    def _read_partition(self, place: TopicPartition, partition: PartitionData) -> Iterator[Fetched]:
        aborted = _Aborted(partition) if self.isolation == READ_COMMITTED else None
        data = partition.records or b""
        assert isinstance(data, bytes | bytearray | memoryview), "decoded, it is one buffer"
        try:
            for header, batch in iterate_batches(data):
                if header.next_offset <= self.positions[place]:
                    continue
                if not crc_ok(batch):
                    raise WireError("the CRC does not match")
                is_hidden = aborted is not None and aborted.hides(header.base_offset, batch)
                if not header.is_control and not is_hidden:
                    for record in iterate_records(batch):
                        if record.offset >= self.positions[place]:
                            self.positions[place] = record.offset + 1
                            yield Fetched(*place, record)
                self.positions[place] = header.next_offset
        except WireError as error:
            raise ClientError(
                f"{place[0]}-{place[1]} is damaged at offset {self.positions[place]}: {error}."
                f" --offset {self.positions[place] + 1} begins behind it."
            ) from None
        is_uncommitted = self.isolation == READ_UNCOMMITTED
        self.ends[place] = (
            partition.high_watermark if is_uncommitted else partition.last_stable_offset
        )


class _Aborted:
    """Which batches belong to aborted transactions. Asked of each batch, in offset order."""

    def __init__(self, partition: PartitionData) -> None:
        #: By descending first offset: the next to begin is the last.
        self._coming = sorted(
            (
                (each.first_offset, each.producer_id)
                for each in partition.aborted_transactions or ()
            ),
            reverse=True,
        )
        self._open: set[int] = set()

    def hides(self, base_offset: int, batch: memoryview) -> bool:
        header = next(iterate_batches(batch))[0]
        while self._coming and self._coming[-1][0] <= header.last_offset:
            self._open.add(self._coming.pop()[1])
        if header.is_control:
            if parse_marker(batch).control_type is ControlType.ABORT:
                self._open.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._open
