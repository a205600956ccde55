"""MarkerWork <-> WriteTxnMarkers, as it goes between nodes.

A node that asks again does not know whether its first request had an effect. A tagged field of our
own says that it asks again, and the peer then appends only to partitions in which the transaction
is still open. The first request marks every partition, empty ones too, as Kafka does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from coordinator.transactions.commit_plan import MarkerWork, Part
from coordinator.transactions.metadata import TopicPartition
from wire.message import Message
from wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersResponse,
)

#: The version of WriteTxnMarkers that nodes speak: the first that has the transaction version.
VERSION = 2
_TAG_AGAIN = 1000


class OwedMarkers(NamedTuple):
    """The markers of one outcome that a peer is to append."""

    work: MarkerWork
    """Without partitions: these are beside it, in `topics`."""
    coordinator_epoch: int
    part: Part
    """MARKERS, or MISSING_MARKERS if they were asked for before."""
    topics: Sequence[WritableTxnMarkerTopic]


#: What became of each partition of a marker.
Codes = dict[TopicPartition, int]


def marker_of(work: MarkerWork, coordinator_epoch: int, part: Part) -> WritableTxnMarker:
    """Return the marker that one node is to append: `work` has the partitions of that node.

    `part`: MARKERS, or MISSING_MARKERS where it was asked for before.
    """
    marker = WritableTxnMarker(
        producer_id=work.producer_id,
        producer_epoch=work.producer_epoch,
        transaction_result=work.commit,
        topics=_topics(work.partitions),
        coordinator_epoch=coordinator_epoch,
        transaction_version=work.transaction_version,
    )
    if part is Part.MISSING_MARKERS:
        marker.unknown_tags = ((_TAG_AGAIN, b""),)
    return marker


def owed_by(marker: WritableTxnMarker) -> OwedMarkers:
    """Return what a marker of a peer's request asks for."""
    work = MarkerWork(
        # Only the peer knows it. Here the producer id identifies the transaction.
        transactional_id="",
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        commit=marker.transaction_result,
        partitions=(),
        transaction_version=marker.transaction_version,
    )
    is_again = any(tag == _TAG_AGAIN for tag, _ in marker.unknown_tags)
    part = Part.MISSING_MARKERS if is_again else Part.MARKERS
    return OwedMarkers(work, marker.coordinator_epoch, part, marker.topics)


def decode_codes(response: Message) -> list[Codes]:
    """Return the codes of a response, in the order of the request."""
    assert isinstance(response, WriteTxnMarkersResponse)
    return [
        {
            TopicPartition(topic.name, partition.partition_index): partition.error_code
            for topic in marker.topics
            for partition in topic.partitions
        }
        for marker in response.markers
    ]


def _topics(partitions: Iterable[TopicPartition]) -> list[WritableTxnMarkerTopic]:
    # Sorted, so that a repetition meets the partitions in the same order.
    topics: list[WritableTxnMarkerTopic] = []
    for topic, index in sorted(partitions):
        if topics and topics[-1].name == topic:
            topics[-1].partition_indexes.append(index)
        else:
            topics.append(WritableTxnMarkerTopic(name=topic, partition_indexes=[index]))
    return topics
