"""One error for a whole request of administration, where the response has no top-level code.

Each thing that the request names is given the code. `error_responses` has the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wire.error_code import ErrorCode
from wire.message import Message
from wire.messages import (
    alter_configs,
    create_partitions,
    delete_records,
    describe_topic_partitions,
    elect_leaders,
    incremental_alter_configs,
)

Builder = Callable[[Any, int, ErrorCode, str | None], Message | None]


def _delete_records(
    request: delete_records.DeleteRecordsRequest, version: int, code: ErrorCode, detail: str | None
) -> Message:
    return delete_records.DeleteRecordsResponse(
        topics=[
            delete_records.DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    delete_records.DeleteRecordsPartitionResult(
                        partition_index=asked.partition_index, low_watermark=-1, error_code=code
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _create_partitions(
    request: create_partitions.CreatePartitionsRequest,
    version: int,
    code: ErrorCode,
    detail: str | None,
) -> Message:
    return create_partitions.CreatePartitionsResponse(
        results=[
            create_partitions.CreatePartitionsTopicResult(
                name=topic.name, error_code=code, error_message=detail
            )
            for topic in request.topics
        ]
    )


def _alter_configs(
    request: alter_configs.AlterConfigsRequest, version: int, code: ErrorCode, detail: str | None
) -> Message:
    return alter_configs.AlterConfigsResponse(
        responses=[
            alter_configs.AlterConfigsResourceResponse(
                error_code=code,
                error_message=detail,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        ]
    )


def _incremental_alter_configs(
    request: incremental_alter_configs.IncrementalAlterConfigsRequest,
    version: int,
    code: ErrorCode,
    detail: str | None,
) -> Message:
    return incremental_alter_configs.IncrementalAlterConfigsResponse(
        responses=[
            incremental_alter_configs.AlterConfigsResourceResponse(
                error_code=code,
                error_message=detail,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        ]
    )


def _elect_leaders(
    request: elect_leaders.ElectLeadersRequest, version: int, code: ErrorCode, detail: str | None
) -> Message:
    results = [
        elect_leaders.ReplicaElectionResult(
            topic=topic.topic,
            partition_result=[
                elect_leaders.PartitionResult(
                    partition_id=index, error_code=code, error_message=detail
                )
                for index in topic.partitions
            ],
        )
        for topic in request.topic_partitions or ()
    ]
    return elect_leaders.ElectLeadersResponse(
        error_code=code if version >= 1 else ErrorCode.NONE, replica_election_results=results
    )


def _describe_topic_partitions(
    request: describe_topic_partitions.DescribeTopicPartitionsRequest,
    version: int,
    code: ErrorCode,
    detail: str | None,
) -> Message:
    return describe_topic_partitions.DescribeTopicPartitionsResponse(
        topics=[
            describe_topic_partitions.DescribeTopicPartitionsResponseTopic(
                name=topic.name, error_code=code
            )
            for topic in request.topics
        ]
    )


BUILDERS: dict[int, Builder] = {
    21: _delete_records,
    33: _alter_configs,
    37: _create_partitions,
    43: _elect_leaders,
    44: _incremental_alter_configs,
    75: _describe_topic_partitions,
}
