"""AddPartitionsToTxn: its lists of topics, from and to partitions and their error codes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

from coordinator.transactions.metadata import TopicPartition
from wire.error_code import ErrorCode
from wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
)


def partitions_of(topics: Iterable[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    """Return the partitions that a transaction asks for, in order."""
    return [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]


def encode_held(codes: Mapping[TopicPartition, ErrorCode]) -> list[AddPartitionsToTxnTopicResult]:
    """Return the results for a peer, in the order of `codes`: a topic for each run of one topic."""
    return [
        AddPartitionsToTxnTopicResult(
            name=topic,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
                for (_, index), code in of_topic
            ],
        )
        for topic, of_topic in groupby(codes.items(), lambda item: item[0].topic)
    ]
