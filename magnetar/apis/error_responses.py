"""One error for a whole request, in each API's own shape.

Most responses have a top-level error code. Where one has none, or not in every version, the code
is given to each thing the request names, as Kafka does (`getErrorResponse`).
"""

from __future__ import annotations

from typing import Any

from magnetar.apis import error_responses_admin
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.message import Message
from wire.messages import (
    add_partitions_to_txn,
    consumer_group_describe,
    create_topics,
    delete_groups,
    delete_topics,
    describe_configs,
    describe_groups,
    describe_producers,
    describe_transactions,
    fetch,
    find_coordinator,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    txn_offset_commit,
    write_txn_markers,
)


def error_response(
    request: Message, version: int, response_class: type[Message], error: KafkaError
) -> Message | None:
    """Return the response that refuses `request` with `error`; None where none is sent."""
    build = _BUILDERS.get(request.api_key)
    if build is not None:
        return build(request, version, error.code, error.detail or None)
    fields: dict[str, Any] = {"error_code": error.code}
    if "error_message" in response_class.__annotations__:
        fields["error_message"] = error.detail or None
    return response_class(**fields)


def _produce(
    request: produce.ProduceRequest, version: int, code: ErrorCode, detail: str | None
) -> Message | None:
    if request.acks == 0:
        return None
    return produce.ProduceResponse(
        responses=[
            produce.TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    produce.PartitionProduceResponse(
                        index=data.index, error_code=code, base_offset=-1, error_message=detail
                    )
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def _fetch(
    request: fetch.FetchRequest, version: int, code: ErrorCode, detail: str | None
) -> Message:
    if version >= 7:
        return fetch.FetchResponse(error_code=code)
    return fetch.FetchResponse(
        responses=[
            fetch.FetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    # Records that are null librdkafka cannot read (KAFKA-18646).
                    fetch.PartitionData(
                        partition_index=asked.partition,
                        error_code=code,
                        high_watermark=-1,
                        records=b"",
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _list_offsets(
    request: list_offsets.ListOffsetsRequest, version: int, code: ErrorCode, detail: str | None
) -> Message:
    return list_offsets.ListOffsetsResponse(
        topics=[
            list_offsets.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    list_offsets.ListOffsetsPartitionResponse(
                        partition_index=asked.partition_index, error_code=code
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _metadata(
    request: metadata.MetadataRequest, version: int, code: ErrorCode, detail: str | None
) -> Message:
    return metadata.MetadataResponse(
        error_code=code,
        topics=[
            metadata.MetadataResponseTopic(
                name=topic.name if topic.name is not None or version >= 12 else "",
                topic_id=topic.topic_id,
                error_code=code,
            )
            for topic in request.topics or ()
        ],
    )


def _offset_commit(
    request: offset_commit.OffsetCommitRequest, version: int, code: ErrorCode, detail: str | None
) -> Message:
    return offset_commit.OffsetCommitResponse(
        topics=[
            offset_commit.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    offset_commit.OffsetCommitResponsePartition(
                        partition_index=asked.partition_index, error_code=code
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _offset_fetch(
    request: offset_fetch.OffsetFetchRequest, version: int, code: ErrorCode, detail: str | None
) -> Message:
    if version >= 8:
        return offset_fetch.OffsetFetchResponse(
            groups=[
                offset_fetch.OffsetFetchResponseGroup(group_id=group.group_id, error_code=code)
                for group in request.groups
            ]
        )
    if version >= 2:
        return offset_fetch.OffsetFetchResponse(error_code=code)
    return offset_fetch.OffsetFetchResponse(
        topics=[
            offset_fetch.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    offset_fetch.OffsetFetchResponsePartition(
                        partition_index=index, committed_offset=-1, metadata="", error_code=code
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ]
    )


def _find_coordinator(
    request: find_coordinator.FindCoordinatorRequest,
    version: int,
    code: ErrorCode,
    detail: str | None,
) -> Message:
    if version < 4:
        return find_coordinator.FindCoordinatorResponse(
            error_code=code, error_message=detail, node_id=-1, port=-1
        )
    return find_coordinator.FindCoordinatorResponse(
        coordinators=[
            find_coordinator.Coordinator(
                key=key, node_id=-1, port=-1, error_code=code, error_message=detail
            )
            for key in request.coordinator_keys
        ]
    )


def _describe_groups(
    request: describe_groups.DescribeGroupsRequest,
    version: int,
    code: ErrorCode,
    detail: str | None,
) -> Message:
    return describe_groups.DescribeGroupsResponse(
        groups=[
            describe_groups.DescribedGroup(group_id=group, error_code=code)
            for group in request.groups
        ]
    )


def _consumer_group_describe(
    request: consumer_group_describe.ConsumerGroupDescribeRequest,
    version: int,
    code: ErrorCode,
    detail: str | None,
) -> Message:
    return consumer_group_describe.ConsumerGroupDescribeResponse(
        groups=[
            consumer_group_describe.DescribedGroup(
                group_id=group, error_code=code, error_message=detail
            )
            for group in request.group_ids
        ]
    )


def _delete_groups(
    request: delete_groups.DeleteGroupsRequest, version: int, code: ErrorCode, detail: str | None
) -> Message:
    return delete_groups.DeleteGroupsResponse(
        results=[
            delete_groups.DeletableGroupResult(group_id=group, error_code=code)
            for group in request.groups_names
        ]
    )


def _create_topics(
    request: create_topics.CreateTopicsRequest, version: int, code: ErrorCode, detail: str | None
) -> Message:
    return create_topics.CreateTopicsResponse(
        topics=[
            create_topics.CreatableTopicResult(
                name=topic.name, error_code=code, error_message=detail
            )
            for topic in request.topics
        ]
    )


def _delete_topics(
    request: delete_topics.DeleteTopicsRequest, version: int, code: ErrorCode, detail: str | None
) -> Message:
    names = [delete_topics.DeletableTopicResult(name=name) for name in request.topic_names]
    states = [
        delete_topics.DeletableTopicResult(name=topic.name, topic_id=topic.topic_id)
        for topic in request.topics
    ]
    for result in names + states:
        result.error_code = code
        result.error_message = detail
    return delete_topics.DeleteTopicsResponse(responses=names + states)


def _offset_for_leader_epoch(
    request: offset_for_leader_epoch.OffsetForLeaderEpochRequest,
    version: int,
    code: ErrorCode,
    detail: str | None,
) -> Message:
    return offset_for_leader_epoch.OffsetForLeaderEpochResponse(
        topics=[
            offset_for_leader_epoch.OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    offset_for_leader_epoch.EpochEndOffset(
                        partition=asked.partition, error_code=code
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _add_partitions_to_txn(
    request: add_partitions_to_txn.AddPartitionsToTxnRequest,
    version: int,
    code: ErrorCode,
    detail: str | None,
) -> Message:
    if version >= 4:
        return add_partitions_to_txn.AddPartitionsToTxnResponse(error_code=code)
    return add_partitions_to_txn.AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            add_partitions_to_txn.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    add_partitions_to_txn.AddPartitionsToTxnPartitionResult(
                        partition_index=index, partition_error_code=code
                    )
                    for index in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
    )


def _write_txn_markers(
    request: write_txn_markers.WriteTxnMarkersRequest,
    version: int,
    code: ErrorCode,
    detail: str | None,
) -> Message:
    return write_txn_markers.WriteTxnMarkersResponse(
        markers=[
            write_txn_markers.WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    write_txn_markers.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            write_txn_markers.WritableTxnMarkerPartitionResult(
                                partition_index=index, error_code=code
                            )
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


def _txn_offset_commit(
    request: txn_offset_commit.TxnOffsetCommitRequest,
    version: int,
    code: ErrorCode,
    detail: str | None,
) -> Message:
    return txn_offset_commit.TxnOffsetCommitResponse(
        topics=[
            txn_offset_commit.TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    txn_offset_commit.TxnOffsetCommitResponsePartition(
                        partition_index=asked.partition_index, error_code=code
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _describe_configs(
    request: describe_configs.DescribeConfigsRequest,
    version: int,
    code: ErrorCode,
    detail: str | None,
) -> Message:
    return describe_configs.DescribeConfigsResponse(
        results=[
            describe_configs.DescribeConfigsResult(
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                error_code=code,
                error_message=detail,
            )
            for resource in request.resources
        ]
    )


def _describe_producers(
    request: describe_producers.DescribeProducersRequest,
    version: int,
    code: ErrorCode,
    detail: str | None,
) -> Message:
    return describe_producers.DescribeProducersResponse(
        topics=[
            describe_producers.TopicResponse(
                name=topic.name,
                partitions=[
                    describe_producers.PartitionResponse(
                        partition_index=index, error_code=code, error_message=detail
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


def _describe_transactions(
    request: describe_transactions.DescribeTransactionsRequest,
    version: int,
    code: ErrorCode,
    detail: str | None,
) -> Message:
    return describe_transactions.DescribeTransactionsResponse(
        transaction_states=[
            describe_transactions.TransactionState(
                transactional_id=transactional_id, error_code=code
            )
            for transactional_id in request.transactional_ids
        ]
    )


_BUILDERS: dict[int, error_responses_admin.Builder] = {
    **error_responses_admin.BUILDERS,
    0: _produce,
    1: _fetch,
    2: _list_offsets,
    3: _metadata,
    8: _offset_commit,
    9: _offset_fetch,
    10: _find_coordinator,
    15: _describe_groups,
    19: _create_topics,
    20: _delete_topics,
    23: _offset_for_leader_epoch,
    24: _add_partitions_to_txn,
    27: _write_txn_markers,
    28: _txn_offset_commit,
    32: _describe_configs,
    42: _delete_groups,
    61: _describe_producers,
    65: _describe_transactions,
    69: _consumer_group_describe,
}
