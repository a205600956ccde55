"""The batches of one partition as they lie in the log, and what became of each: for those who look
into a log instead of consuming it.

Below the last stable offset everything is decided: a fetch tells which transactions were aborted.
From there on a fetch tells nothing, and a batch is judged by the next marker of its producer; while
there is none, its transaction is open. Source: KIP-98.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from magnetar.client.cluster import Client, TopicPartition
from magnetar.client.consumer import Aborted
from magnetar.client.errors import ClientError, check
from magnetar.client.partitions import READ_COMMITTED, READ_UNCOMMITTED
from wire.errors import WireError
from wire.messages.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from wire.records import BatchHeader, ControlType, crc_ok, iterate_batches, parse_marker

#: From 13 on requests name topic ids.
_VERSION_OF_NAMES = 12
_NO_REPLICA = -1
_MAX_BYTES = 1 << 20


class Outcome(StrEnum):
    """What became of a batch."""

    COMMITTED = "committed"
    """By its transaction, or without one."""
    ABORTED = "aborted"
    OPEN = "open"
    """No marker of its producer follows so far."""
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
    max_bytes: int = _MAX_BYTES,
) -> Stretch:
    """Return the batches at an offset, up to `max_bytes` but at least one; none at the end.

    Refused: the partition does not exist, the offset is not in the log. ClientError: damaged.
    """
    topic, index = place
    partition = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        replica_id=_NO_REPLICA,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=max_bytes,
        isolation_level=isolation,
        topics=[FetchTopic(topic=topic, partitions=[partition])],
    )
    response = client.call(request, FetchResponse, node_id=leader, at_most=_VERSION_OF_NAMES)
    name = f"{topic}-{index}"
    check(response.error_code, f"fetching {name}")
    ((found,),) = [each.partitions for each in response.responses]
    check(found.error_code, name)
    data = found.records or b""
    assert isinstance(data, bytes | bytearray | memoryview), "a decoded response holds one buffer"
    try:
        batches = [each for each in iterate_batches(data) if each[0].next_offset > offset]
        for _, batch in batches:
            if not crc_ok(batch):
                raise WireError("the CRC does not match")
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
        is_aborted = aborted.hides(header.base_offset, batch)
        if header.is_control:
            yield Judged(header, batch, _marker(batch))
        else:
            yield Judged(header, batch, Outcome.ABORTED if is_aborted else Outcome.COMMITTED)


def judged_by_markers(batches: Sequence[tuple[BatchHeader, memoryview]]) -> list[Judged]:
    """Return the batches from the stable offset on with the outcomes that their markers tell.

    OPEN is also what has its marker behind the last of these batches.
    """
    found = []
    ended: dict[int, Outcome] = {}
    # Backwards: a batch belongs to the next marker of its producer.
    for header, batch in reversed(batches):
        if header.is_control:
            outcome = _marker(batch)
            is_commit = outcome is Outcome.COMMIT_MARKER
            ended[header.producer_id] = Outcome.COMMITTED if is_commit else Outcome.ABORTED
        elif header.is_transactional:
            outcome = ended.get(header.producer_id, Outcome.OPEN)
        else:
            outcome = Outcome.COMMITTED
        found.append(Judged(header, batch, outcome))
    return found[::-1]


def read_judged(
    client: Client,
    leader: int,
    place: TopicPartition,
    first: int,
    end: int,
    bytes_max: int,
) -> tuple[list[Judged], int]:
    """Return the batches in [first, end) with their outcomes, and the offset behind the last one.

    Stops at the end of the log, and after about `bytes_max`.
    """
    found: list[Judged] = []
    offset, read_bytes = first, 0
    undecided: list[tuple[BatchHeader, memoryview]] = []
    isolation = READ_COMMITTED
    while offset < end and read_bytes < bytes_max:
        stretch = fetch_stretch(
            client, leader, place, offset, isolation, min(_MAX_BYTES, bytes_max)
        )
        if not stretch.batches:
            # At the stable offset what follows is not decided, and asked for in another way.
            if isolation == READ_COMMITTED and offset < stretch.high_watermark:
                isolation = READ_UNCOMMITTED
                continue
            break
        if isolation == READ_COMMITTED:
            found += judged(stretch)
        else:
            undecided += stretch.batches
        offset = stretch.next_offset
        read_bytes += sum(header.size_bytes for header, _ in stretch.batches)
    found += judged_by_markers(undecided)
    return [each for each in found if each.header.base_offset < end], min(offset, end)


def _marker(batch: memoryview) -> Outcome:
    is_commit = parse_marker(batch).control_type is ControlType.COMMIT
    return Outcome.COMMIT_MARKER if is_commit else Outcome.ABORT_MARKER
