"""Requests where several nodes share a catalog: who leads, who coordinates, what changes where."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.broker import Broker
from magnetar.security.acls import Acl, Operation, Pattern, Permission, Resource
from magnetar.security.principal import user
from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_rows import ACLS_NAMED_MAX, AclRow
from tests.logstore.partitions import batch_of
from tests.magnetar.nodes_in_one import NodesInOne, two_of
from wire.error_code import ErrorCode
from wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)
from wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialUpsertion,
)
from wire.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    PartitionData,
    TopicData,
)
from wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wire.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[NodesInOne]:
    """Two nodes; with an authorizer that allows everything."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    async with two_of(NodesInOne(tmp_path / "data", settings)) as started:
        # Which knew of no later node's epoch when it started.
        await started.nodes[0].nodes.see_changes()
        yield started


def both(nodes: NodesInOne) -> list[Broker]:
    return [nodes.nodes[0], nodes.nodes[1]]


async def create(nodes: NodesInOne, node_id: int, topic: CreatableTopic) -> int:
    client = await nodes.client(node_id)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=5000)
    return (await client.ask(request, 7, CreateTopicsResponse)).topics[0].error_code


async def test_each_node_names_all_nodes_and_the_leader_of_each_partition(
    nodes: NodesInOne,
) -> None:
    seen = []
    for node_id in (0, 1):
        client = await nodes.client(node_id)
        asked = MetadataRequest(topics=[MetadataRequestTopic(name="a")])
        found = await client.ask(asked, 12, MetadataResponse)
        assert found.controller_id == 0
        addresses = {each.node_id: (each.host, each.port) for each in found.brokers}
        described = await client.ask(DescribeClusterRequest(), 0, DescribeClusterResponse)
        assert {each.broker_id: (each.host, each.port) for each in described.brokers} == addresses
        seen.append(
            (
                addresses,
                [
                    (each.leader_id, each.leader_epoch, each.replica_nodes)
                    for each in found.topics[0].partitions
                ],
            )
        )
    assert seen[0] == seen[1]
    addresses, partitions = seen[0]
    ports = [broker.listeners[0].port for broker in both(nodes)]
    assert addresses == {0: ("127.0.0.1", ports[0]), 1: ("127.0.0.1", ports[1])}
    assert sorted(leader for leader, _, _ in partitions) == [0, 0, 1, 1]
    epochs = {node_id: nodes.nodes[node_id].epoch for node_id in (0, 1)}
    assert all(epoch == epochs[leader] for leader, epoch, _ in partitions)
    assert all(replicas == [leader] for leader, _, replicas in partitions)


async def test_each_node_lists_the_configs_of_all_nodes(nodes: NodesInOne) -> None:
    for node_id in (0, 1):
        client = await nodes.client(node_id)
        asked = ListConfigResourcesRequest(resource_types=[4, 8])
        listed = await client.ask(asked, 1, ListConfigResourcesResponse)
        found = [(each.resource_name, each.resource_type) for each in listed.config_resources]
        assert sorted(found) == [("0", 4), ("0", 8), ("1", 4), ("1", 8)]


@pytest.mark.parametrize("key_type", [0, 1])
async def test_both_nodes_name_the_same_coordinators(nodes: NodesInOne, key_type: int) -> None:
    keys = [f"key-{number}" for number in range(20)]
    found = []
    for node_id in (0, 1):
        asked = FindCoordinatorRequest(key_type=key_type, coordinator_keys=keys)
        answer = await (await nodes.client(node_id)).ask(asked, 4, FindCoordinatorResponse)
        found.append([(each.node_id, each.port) for each in answer.coordinators])
    assert found[0] == found[1]
    assert {node_id for node_id, _ in found[0]} == {0, 1}


async def test_a_node_describes_its_transactions_beside_those_of_others(
    nodes: NodesInOne,
) -> None:
    ids = [nodes.transactional_id(node_id) for node_id in (0, 1)]
    for node_id, transactional_id in enumerate(ids):
        client = await nodes.client(node_id)
        asked = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=60_000
        )
        assert (await client.ask(asked, 4, InitProducerIdResponse)).error_code == 0
        described = await client.ask(
            DescribeTransactionsRequest(transactional_ids=ids), 0, DescribeTransactionsResponse
        )
        states = described.transaction_states
        assert {each.transactional_id: each.error_code for each in states} == {
            each: ErrorCode.NONE if each == transactional_id else ErrorCode.NOT_COORDINATOR
            for each in ids
        }


async def test_every_node_names_the_same_leader_of_the_metadata(nodes: NodesInOne) -> None:
    topic = TopicData(topic_name="__cluster_metadata", partitions=[PartitionData()])
    seen = []
    for node_id in (0, 1):
        await nodes.nodes[node_id].nodes.see_changes()
        client = await nodes.client(node_id)
        answer = await client.ask(DescribeQuorumRequest(topics=[topic]), 2, DescribeQuorumResponse)
        ((found,),) = [each.partitions for each in answer.topics]
        voters, observers = found.current_voters, found.observers
        assert {each.log_end_offset for each in (*voters, *observers)} == {found.high_watermark}
        ports = [each.port for node in answer.nodes for each in node.listeners]
        ids = [[each.replica_id for each in states] for states in (voters, observers)]
        seen.append((found.leader_id, found.leader_epoch, ids, ports))
    port = nodes.nodes[0].listeners[0].port
    assert seen == [(0, nodes.nodes[0].epoch, [[0], [1]], [port])] * 2


def produce(index: int) -> ProduceRequest:
    data = PartitionProduceData(index=index, records=batch_of(b"apple"))
    return ProduceRequest(
        acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name="a", partition_data=[data])]
    )


@pytest.mark.parametrize("version", [9, 10, 12])
async def test_a_produce_to_another_node_is_told_the_leader(
    nodes: NodesInOne, version: int
) -> None:
    client = await nodes.client(0)
    answer = await client.ask(produce(nodes.partition(1)), version, ProduceResponse)
    ((partition,),) = [topic.partition_responses for topic in answer.responses]
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    knows_leaders = version >= 10
    assert partition.current_leader.leader_id == (1 if knows_leaders else -1)
    port = nodes.nodes[1].listeners[0].port
    assert [(each.node_id, each.port) for each in answer.node_endpoints] == (
        [(1, port)] if knows_leaders else []
    )
    if knows_leaders:
        assert partition.current_leader.leader_epoch == nodes.nodes[1].epoch
    here = await client.ask(produce(nodes.partition(0)), version, ProduceResponse)
    assert here.responses[0].partition_responses[0].error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", [11, 16])
async def test_a_fetch_from_another_node_is_told_the_leader(
    nodes: NodesInOne, version: int
) -> None:
    asked = FetchPartition(partition=nodes.partition(1), partition_max_bytes=1000)
    topic_id = nodes.nodes[0].topics.ensure("a").id
    named = {"topic": "a"} if version < 13 else {"topic_id": topic_id}
    request = FetchRequest(topics=[FetchTopic(partitions=[asked], **named)], max_bytes=1000)
    answer = await (await nodes.client(0)).ask(request, version, FetchResponse)
    ((partition,),) = [topic.partitions for topic in answer.responses]
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.current_leader.leader_id == (1 if version >= 12 else -1)
    assert [each.node_id for each in answer.node_endpoints] == ([1] if version >= 16 else [])


async def test_a_group_of_another_node_is_refused(nodes: NodesInOne) -> None:
    group_id = nodes.group_id(1)
    request = HeartbeatRequest(group_id=group_id, member_id="m")
    answer = await (await nodes.client(0)).ask(request, 4, HeartbeatResponse)
    assert answer.error_code == ErrorCode.NOT_COORDINATOR
    answer = await (await nodes.client(1)).ask(request, 4, HeartbeatResponse)
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("node_id", [0, 1])
async def test_a_topic_is_made_grown_and_deleted_on_all_nodes_before_the_answer(
    nodes: NodesInOne, node_id: int
) -> None:
    topic = CreatableTopic(name="b", num_partitions=4, replication_factor=1)
    assert await create(nodes, node_id, topic) == ErrorCode.NONE
    assert [len(each.topics.ensure("b").local) for each in both(nodes)] == [2, 2]
    client = await nodes.client(node_id)
    growth = CreatePartitionsRequest(
        topics=[
            CreatePartitionsTopic(
                name="b",
                count=7,
                assignments=[CreatePartitionsAssignment(broker_ids=[1])] * 3,
            )
        ]
    )
    grown = await client.ask(growth, 3, CreatePartitionsResponse)
    assert grown.results[0].error_code == ErrorCode.NONE
    assert [len(each.topics.ensure("b").local) for each in both(nodes)] == [2, 5]
    logs = [log for each in both(nodes) for log in each.topics.ensure("b").local]
    gone = await client.ask(
        DeleteTopicsRequest(topic_names=["b"], timeout_ms=5000), 5, DeleteTopicsResponse
    )
    assert gone.responses[0].error_code == ErrorCode.NONE
    assert all(each.topics.by_name("b") is None for each in both(nodes))
    assert len(logs) == 7 and all(log.is_gone for log in logs)


async def test_an_assignment_names_the_leader_of_each_partition(nodes: NodesInOne) -> None:
    def topic(*replicas: list[int]) -> CreatableTopic:
        assignments = [
            CreatableReplicaAssignment(partition_index=index, broker_ids=broker_ids)
            for index, broker_ids in enumerate(replicas)
        ]
        return CreatableTopic(
            name="b", num_partitions=-1, replication_factor=-1, assignments=assignments
        )

    assert await create(nodes, 0, topic([1], [7])) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert await create(nodes, 0, topic([1], [])) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert await create(nodes, 0, topic([1], [1, 1])) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert await create(nodes, 0, topic([1], [0, 1])) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert await create(nodes, 0, topic([0, 1])) == ErrorCode.INVALID_REPLICATION_FACTOR
    assert await create(nodes, 0, topic([1], [0], [1])) == ErrorCode.NONE
    for each in both(nodes):
        assert [each.nodes.leader_of("b", index) for index in range(4)] == [1, 0, 1, None]


async def test_of_two_topics_of_one_name_made_at_once_there_is_one(nodes: NodesInOne) -> None:
    topic = CreatableTopic(name="b", num_partitions=2, replication_factor=1)
    codes = await asyncio.gather(create(nodes, 0, topic), create(nodes, 1, topic))
    assert sorted(codes) == [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS]
    first, second = (each.topics.by_name("b") for each in both(nodes))
    assert first is not None and second is not None and first.id == second.id


async def test_settings_of_a_topic_are_obeyed_by_all_nodes(nodes: NodesInOne) -> None:
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=2,
                resource_name="a",
                configs=[AlterableConfig(name="retention.ms", value="5")],
            )
        ]
    )
    client = await nodes.client(1)
    answer = await client.ask(request, 1, IncrementalAlterConfigsResponse)
    assert answer.responses[0].error_code == ErrorCode.NONE
    for each in both(nodes):
        assert {log.config.retention_ms for log in each.topics.ensure("a").local} == {5}


async def test_settings_of_every_broker_and_of_groups_are_obeyed_by_all_nodes(
    nodes: NodesInOne,
) -> None:
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=4,
                resource_name="",
                configs=[AlterableConfig(name="log.retention.ms", value="7")],
            ),
            AlterConfigsResource(
                resource_type=32,
                resource_name="g",
                configs=[AlterableConfig(name="consumer.session.timeout.ms", value="50000")],
            ),
        ]
    )
    answer = await (await nodes.client(1)).ask(request, 1, IncrementalAlterConfigsResponse)
    assert {each.error_code for each in answer.responses} == {ErrorCode.NONE}
    for each in both(nodes):
        assert {log.config.retention_ms for log in each.topics.ensure("a").local} == {7}
        assert each.stored_configs.texts(32, "g") == {"consumer.session.timeout.ms": "50000"}


async def test_quotas_users_and_acls_are_known_to_all_nodes(nodes: NodesInOne) -> None:
    client = await nodes.client(1)
    entry = EntryData(
        entity=[EntityData(entity_type="client-id", entity_name="c")],
        ops=[OpData(key="producer_byte_rate", value=1000.0)],
    )
    await client.ask(AlterClientQuotasRequest(entries=[entry]), 1, AlterClientQuotasResponse)
    user = ScramCredentialUpsertion(
        name="ada", mechanism=1, iterations=4096, salt=b"salt", salted_password=b"p" * 32
    )
    await client.ask(
        AlterUserScramCredentialsRequest(upsertions=[user]), 0, AlterUserScramCredentialsResponse
    )
    rule = AclCreation(
        resource_type=2,
        resource_name="a",
        resource_pattern_type=3,
        principal="User:ada",
        host="*",
        operation=3,
        permission_type=3,
    )
    made = await client.ask(CreateAclsRequest(creations=[rule]), 3, CreateAclsResponse)
    assert made.results[0].error_code == ErrorCode.NONE
    for each in both(nodes):
        assert each.client_quotas.of((("client-id", "c"),)) == {"producer_byte_rate": 1000.0}
        assert [*each.authentication.credentials.users()] == ["ada"]
        assert each.acls is not None and len(each.acls.all()) == 1


async def test_a_node_reads_no_other_acls_than_those_that_have_changed(
    nodes: NodesInOne, monkeypatch: pytest.MonkeyPatch
) -> None:
    def acl(number: int) -> Acl:
        here = Resource.TOPIC, f"t{number}", Pattern.LITERAL
        return Acl(*here, "User:ada", "*", Operation.READ, Permission.ALLOW)

    one, other = both(nodes)
    assert one.acls is not None and other.acls is not None
    assert one.watch is not None and other.watch is not None
    many = [acl(number) for number in range(ACLS_NAMED_MAX + 1)]
    one.acls.add(many)
    # Both: a node reads its own changes too, and these are too many to be named.
    await one.watch.catch_up()
    await other.watch.catch_up()
    assert {*other.acls.all()} == {*many}
    read = Catalog.acls

    def named(self: Catalog, *rows: AclRow) -> list[AclRow]:
        assert rows, "none named would be all"
        return read(self, *rows)

    with monkeypatch.context() as patch:
        patch.setattr(Catalog, "acls", named)
        one.acls.add([acl(1_000), acl(1_001)])
        one.acls.remove([acl(0), acl(1_001)])
        await other.watch.catch_up()
    assert {*other.acls.all()} == {*many[1:], acl(1_000)}
    rights = user("ada"), "10.0.0.1", Operation.READ, Resource.TOPIC
    assert not other.acls.authorizer.allows(*rights, "t0")
    assert other.acls.authorizer.allows(*rights, "t1000")
    one.acls.remove(many[1:])
    await other.watch.catch_up()
    assert other.acls.all() == (acl(1_000),)


async def test_a_node_that_starts_again_has_a_higher_epoch_everywhere(nodes: NodesInOne) -> None:
    before = nodes.nodes[1].epoch
    await nodes.kill(1)
    again = await nodes.start_node(1)
    assert again.epoch > before
    await nodes.nodes[0].nodes.see_changes()
    index = nodes.partition(1)
    assert nodes.nodes[0].topics.ensure("a").partitions[index].leader_epoch == again.epoch


async def test_what_happens_while_a_node_is_away_it_finds_at_its_start(nodes: NodesInOne) -> None:
    await nodes.kill(1)
    topic = CreatableTopic(name="b", num_partitions=4, replication_factor=1)
    assert await create(nodes, 0, topic) == ErrorCode.NONE
    gone = await (await nodes.client(0)).ask(
        DeleteTopicsRequest(topic_names=["a"], timeout_ms=5000), 5, DeleteTopicsResponse
    )
    assert gone.responses[0].error_code == ErrorCode.NONE
    again = await nodes.start_node(1)
    assert again.topics.by_name("a") is None
    assert len(again.topics.ensure("b").local) == 2
    assert [each.topic for each in again.logs.found()] == []
