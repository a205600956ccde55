"""Requests that name very much: their handlers give up the turn between two of the things."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from logstore.partition.producer_state import ProducerState
from magnetar.apis import authorization
from magnetar.broker import Broker
from magnetar.runtime.large_messages import LARGE_MESSAGES
from magnetar.security.acls import Acl, Operation, Pattern, Permission, Resource
from magnetar.storage.acls import STANDARD_AUTHORIZER
from magnetar.storage.leaders import local
from tests.magnetar.conftest import RawClient, StartBroker
from wire.message import Message
from wire.messages import (
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_user_scram_credentials,
    consumer_group_describe,
    consumer_group_heartbeat,
    delete_groups,
    delete_records,
    delete_topics,
    describe_groups,
    describe_producers,
    describe_quorum,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    incremental_alter_configs,
    leave_group,
    list_offsets,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    write_txn_markers,
)
from wire.resource_type import ResourceType

COUNT = 400
#: So many that their pieces are COUNT // 100 at least.
MANY = 4000
NAMES = [f"there-is-none-{number}" for number in range(COUNT)]
INDEXES = list(range(COUNT))

#: Each with its version. One list of the request is long, and all of it is refused.
LONG: list[tuple[Message, int]] = [
    (delete_groups.DeleteGroupsRequest(groups_names=NAMES), 2),
    (consumer_group_describe.ConsumerGroupDescribeRequest(group_ids=NAMES), 0),
    (
        consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
            group_id="unknown", member_id="m", member_epoch=7, subscribed_topic_names=NAMES
        ),
        1,
    ),
    (describe_groups.DescribeGroupsRequest(groups=NAMES), 6),
    (
        elect_leaders.ElectLeadersRequest(
            topic_partitions=[
                elect_leaders.TopicPartitions(topic=NAMES[0], partitions=INDEXES),
            ]
        ),
        2,
    ),
    (
        describe_producers.DescribeProducersRequest(
            topics=[describe_producers.TopicRequest(name=NAMES[0], partition_indexes=INDEXES)]
        ),
        0,
    ),
    (
        offset_for_leader_epoch.OffsetForLeaderEpochRequest(
            topics=[
                offset_for_leader_epoch.OffsetForLeaderTopic(
                    topic=NAMES[0],
                    partitions=[
                        offset_for_leader_epoch.OffsetForLeaderPartition(partition=index)
                        for index in INDEXES
                    ],
                )
            ]
        ),
        4,
    ),
    (
        list_offsets.ListOffsetsRequest(
            topics=[
                list_offsets.ListOffsetsTopic(
                    name=NAMES[0],
                    partitions=[
                        list_offsets.ListOffsetsPartition(partition_index=index)
                        for index in INDEXES
                    ],
                )
            ]
        ),
        7,
    ),
    (
        delete_records.DeleteRecordsRequest(
            topics=[
                delete_records.DeleteRecordsTopic(
                    name=NAMES[0],
                    partitions=[
                        delete_records.DeleteRecordsPartition(partition_index=index)
                        for index in INDEXES
                    ],
                )
            ]
        ),
        2,
    ),
    (delete_topics.DeleteTopicsRequest(topic_names=NAMES), 5),
    (
        alter_configs.AlterConfigsRequest(
            resources=[
                alter_configs.AlterConfigsResource(
                    resource_type=ResourceType.TOPIC, resource_name=name
                )
                for name in NAMES
            ]
        ),
        2,
    ),
    (
        incremental_alter_configs.IncrementalAlterConfigsRequest(
            resources=[
                incremental_alter_configs.AlterConfigsResource(
                    resource_type=ResourceType.TOPIC, resource_name=name
                )
                for name in NAMES
            ]
        ),
        1,
    ),
    (
        alter_partition_reassignments.AlterPartitionReassignmentsRequest(
            topics=[
                alter_partition_reassignments.ReassignableTopic(
                    name=NAMES[0],
                    partitions=[
                        alter_partition_reassignments.ReassignablePartition(partition_index=index)
                        for index in INDEXES
                    ],
                )
            ]
        ),
        0,
    ),
    (
        describe_user_scram_credentials.DescribeUserScramCredentialsRequest(
            users=[describe_user_scram_credentials.UserName(name=name) for name in NAMES]
        ),
        0,
    ),
    (
        alter_user_scram_credentials.AlterUserScramCredentialsRequest(
            deletions=[
                alter_user_scram_credentials.ScramCredentialDeletion(name=name, mechanism=1)
                for name in NAMES
            ]
        ),
        0,
    ),
    (
        alter_client_quotas.AlterClientQuotasRequest(
            entries=[
                alter_client_quotas.EntryData(
                    entity=[alter_client_quotas.EntityData(entity_type="nope", entity_name=name)]
                )
                for name in NAMES
            ]
        ),
        1,
    ),
    (
        offset_fetch.OffsetFetchRequest(
            group_id="unknown",
            topics=[
                offset_fetch.OffsetFetchRequestTopic(name=name, partition_indexes=[0])
                for name in NAMES
            ],
        ),
        7,
    ),
    (
        offset_fetch.OffsetFetchRequest(
            groups=[
                offset_fetch.OffsetFetchRequestGroup(
                    group_id="unknown",
                    topics=[
                        offset_fetch.OffsetFetchRequestTopics(name=name, partition_indexes=[0])
                        for name in NAMES
                    ],
                )
            ]
        ),
        9,
    ),
    (
        offset_fetch.OffsetFetchRequest(
            groups=[
                offset_fetch.OffsetFetchRequestGroup(group_id=name, topics=[]) for name in NAMES
            ]
        ),
        9,
    ),
    (
        add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="unknown",
            v3_and_below_topics=[
                add_partitions_to_txn.AddPartitionsToTxnTopic(name=name, partitions=[0])
                for name in NAMES
            ],
        ),
        3,
    ),
    # One thing of the request has a long list, which is gone through piece by piece.
    (
        add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="unknown",
            v3_and_below_topics=[
                add_partitions_to_txn.AddPartitionsToTxnTopic(
                    name=NAMES[0], partitions=list(range(MANY))
                )
            ],
        ),
        3,
    ),
    (
        add_partitions_to_txn.AddPartitionsToTxnRequest(
            transactions=[
                add_partitions_to_txn.AddPartitionsToTxnTransaction(transactional_id=name)
                for name in NAMES
            ]
        ),
        5,
    ),
    (
        offset_fetch.OffsetFetchRequest(
            group_id="unknown",
            topics=[
                offset_fetch.OffsetFetchRequestTopic(
                    name=NAMES[0], partition_indexes=list(range(MANY))
                )
            ],
        ),
        3,
    ),
    (delete_topics.DeleteTopicsRequest(topic_names=NAMES[:1] * MANY), 3),
    (
        offset_delete.OffsetDeleteRequest(
            group_id="unknown",
            topics=[
                offset_delete.OffsetDeleteRequestTopic(
                    name=NAMES[0],
                    partitions=[
                        offset_delete.OffsetDeleteRequestPartition(partition_index=index)
                        for index in range(MANY)
                    ],
                )
            ],
        ),
        0,
    ),
    (
        leave_group.LeaveGroupRequest(
            group_id="unknown",
            members=[leave_group.MemberIdentity(member_id=NAMES[0]) for _ in range(MANY)],
        ),
        5,
    ),
    (
        describe_quorum.DescribeQuorumRequest(
            topics=[
                describe_quorum.TopicData(
                    topic_name=NAMES[0],
                    partitions=[
                        describe_quorum.PartitionData(partition_index=index)
                        for index in range(MANY)
                    ],
                )
            ]
        ),
        2,
    ),
    (
        incremental_alter_configs.IncrementalAlterConfigsRequest(
            resources=[
                incremental_alter_configs.AlterConfigsResource(
                    resource_type=ResourceType.TOPIC,
                    resource_name=NAMES[0],
                    configs=[
                        incremental_alter_configs.AlterableConfig(name=str(number))
                        for number in range(MANY)
                    ],
                )
            ]
        ),
        1,
    ),
    (describe_transactions.DescribeTransactionsRequest(transactional_ids=NAMES), 0),
    *(
        (alter_replica_log_dirs.AlterReplicaLogDirsRequest(dirs=dirs), 1)
        for dirs in (
            [
                alter_replica_log_dirs.AlterReplicaLogDir(
                    path="/elsewhere",
                    topics=[
                        alter_replica_log_dirs.AlterReplicaLogDirTopic(
                            name=NAMES[0], partitions=list(range(MANY))
                        )
                    ],
                )
            ],
            [alter_replica_log_dirs.AlterReplicaLogDir(path=name) for name in NAMES],
        )
    ),
    (
        write_txn_markers.WriteTxnMarkersRequest(
            markers=[
                write_txn_markers.WritableTxnMarker(
                    producer_id=7,
                    topics=[
                        write_txn_markers.WritableTxnMarkerTopic(name=name, partition_indexes=[0])
                    ],
                )
                for name in NAMES
            ]
        ),
        1,
    ),
    *(
        (
            write_txn_markers.WriteTxnMarkersRequest(
                markers=[
                    write_txn_markers.WritableTxnMarker(
                        producer_id=7,
                        topics=[
                            write_txn_markers.WritableTxnMarkerTopic(
                                name=name, partition_indexes=list(indexes)
                            )
                            for name, indexes in topics
                        ],
                    )
                ]
            ),
            1,
        )
        for topics in ([(NAMES[0], INDEXES)], [(name, [0]) for name in NAMES])
    ),
]


@pytest.mark.parametrize(
    ("request_", "version"), LONG, ids=lambda each: getattr(type(each), "__name__", each)
)
async def test_a_long_list_is_gone_through_in_turns(
    client: RawClient, given_up: list[None], request_: Message, version: int
) -> None:
    client.send(request_, version)
    await client.receive()
    assert len(given_up) >= COUNT // 100


async def test_what_a_client_may_not_do_is_looked_up_in_turns(
    start_broker: StartBroker,
    connect: Callable[[Broker], Awaitable[RawClient]],
    given_up: list[None],
) -> None:
    broker = await start_broker({"authorizer.class.name": STANDARD_AUTHORIZER})
    client = await connect(broker)
    topics = [
        list_offsets.ListOffsetsTopic(
            name=f"secret-{number}", partitions=[list_offsets.ListOffsetsPartition()]
        )
        for number in range(MANY)
    ]
    request = list_offsets.ListOffsetsRequest(topics=topics)
    response = await client.ask(request, 7, list_offsets.ListOffsetsResponse)
    assert {each.partitions[0].error_code for each in response.topics} == {29}
    assert len(response.topics) == MANY
    # The handler has nothing left to do.
    assert len(given_up) >= MANY // 1000


READERS = Acl(
    Resource.GROUP, "readers", Pattern.LITERAL, "User:*", "*", Operation.READ, Permission.ALLOW
)


def offset_commits(topics: int, partitions: int) -> offset_commit.OffsetCommitRequest:
    offset = offset_commit.OffsetCommitRequestPartition(committed_offset=1)
    return offset_commit.OffsetCommitRequest(
        group_id="readers",
        topics=[
            offset_commit.OffsetCommitRequestTopic(
                name=f"secret-{number}", partitions=[offset] * partitions
            )
            for number in range(topics)
        ],
    )


@pytest.mark.parametrize(
    ("topics", "partitions"), [(100, 1), (COUNT, 1), (MANY, 1), (1, 100), (1, MANY), (100, 100)]
)
async def test_much_that_is_denied_is_refused_in_a_thread(
    start_broker: StartBroker,
    connect: Callable[[Broker], Awaitable[RawClient]],
    monkeypatch: pytest.MonkeyPatch,
    topics: int,
    partitions: int,
) -> None:
    """Of a handler without turns: it has begun before what is denied is refused."""
    in_thread: list[object] = []

    class Noted:
        async def run(self, refuse: Callable[[], Message]) -> Message:
            in_thread.append(refuse)
            return await LARGE_MESSAGES.run(refuse)

    monkeypatch.setattr(authorization, "LARGE_MESSAGES", Noted())
    broker = await start_broker({"authorizer.class.name": STANDARD_AUTHORIZER})
    assert broker.acls is not None
    broker.acls.add([READERS])
    client = await connect(broker)
    request = offset_commits(topics, partitions)
    response = await client.ask(request, 7, offset_commit.OffsetCommitResponse)
    codes = [each.error_code for topic in response.topics for each in topic.partitions]
    assert codes == [29] * (topics * partitions)
    assert len(response.topics) == topics
    assert len(in_thread) == (topics * partitions > 256)


async def test_many_producers_of_one_partition_are_described_in_turns(
    client: RawClient, broker: Broker, given_up: list[None]
) -> None:
    log = local(broker.topics.ensure("t").partitions)[0]
    count = 2_200
    for producer_id in range(count):
        log.producers[producer_id] = ProducerState(0)
    request = describe_producers.DescribeProducersRequest(
        topics=[describe_producers.TopicRequest(name="t", partition_indexes=[0])]
    )
    described = await client.ask(request, 0, describe_producers.DescribeProducersResponse)
    assert len(described.topics[0].partitions[0].active_producers) == count
    # Pieces of 256.
    assert len(given_up) >= 4
