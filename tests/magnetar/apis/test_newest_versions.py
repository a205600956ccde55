"""What the newest versions of requests say beyond the older ones, as Apache Kafka 4.4.0 does.

kafka-python and kio do not know these versions: the codes were read off a broker of 4.4.0.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from magnetar.broker import Broker
from tests.magnetar.conftest import RawClient
from tests.magnetar.raw_producer import RawProducer
from wire.error_code import ErrorCode
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

NONE = ErrorCode.NONE
UNKNOWN_TOPIC = UUID(int=4711)


@pytest.mark.parametrize(
    ("cluster", "node", "code"),
    [
        (None, -1, NONE),
        ("ours", 1, NONE),
        ("another", 1, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("", 1, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("ours", 6, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("ours", -1, ErrorCode.INVALID_REQUEST),
        (None, 1, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_a_client_that_meant_another_broker_is_told_to_bootstrap_again(
    broker: Broker, client: RawClient, cluster: str | None, node: int, code: ErrorCode
) -> None:
    assert broker.services.node.id == 1
    request = ApiVersionsRequest(
        client_software_name="raw",
        client_software_version="1",
        cluster_id=broker.services.node.cluster_id if cluster == "ours" else cluster,
        node_id=node,
    )
    for _ in range(2):  # the connection goes on after a refusal
        answer = await client.ask(request, 5, ApiVersionsResponse)
        assert answer.error_code == code
        assert bool(answer.api_keys) is (code is NONE)


class Committer:
    """A transaction, and what the newest TxnOffsetCommit answers in it."""

    def __init__(self, client: RawClient, producer: RawProducer) -> None:
        self._client = client
        self._producer = producer

    async def codes(
        self, group_id: str, topic_id: UUID, *partitions: int, **fields: Any
    ) -> list[ErrorCode]:
        asked = [TxnOffsetCommitRequestPartition(partition_index=index) for index in partitions]
        request = TxnOffsetCommitRequest(
            transactional_id=self._producer.transactional_id,
            group_id=group_id,
            producer_id=self._producer.identity.producer_id,
            producer_epoch=self._producer.identity.producer_epoch,
            topics=[TxnOffsetCommitRequestTopic(topic_id=topic_id, partitions=asked)],
            **fields,
        )
        answer = await self._client.ask(request, 6, TxnOffsetCommitResponse)
        (topic,) = answer.topics
        assert topic.topic_id == topic_id
        return [ErrorCode(each.error_code) for each in topic.partitions]


@pytest.fixture
async def committer(client: RawClient) -> Committer:
    producer = RawProducer(client, "tx")
    assert await producer.init() == NONE
    return Committer(client, producer)


async def test_offsets_are_committed_in_transactions_by_topic_id(
    broker: Broker, committer: Committer
) -> None:
    topic = broker.topics.create("a", 1)
    unknown, unknown_id = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID
    assert await committer.codes("group", topic.id, 0, 9) == [NONE, unknown]
    assert await committer.codes("group", UNKNOWN_TOPIC, 0) == [unknown_id]
    assert await committer.codes("group", UUID(int=0), 0) == [unknown_id]


async def test_members_learn_in_transactions_why_they_are_none(
    broker: Broker, client: RawClient, committer: Committer
) -> None:
    topic = broker.topics.create("a", 1)
    joining = ConsumerGroupHeartbeatRequest(
        group_id="group",
        member_id="m",
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["a"],
        topic_partitions=[],
    )
    joined = await client.ask(joining, 1, ConsumerGroupHeartbeatResponse)
    assert joined.error_code == NONE

    async def code(group_id: str, member_id: str, member_epoch: int) -> ErrorCode:
        (found,) = await committer.codes(
            group_id, topic.id, 0, member_id=member_id, generation_id_or_member_epoch=member_epoch
        )
        return found

    epoch = joined.member_epoch
    assert await code("group", "m", epoch) is NONE
    assert await code("group", "m", epoch + 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert await code("group", "other", epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert await code("no-group", "m", 3) is ErrorCode.GROUP_ID_NOT_FOUND
    assert await code("group", "", -1) is NONE


async def test_a_group_that_is_not_deleted_has_a_message(client: RawClient) -> None:
    request = DeleteGroupsRequest(groups_names=["no-group"])
    (said,) = (await client.ask(request, 3, DeleteGroupsResponse)).results
    assert said.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert said.error_message
    (said,) = (await client.ask(request, 2, DeleteGroupsResponse)).results
    assert (said.error_code, said.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, None)
