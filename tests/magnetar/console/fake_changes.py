"""How the fake cluster answers requests that change it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wire.error_code import ErrorCode
from wire.message import Message
from wire.messages import (
    alter_user_scram_credentials,
    create_topics,
    delete_records,
    delete_topics,
    incremental_alter_configs,
    offset_commit,
)

if TYPE_CHECKING:
    from tests.magnetar.console.fake_cluster import World


def _create_topics(world: World, request: create_topics.CreateTopicsRequest) -> Message:
    (topic,) = request.topics
    code, message = ErrorCode.NONE, None
    if not topic.name.isascii():
        code, message = ErrorCode.INVALID_TOPIC_EXCEPTION, "an invalid name"
    elif topic.name in world.topics:
        code = ErrorCode.TOPIC_ALREADY_EXISTS
    elif not request.validate_only:
        world.partition(topic.name, max(topic.num_partitions, 1) - 1)
    result = create_topics.CreatableTopicResult(
        name=topic.name, error_code=code, error_message=message
    )
    return create_topics.CreateTopicsResponse(topics=[result])


def _delete_topics(world: World, request: delete_topics.DeleteTopicsRequest) -> Message:
    (topic,) = request.topics
    assert topic.name is not None
    del world.topics[topic.name]
    return delete_topics.DeleteTopicsResponse(
        responses=[delete_topics.DeletableTopicResult(name=topic.name)]
    )


def _delete_records(world: World, request: delete_records.DeleteRecordsRequest) -> Message:
    (topic,) = request.topics
    results = []
    for each in topic.partitions:
        world.trims[topic.name, each.partition_index] = each.offset
        results.append(
            delete_records.DeleteRecordsPartitionResult(
                partition_index=each.partition_index, low_watermark=each.offset
            )
        )
    found = delete_records.DeleteRecordsTopicResult(name=topic.name, partitions=results)
    return delete_records.DeleteRecordsResponse(topics=[found])


def _offset_commit(world: World, request: offset_commit.OffsetCommitRequest) -> Message:
    group = world.groups[request.group_id]
    results = []
    for topic in request.topics:
        for each in topic.partitions:
            group.committed[topic.name, each.partition_index] = each.committed_offset
        partitions = [
            offset_commit.OffsetCommitResponsePartition(partition_index=each.partition_index)
            for each in topic.partitions
        ]
        results.append(
            offset_commit.OffsetCommitResponseTopic(name=topic.name, partitions=partitions)
        )
    return offset_commit.OffsetCommitResponse(topics=results)


def _alter_configs(
    world: World, request: incremental_alter_configs.IncrementalAlterConfigsRequest
) -> Message:
    (resource,) = request.resources
    if not request.validate_only:
        world.settings |= {each.name: each.value for each in resource.configs}
    result = incremental_alter_configs.AlterConfigsResourceResponse(
        resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    return incremental_alter_configs.IncrementalAlterConfigsResponse(responses=[result])


def _alter_users(
    world: World, request: alter_user_scram_credentials.AlterUserScramCredentialsRequest
) -> Message:
    for each in request.upsertions:
        world.users[each.name] = each.salted_password.hex()
    results = [
        alter_user_scram_credentials.AlterUserScramCredentialsResult(user=each.name)
        for each in request.upsertions
    ]
    return alter_user_scram_credentials.AlterUserScramCredentialsResponse(results=results)


ANSWERS: dict[type[Message], Callable[[World, Any], Message]] = {
    create_topics.CreateTopicsRequest: _create_topics,
    delete_topics.DeleteTopicsRequest: _delete_topics,
    delete_records.DeleteRecordsRequest: _delete_records,
    offset_commit.OffsetCommitRequest: _offset_commit,
    incremental_alter_configs.IncrementalAlterConfigsRequest: _alter_configs,
    alter_user_scram_credentials.AlterUserScramCredentialsRequest: _alter_users,
}
