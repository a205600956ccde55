"""What one node without security answers truthfully: ACLs, credentials, quorum, directories."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.broker import Broker
from wire.error_code import ErrorCode
from wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from wire.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    PartitionData,
    TopicData,
)
from wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_there_are_no_acls_and_none_can_be_made(client: Any, version: int) -> None:
    described = await client.ask(DescribeAclsRequest(), version, DescribeAclsResponse)
    assert described.error_code == ErrorCode.SECURITY_DISABLED
    creation = CreateAclsRequest(creations=[AclCreation(), AclCreation()])
    created = await client.ask(creation, version, CreateAclsResponse)
    assert [each.error_code for each in created.results] == [ErrorCode.SECURITY_DISABLED] * 2
    deletion = DeleteAclsRequest(filters=[DeleteAclsFilter()])
    deleted = await client.ask(deletion, version, DeleteAclsResponse)
    assert [each.error_code for each in deleted.filter_results] == [ErrorCode.SECURITY_DISABLED]


async def test_who_comes_with_sasl_is_told_that_it_is_wrong_here(client: Any) -> None:
    for version in (0, 1):
        asked = SaslHandshakeRequest(mechanism="PLAIN")
        answer = await client.ask(asked, version, SaslHandshakeResponse)
        assert (answer.error_code, answer.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])
    for version in (0, 1, 2):
        token = SaslAuthenticateRequest(auth_bytes=b"\0user\0secret")
        refused = await client.ask(token, version, SaslAuthenticateResponse)
        assert refused.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert refused.error_message


async def test_nobody_has_credentials(client: Any) -> None:
    everyone = DescribeUserScramCredentialsRequest(users=None)
    answer = await client.ask(everyone, 0, DescribeUserScramCredentialsResponse)
    assert (answer.error_code, answer.results) == (0, [])
    users = [UserName(name=name) for name in "abb"]
    asked = DescribeUserScramCredentialsRequest(users=users)
    answer = await client.ask(asked, 0, DescribeUserScramCredentialsResponse)
    assert [(each.user, each.error_code) for each in answer.results] == [
        ("a", ErrorCode.RESOURCE_NOT_FOUND),
        ("b", ErrorCode.DUPLICATE_RESOURCE),
    ]


def quorum_request(*asked: tuple[str, list[int]]) -> DescribeQuorumRequest:
    return DescribeQuorumRequest(
        topics=[
            TopicData(
                topic_name=topic,
                partitions=[PartitionData(partition_index=index) for index in indexes],
            )
            for topic, indexes in asked
        ]
    )


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_the_quorum_is_this_node_and_its_log_the_catalog(
    broker: Broker, client: Any, version: int
) -> None:
    ends = []
    for name in ("a", "b"):
        broker.topics.create(name)
        request = quorum_request(("__cluster_metadata", [0]))
        answer = await client.ask(request, version, DescribeQuorumResponse)
        ((partition,),) = [topic.partitions for topic in answer.topics]
        assert (partition.error_code, partition.leader_id) == (0, broker.node_id)
        (voter,) = partition.current_voters
        assert (voter.replica_id, voter.log_end_offset) == (1, partition.high_watermark)
        assert [node.node_id for node in answer.nodes] == ([1] if version >= 2 else [])
        ends.append(partition.high_watermark)
    assert ends[1] == ends[0] + 1


@pytest.mark.parametrize(
    "asked", [("a", [0]), ("__cluster_metadata", [1]), ("__cluster_metadata", [0, 0])]
)
async def test_nothing_else_has_a_quorum(client: Any, asked: tuple[str, list[int]]) -> None:
    answer = await client.ask(quorum_request(asked), 2, DescribeQuorumResponse)
    codes = [each.error_code for topic in answer.topics for each in topic.partitions]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * len(asked[1])


@pytest.mark.parametrize("version", [1, 2])
async def test_replicas_stay_in_the_one_directory(
    broker: Broker, client: Any, version: int
) -> None:
    broker.topics.create("a")
    for path, codes in (
        (str(broker.data_dir.absolute()), [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]),
        ("/elsewhere", [ErrorCode.LOG_DIR_NOT_FOUND] * 2),
        (".", [ErrorCode.LOG_DIR_NOT_FOUND] * 2),
    ):
        topics = [AlterReplicaLogDirTopic(name="a", partitions=[0, 7])]
        request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=topics)])
        answer = await client.ask(request, version, AlterReplicaLogDirsResponse)
        ((first, second),) = [topic.partitions for topic in answer.results]
        assert [first.error_code, second.error_code] == codes
