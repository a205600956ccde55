"""One error for a whole request of administration, where the response has no top-level code.

Each thing that the request names is given the code. `error_responses` has the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wire.error_code import ErrorCode
from wire.message import Message
from wire.messages import (
    alter_client_quotas,
    alter_configs,
    alter_replica_log_dirs,
    create_acls,
    create_partitions,
    delete_acls,
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


def _create_acls(
    request: create_acls.CreateAclsRequest, version: int, code: ErrorCode, detail: str | None
) -> Message:
    return create_acls.CreateAclsResponse(
        results=[
            create_acls.AclCreationResult(error_code=code, error_message=detail)
            for _ in request.creations
        ]
    )


def _delete_acls(
    request: delete_acls.DeleteAclsRequest, version: int, code: ErrorCode, detail: str | None
) -> Message:
    return delete_acls.DeleteAclsResponse(
        filter_results=[
            delete_acls.DeleteAclsFilterResult(error_code=code, error_message=detail)
            for _ in request.filters
        ]
    )


def _alter_replica_log_dirs(
    request: alter_replica_log_dirs.AlterReplicaLogDirsRequest,
    version: int,
    code: ErrorCode,
    detail: str | None,
) -> Message:
    return alter_replica_log_dirs.AlterReplicaLogDirsResponse(
        results=[
            alter_replica_log_dirs.AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=[
                    alter_replica_log_dirs.AlterReplicaLogDirPartitionResult(
                        partition_index=index, error_code=code
                    )
                    for index in topic.partitions
                ],
            )
            for directory in request.dirs
            for topic in directory.topics
        ]
    )


def _alter_client_quotas(
    request: alter_client_quotas.AlterClientQuotasRequest,
    version: int,
    code: ErrorCode,
    detail: str | None,
) -> Message:
    return alter_client_quotas.AlterClientQuotasResponse(
        entries=[
            alter_client_quotas.ResponseEntryData(
                error_code=code,
                error_message=detail,
                entity=[
                    alter_client_quotas.ResponseEntityData(
                        entity_type=part.entity_type, entity_name=part.entity_name
                    )
                    for part in entry.entity
                ],
            )
            for entry in request.entries
        ]
    )


BUILDERS: dict[int, Builder] = {
    21: _delete_records,
    30: _create_acls,
    31: _delete_acls,
    33: _alter_configs,
    34: _alter_replica_log_dirs,
    37: _create_partitions,
    43: _elect_leaders,
    44: _incremental_alter_configs,
    49: _alter_client_quotas,
    75: _describe_topic_partitions,
}
