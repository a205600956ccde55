"""Requests of every kind that need a right, as a client without any sends them.

Each asks for, or would change, what other clients of the history work with: their topics, groups
and transactions. What they would write is found by its value, `intruder`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from random import Random
from typing import NamedTuple
from uuid import UUID

from wire.error_code import ErrorCode
from wire.message import Message
from wire.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_user_scram_credentials,
    consumer_group_heartbeat,
    create_acls,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_configs,
    describe_groups,
    describe_producers,
    describe_transactions,
    end_txn,
    fetch,
    find_coordinator,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    txn_offset_commit,
)
from wire.records import SimpleRecord, build_batch

#: What an intruder's records would hold.
VALUE = b"intruder"
_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
_TXN = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class Forbidden(NamedTuple):
    """A request, and the error of a client without the right; NONE: it is told of nothing."""

    request: Message
    version: int
    code: ErrorCode

    @property
    def response_class(self) -> type[Message]:
        """The class of the answer."""
        kind = type(self.request)
        name = kind.__name__.removesuffix("Request") + "Response"
        found: type[Message] = vars(sys.modules[kind.__module__])[name]
        return found


class Target(NamedTuple):
    """What a request is about."""

    random: Random
    topic: str
    topic_id: UUID
    group_id: str
    transactional_id: str
    partition: int = 0

    def producer_id(self) -> int:
        """Return the id of a producer that may exist."""
        return self.random.randrange(20)

    def producer_epoch(self) -> int:
        """Return the epoch that it may have."""
        return self.random.randrange(4)


def any_forbidden(target: Target) -> Forbidden:
    """Return one of the requests, drawn by chance."""
    return target.random.choice(_KINDS)(target)


def reading(target: Target, max_wait_ms: int) -> Forbidden:
    """Return a request for which READ on the topic is enough."""
    random = target.random
    kinds = (_fetch, _fetch, _fetch_by_id, _fetch_by_id, _list_offsets, _metadata, _epoch)
    found = random.choice(kinds)(target)
    if isinstance(found.request, fetch.FetchRequest):
        found.request.max_wait_ms = max_wait_ms
        found.request.min_bytes = random.choice((1, 100_000))
    return found


def writing(target: Target, value: bytes) -> Forbidden:
    """Return a request for which WRITE on the topic is enough."""
    batch = build_batch([SimpleRecord(b"k", value, 1_700_000_000_000)])
    return _produced(target, batch, None, _TOPIC)


def _produce(target: Target) -> Forbidden:
    return writing(target, VALUE)


def _produce_in_transaction(target: Target) -> Forbidden:
    record = SimpleRecord(b"k", VALUE, 1_700_000_000_000)
    batch = build_batch(
        [record],
        producer_id=target.producer_id(),
        producer_epoch=target.producer_epoch(),
        base_sequence=0,
        is_transactional=True,
    )
    return _produced(target, batch, target.transactional_id, _TXN)


def _produced(
    target: Target, batch: bytearray, transactional_id: str | None, code: ErrorCode
) -> Forbidden:
    data = produce.PartitionProduceData(index=target.partition, records=batch)
    request = produce.ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[produce.TopicProduceData(name=target.topic, partition_data=[data])],
    )
    return Forbidden(request, 9, code)


def _fetched(target: Target) -> list[fetch.FetchPartition]:
    partition = target.partition
    return [fetch.FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=100_000)]


def _fetch(target: Target) -> Forbidden:
    topic = fetch.FetchTopic(topic=target.topic, partitions=_fetched(target))
    return _fetched_of(target, topic, 12)


def _fetch_by_id(target: Target) -> Forbidden:
    topic = fetch.FetchTopic(topic_id=target.topic_id, partitions=_fetched(target))
    return _fetched_of(target, topic, 16)


def _fetched_of(target: Target, topic: fetch.FetchTopic, version: int) -> Forbidden:
    random = target.random
    request = fetch.FetchRequest(
        max_wait_ms=random.choice((0, 300)),
        min_bytes=1,
        max_bytes=100_000,
        isolation_level=random.randrange(2),
        # A session, or none.
        session_epoch=random.choice((0, -1)),
        topics=[topic],
    )
    return Forbidden(request, version, _TOPIC)


def _list_offsets(target: Target) -> Forbidden:
    partition = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
    topic = list_offsets.ListOffsetsTopic(name=target.topic, partitions=[partition])
    return Forbidden(list_offsets.ListOffsetsRequest(topics=[topic]), 7, _TOPIC)


def _metadata(target: Target) -> Forbidden:
    topic = metadata.MetadataRequestTopic(name=target.topic)
    return Forbidden(metadata.MetadataRequest(topics=[topic]), 12, _TOPIC)


def _all_metadata(_: Target) -> Forbidden:
    return Forbidden(metadata.MetadataRequest(topics=None), 12, ErrorCode.NONE)


def _epoch(target: Target) -> Forbidden:
    partition = offset_for_leader_epoch.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    topic = offset_for_leader_epoch.OffsetForLeaderTopic(topic=target.topic, partitions=[partition])
    request = offset_for_leader_epoch.OffsetForLeaderEpochRequest(topics=[topic])
    return Forbidden(request, 4, _TOPIC)


def _offset_fetch(target: Target) -> Forbidden:
    group = offset_fetch.OffsetFetchRequestGroup(group_id=target.group_id, topics=None)
    return Forbidden(offset_fetch.OffsetFetchRequest(groups=[group]), 8, _GROUP)


def _offset_commit(target: Target) -> Forbidden:
    made = offset_commit.OffsetCommitRequestPartition
    partitions = [made(partition_index=index, committed_offset=0) for index in range(2)]
    topic = offset_commit.OffsetCommitRequestTopic(name=target.topic, partitions=partitions)
    request = offset_commit.OffsetCommitRequest(group_id=target.group_id, topics=[topic])
    return Forbidden(request, 8, _GROUP)


def _txn_offset_commit(target: Target) -> Forbidden:
    partition = txn_offset_commit.TxnOffsetCommitRequestPartition(committed_offset=0)
    topic = txn_offset_commit.TxnOffsetCommitRequestTopic(name="in", partitions=[partition])
    request = txn_offset_commit.TxnOffsetCommitRequest(
        transactional_id=target.transactional_id,
        group_id=target.group_id,
        producer_id=target.producer_id(),
        producer_epoch=target.producer_epoch(),
        topics=[topic],
    )
    return Forbidden(request, 3, _TXN)


def _end_txn(target: Target) -> Forbidden:
    request = end_txn.EndTxnRequest(
        transactional_id=target.transactional_id,
        producer_id=target.producer_id(),
        producer_epoch=target.producer_epoch(),
        committed=target.random.random() < 0.5,
    )
    return Forbidden(request, target.random.choice((3, 4, 5)), _TXN)


def _add_partitions(target: Target) -> Forbidden:
    topic = add_partitions_to_txn.AddPartitionsToTxnTopic(name="a", partitions=[0])
    request = add_partitions_to_txn.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=target.transactional_id,
        v3_and_below_producer_id=target.producer_id(),
        v3_and_below_producer_epoch=target.producer_epoch(),
        v3_and_below_topics=[topic],
    )
    return Forbidden(request, 3, _TXN)


def _add_offsets(target: Target) -> Forbidden:
    request = add_offsets_to_txn.AddOffsetsToTxnRequest(
        transactional_id=target.transactional_id,
        producer_id=target.producer_id(),
        producer_epoch=target.producer_epoch(),
        group_id=target.group_id,
    )
    return Forbidden(request, 3, _TXN)


def _init_producer_id(target: Target) -> Forbidden:
    is_transactional = target.random.random() < 0.7
    request = init_producer_id.InitProducerIdRequest(
        transactional_id=target.transactional_id if is_transactional else None,
        transaction_timeout_ms=1_000,
    )
    return Forbidden(request, 4, _TXN if is_transactional else _CLUSTER)


def _delete_topics(target: Target) -> Forbidden:
    if target.random.random() < 0.5:
        request = delete_topics.DeleteTopicsRequest(topic_names=[target.topic])
        return Forbidden(request, 5, _TOPIC)
    state = delete_topics.DeleteTopicState(topic_id=target.topic_id)
    return Forbidden(delete_topics.DeleteTopicsRequest(topics=[state]), 6, _TOPIC)


def _delete_records(target: Target) -> Forbidden:
    partition = delete_records.DeleteRecordsPartition(partition_index=0, offset=-1)
    topic = delete_records.DeleteRecordsTopic(name=target.topic, partitions=[partition])
    return Forbidden(delete_records.DeleteRecordsRequest(topics=[topic]), 2, _TOPIC)


def _create_topics(_: Target) -> Forbidden:
    topic = create_topics.CreatableTopic(name="intruder", num_partitions=1, replication_factor=1)
    return Forbidden(create_topics.CreateTopicsRequest(topics=[topic]), 7, _TOPIC)


def _create_partitions(target: Target) -> Forbidden:
    topic = create_partitions.CreatePartitionsTopic(name=target.topic, count=9, assignments=None)
    return Forbidden(create_partitions.CreatePartitionsRequest(topics=[topic]), 3, _TOPIC)


def _describe_configs(target: Target) -> Forbidden:
    of_broker = target.random.random() < 0.3
    resource = describe_configs.DescribeConfigsResource(
        resource_type=4 if of_broker else 2,
        resource_name="1" if of_broker else target.topic,
        configuration_keys=None,
    )
    request = describe_configs.DescribeConfigsRequest(resources=[resource])
    return Forbidden(request, 4, _CLUSTER if of_broker else _TOPIC)


def _alter_configs(target: Target) -> Forbidden:
    config = incremental_alter_configs.AlterableConfig(name="retention.bytes", value="1")
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=2, resource_name=target.topic, configs=[config]
    )
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])
    return Forbidden(request, 1, _TOPIC)


def _join_group(target: Target) -> Forbidden:
    protocol = join_group.JoinGroupRequestProtocol(name="range", metadata=b"")
    request = join_group.JoinGroupRequest(
        group_id=target.group_id,
        session_timeout_ms=1_000,
        rebalance_timeout_ms=1_000,
        protocol_type="consumer",
        protocols=[protocol],
    )
    return Forbidden(request, 5, _GROUP)


def _heartbeat(target: Target) -> Forbidden:
    request = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
        group_id=target.group_id,
        member_id="intruder",
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=[target.topic],
        topic_partitions=[],
    )
    return Forbidden(request, 1, _GROUP)


def _leave_group(target: Target) -> Forbidden:
    member = leave_group.MemberIdentity(member_id="member0")
    request = leave_group.LeaveGroupRequest(group_id=target.group_id, members=[member])
    return Forbidden(request, 5, _GROUP)


def _describe_groups(target: Target) -> Forbidden:
    request = describe_groups.DescribeGroupsRequest(groups=[target.group_id])
    return Forbidden(request, 5, _GROUP)


def _delete_groups(target: Target) -> Forbidden:
    request = delete_groups.DeleteGroupsRequest(groups_names=[target.group_id])
    return Forbidden(request, 2, _GROUP)


def _offset_delete(target: Target) -> Forbidden:
    partition = offset_delete.OffsetDeleteRequestPartition(partition_index=0)
    topic = offset_delete.OffsetDeleteRequestTopic(name=target.topic, partitions=[partition])
    request = offset_delete.OffsetDeleteRequest(group_id=target.group_id, topics=[topic])
    return Forbidden(request, 0, _GROUP)


def _list_groups(_: Target) -> Forbidden:
    return Forbidden(list_groups.ListGroupsRequest(), 4, ErrorCode.NONE)


def _list_transactions(_: Target) -> Forbidden:
    return Forbidden(list_transactions.ListTransactionsRequest(), 0, ErrorCode.NONE)


def _describe_transactions(target: Target) -> Forbidden:
    ids = [target.transactional_id]
    request = describe_transactions.DescribeTransactionsRequest(transactional_ids=ids)
    return Forbidden(request, 0, _TXN)


def _describe_producers(target: Target) -> Forbidden:
    topic = describe_producers.TopicRequest(name=target.topic, partition_indexes=[0])
    return Forbidden(describe_producers.DescribeProducersRequest(topics=[topic]), 0, _TOPIC)


def _find_coordinator(target: Target) -> Forbidden:
    of_group = target.random.random() < 0.5
    key = target.group_id if of_group else target.transactional_id
    request = find_coordinator.FindCoordinatorRequest(
        key_type=int(not of_group), coordinator_keys=[key]
    )
    return Forbidden(request, 4, _GROUP if of_group else _TXN)


def _create_acls(_: Target) -> Forbidden:
    creation = create_acls.AclCreation(
        resource_type=2,
        resource_name="*",
        principal="User:*",
        host="*",
        operation=2,
        permission_type=3,
    )
    return Forbidden(create_acls.CreateAclsRequest(creations=[creation]), 3, _CLUSTER)


def _describe_acls(_: Target) -> Forbidden:
    request = describe_acls.DescribeAclsRequest(
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    return Forbidden(request, 3, _CLUSTER)


def _alter_credentials(_: Target) -> Forbidden:
    upsertion = alter_user_scram_credentials.ScramCredentialUpsertion(
        name="admin", mechanism=1, iterations=4096, salt=b"salt", salted_password=b"p" * 32
    )
    request = alter_user_scram_credentials.AlterUserScramCredentialsRequest(upsertions=[upsertion])
    return Forbidden(request, 0, _CLUSTER)


_KINDS: tuple[Callable[[Target], Forbidden], ...] = (
    _produce,
    _produce_in_transaction,
    _fetch,
    _fetch_by_id,
    _list_offsets,
    _metadata,
    _all_metadata,
    _epoch,
    _offset_fetch,
    _offset_commit,
    _txn_offset_commit,
    _end_txn,
    _add_partitions,
    _add_offsets,
    _init_producer_id,
    _delete_topics,
    _delete_records,
    _create_topics,
    _create_partitions,
    _describe_configs,
    _alter_configs,
    _join_group,
    _heartbeat,
    _leave_group,
    _describe_groups,
    _delete_groups,
    _offset_delete,
    _list_groups,
    _list_transactions,
    _describe_transactions,
    _describe_producers,
    _find_coordinator,
    _create_acls,
    _describe_acls,
    _alter_credentials,
)
