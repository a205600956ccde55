"""MarkerWork <-> WriteTxnMarkers, as it goes between nodes.

A node that asks again does not know whether its first request took effect. It says so by a tagged
field of our own on the marker, and the peer then appends to those partitions alone in which the
transaction is still open. The first request marks every partition, empty ones too, as Kafka does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from coordinator.transactions.commit_plan import MarkerWork, Part
from coordinator.transactions.metadata import TopicPartition
from wire.message import Message
from wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

#: The version that nodes speak: with the transaction version.
VERSION = 2
_TAG_AGAIN = 1000


class OwedMarkers(NamedTuple):
    """The markers of one outcome that one node is to append."""

    work: MarkerWork
    """`partitions` are those of that node, `votes` are not looked at."""
    coordinator_epoch: int
    part: Part
    """MARKERS, or MISSING_MARKERS where they were asked for before."""


#: What became of each partition of an `OwedMarkers`.
Codes = dict[TopicPartition, int]


def encode(owed: Sequence[OwedMarkers]) -> WriteTxnMarkersRequest:
    """Return the request for all of `owed`, in their order."""
    return WriteTxnMarkersRequest(markers=[_marker(one) for one in owed])


def decode(request: WriteTxnMarkersRequest) -> list[OwedMarkers]:
    """Return what a request of a peer asks for, in its order."""
    return [
        OwedMarkers(
            MarkerWork(
                # The peer's: only the producer is known here.
                transactional_id="",
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                commit=marker.transaction_result,
                partitions=[
                    TopicPartition(topic.name, index)
                    for topic in marker.topics
                    for index in topic.partition_indexes
                ],
                transaction_version=marker.transaction_version,
            ),
            marker.coordinator_epoch,
            Part.MISSING_MARKERS
            if dict(marker.unknown_tags).keys() & {_TAG_AGAIN}
            else Part.MARKERS,
        )
        for marker in request.markers
    ]


def encode_codes(asked: WriteTxnMarkersRequest, codes: Sequence[Codes]) -> WriteTxnMarkersResponse:
    """Return the response to `asked`: a code for each partition."""
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(
                                partition_index=index,
                                error_code=of_marker[TopicPartition(topic.name, index)],
                            )
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker, of_marker in zip(asked.markers, codes, strict=True)
        ]
    )


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


def _marker(owed: OwedMarkers) -> WritableTxnMarker:
    work = owed.work
    marker = WritableTxnMarker(
        producer_id=work.producer_id,
        producer_epoch=work.producer_epoch,
        transaction_result=work.commit,
        topics=_topics(work.partitions),
        coordinator_epoch=owed.coordinator_epoch,
        transaction_version=work.transaction_version,
    )
    if owed.part is Part.MISSING_MARKERS:
        marker.unknown_tags = ((_TAG_AGAIN, b""),)
    return marker


def _topics(partitions: Iterable[TopicPartition]) -> list[WritableTxnMarkerTopic]:
    # Sorted, so that a repetition meets the partitions in the same order.
    topics: list[WritableTxnMarkerTopic] = []
    for topic, index in sorted(partitions):
        if topics and topics[-1].name == topic:
            topics[-1].partition_indexes.append(index)
        else:
            topics.append(WritableTxnMarkerTopic(name=topic, partition_indexes=[index]))
    return topics
