"""A cluster that answers the console's questions from values, without a socket.

It speaks messages, not functions: the client between it and the pages is the real one. There is one
node, which coordinates everything, unless a test has others beside it: these lead partitions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from magnetar.client import Client, ClientError, Refused, Unreachable
from magnetar.client.errors import Silent
from magnetar.client.security import PLAINTEXT, Security
from tests.magnetar.console import fake_changes
from tests.magnetar.console.fake_partition import Partition
from wire.error_code import ErrorCode
from wire.message import Message
from wire.messages import (
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_transactions,
    describe_user_scram_credentials,
    fetch,
    find_coordinator,
    init_producer_id,
    list_groups,
    list_offsets,
    list_transactions,
    metadata,
    offset_fetch,
    produce,
)
from wire.records import iterate_batches, place

NODE = 1
_PORT = 9092
_OF_COORDINATORS = (list_groups.ListGroupsRequest, list_transactions.ListTransactionsRequest)
_COMMITTED = 1
LATEST, EARLIEST = -1, -2


@dataclass
class Transaction:
    """A transactional id at its coordinator."""

    producer_id: int
    state: str = "Ongoing"
    epoch: int = 0
    started_ms: int = 1_000
    partitions: list[tuple[str, int]] = field(default_factory=list)
    tags: tuple[tuple[int, bytes], ...] = ()


@dataclass
class Group:
    """A group of the classic protocol, or one of another type that is listed alone."""

    state: str = "Stable"
    committed: dict[tuple[str, int], int] = field(default_factory=dict)
    members: list[describe_groups.DescribedGroupMember] = field(default_factory=list)
    #: How many questions for its offsets find that its coordinator loads it.
    loading: int = 0
    kind: str = "classic"


@dataclass
class World:
    """What the cluster holds, and how it fails."""

    topics: dict[str, list[Partition]] = field(default_factory=dict)
    transactions: dict[str, Transaction] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    #: User and password, where the cluster wants them.
    users: dict[str, str] = field(default_factory=dict)
    is_down: bool = False
    nodes: tuple[int, ...] = (NODE,)
    #: Nodes that are connected to and do not answer.
    silent: set[int] = field(default_factory=set)
    #: How often one of these was waited for.
    waits: int = 0
    #: Requests that the visitor's ACLs do not allow.
    forbidden: set[type[Message]] = field(default_factory=set)
    asked: list[Message] = field(default_factory=list)
    aborts: list[str] = field(default_factory=list)
    trims: dict[tuple[str, int], int] = field(default_factory=dict)
    #: What was changed of settings.
    settings: dict[str, str | None] = field(default_factory=dict)
    #: Requests during which the cluster goes away.
    fatal: set[type[Message]] = field(default_factory=set)

    def partition(self, topic: str, index: int = 0) -> Partition:
        partitions = self.topics.setdefault(topic, [])
        while len(partitions) <= index:
            partitions.append(Partition())
        return partitions[index]


class FakeConnection:
    """Stands in for `magnetar.client.connection.Connection`."""

    is_usable = True

    def __init__(self, world: World, address: tuple[str, int]) -> None:
        self._world = world
        self.address = address
        self.timeout_s = 10.0

    def await_answer(self) -> int:
        """Return which node this is. Raises Silent."""
        node_id = self.address[1] - _PORT + NODE
        if node_id in self._world.silent:
            self._world.waits += 1
            raise Silent(f"{self.address} did not answer within {self.timeout_s:g} s.")
        return node_id

    def serves(self, request_class: type[Message]) -> bool:
        return request_class in _ANSWERS

    def version_for(self, request_class: type[Message], **_: object) -> int:
        return request_class.max_version

    def call(self, request: Message, response_class: type[Message], **_: object) -> Message:
        if self._world.is_down:
            raise Unreachable("cannot reach a broker at 127.0.0.1:9092: Connection refused.")
        node_id = self.await_answer()
        self._world.asked.append(request)
        if node_id != NODE and type(request) in _OF_COORDINATORS:
            return response_class()
        if type(request) in self._world.fatal:
            raise Unreachable("the broker at 127.0.0.1:9092 closed the connection.")
        if type(request) in self._world.forbidden:
            raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "orders-0")
        if type(request) not in _ANSWERS:
            raise ClientError("the broker at 127.0.0.1:9092 does not serve that.")
        return _ANSWERS[type(request)](self._world, request)

    def close(self) -> None:
        pass


class FakeClient(Client):
    """The real client over fake connections."""

    def __init__(self, world: World, security: Security = PLAINTEXT) -> None:
        self._world = world
        if world.is_down:
            raise Unreachable("cannot reach a broker at 127.0.0.1:9092: Connection refused.")
        super().__init__("127.0.0.1:9092", security=security)

    def _connect(self, address: Any) -> Any:
        made = FakeConnection(self._world, address)
        made.await_answer()
        return made


def _port(node_id: int) -> int:
    return _PORT + node_id - NODE


def _metadata(world: World, request: metadata.MetadataRequest) -> Message:
    names = list(world.topics) if request.topics is None else [t.name for t in request.topics]
    return metadata.MetadataResponse(
        brokers=[
            metadata.MetadataResponseBroker(node_id=each, host="127.0.0.1", port=_port(each))
            for each in world.nodes
        ],
        topics=[
            metadata.MetadataResponseTopic(
                name=name,
                error_code=0 if name in world.topics else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                partitions=[
                    metadata.MetadataResponsePartition(
                        partition_index=index,
                        leader_id=world.nodes[index % len(world.nodes)],
                        replica_nodes=[1],
                        isr_nodes=[1],
                    )
                    for index in range(len(world.topics.get(name or "", ())))
                ],
            )
            for name in names
        ],
    )


def _find_coordinator(world: World, request: find_coordinator.FindCoordinatorRequest) -> Message:
    return find_coordinator.FindCoordinatorResponse(
        coordinators=[
            find_coordinator.Coordinator(key=key, node_id=NODE) for key in request.coordinator_keys
        ]
    )


def _list_transactions(world: World, request: list_transactions.ListTransactionsRequest) -> Message:
    return list_transactions.ListTransactionsResponse(
        transaction_states=[
            list_transactions.TransactionState(transactional_id=name)
            for name, one in world.transactions.items()
            if (not request.state_filters or one.state in request.state_filters)
            and (not request.producer_id_filters or one.producer_id in request.producer_id_filters)
        ]
    )


def _describe_transactions(
    world: World, request: describe_transactions.DescribeTransactionsRequest
) -> Message:
    states = []
    for name in request.transactional_ids:
        one = world.transactions.get(name)
        if one is None:
            code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            states.append(
                describe_transactions.TransactionState(error_code=code, transactional_id=name)
            )
            continue
        state = describe_transactions.TransactionState(
            transactional_id=name,
            transaction_state=one.state,
            transaction_timeout_ms=60_000,
            transaction_start_time_ms=one.started_ms,
            producer_id=one.producer_id,
            producer_epoch=one.epoch,
            topics=[
                describe_transactions.TopicData(topic=topic, partitions=[index])
                for topic, index in one.partitions
            ],
        )
        state.unknown_tags = one.tags
        states.append(state)
    return describe_transactions.DescribeTransactionsResponse(transaction_states=states)


def _init_producer_id(world: World, request: init_producer_id.InitProducerIdRequest) -> Message:
    name = request.transactional_id
    if name is not None:
        one = world.transactions[name]
        world.aborts.append(name)
        one.state, one.epoch = "CompleteAbort", one.epoch + 1
        for topic, index in one.partitions:
            world.partition(topic, index).end_transaction(one.producer_id, commit=False)
    return init_producer_id.InitProducerIdResponse(producer_id=77, producer_epoch=1)


def _describe_producers(
    world: World, request: describe_producers.DescribeProducersRequest
) -> Message:
    return describe_producers.DescribeProducersResponse(
        topics=[
            describe_producers.TopicResponse(
                name=topic.name,
                partitions=[
                    describe_producers.PartitionResponse(
                        partition_index=index,
                        active_producers=[
                            describe_producers.ProducerState(
                                producer_id=producer_id, current_txn_start_offset=first
                            )
                            for producer_id, first in world.partition(
                                topic.name, index
                            ).open.items()
                        ],
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


def _list_offsets(world: World, request: list_offsets.ListOffsetsRequest) -> Message:
    def offset(partition: Partition, timestamp: int) -> int:
        if timestamp == EARLIEST:
            return 0
        if timestamp != LATEST:
            return -1
        return partition.stable if request.isolation_level == _COMMITTED else partition.end

    return list_offsets.ListOffsetsResponse(
        topics=[
            list_offsets.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    list_offsets.ListOffsetsPartitionResponse(
                        partition_index=each.partition_index,
                        offset=offset(
                            world.partition(topic.name, each.partition_index), each.timestamp
                        ),
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _fetch(world: World, request: fetch.FetchRequest) -> Message:
    (topic,) = request.topics
    (asked,) = topic.partitions
    partition = world.partition(topic.topic, asked.partition)
    committed = request.isolation_level == _COMMITTED
    end = partition.stable if committed else partition.end
    records = b""
    for header, batch in iterate_batches(memoryview(bytes(partition.log))):
        if asked.fetch_offset < header.next_offset <= end and len(records) < request.max_bytes:
            records += bytes(batch)
    found = fetch.PartitionData(
        partition_index=asked.partition,
        high_watermark=partition.end,
        last_stable_offset=partition.stable,
        log_start_offset=0,
        records=records,
        aborted_transactions=[
            fetch.AbortedTransaction(producer_id=producer_id, first_offset=first)
            for producer_id, first in partition.aborted
        ],
    )
    response = fetch.FetchableTopicResponse(topic=topic.topic, partitions=[found])
    return fetch.FetchResponse(responses=[response])


def _produce(world: World, request: produce.ProduceRequest) -> Message:
    (topic,) = request.topic_data
    (data,) = topic.partition_data
    partition = world.partition(topic.name, data.index)
    assert isinstance(data.records, bytes)
    batch = bytearray(data.records)
    ((header, _),) = iterate_batches(memoryview(bytes(batch)))
    base = partition.end
    place(batch, base, 0)
    partition.log += batch
    partition.end += header.record_count
    result = produce.PartitionProduceResponse(index=data.index, base_offset=base)
    return produce.ProduceResponse(
        responses=[produce.TopicProduceResponse(name=topic.name, partition_responses=[result])]
    )


def _list_groups(world: World, request: list_groups.ListGroupsRequest) -> Message:
    return list_groups.ListGroupsResponse(
        groups=[
            list_groups.ListedGroup(
                group_id=name,
                protocol_type="consumer",
                group_state=group.state,
                group_type=group.kind,
            )
            for name, group in world.groups.items()
        ]
    )


def _describe_groups(world: World, request: describe_groups.DescribeGroupsRequest) -> Message:
    classic = {name: each for name, each in world.groups.items() if each.kind == "classic"}
    return describe_groups.DescribeGroupsResponse(
        groups=[
            describe_groups.DescribedGroup(
                group_id=name,
                protocol_type="consumer",
                group_state=classic[name].state if name in classic else "Dead",
                members=classic[name].members if name in classic else [],
            )
            for name in request.groups
        ]
    )


def _offset_fetch(world: World, request: offset_fetch.OffsetFetchRequest) -> Message:
    def topics(group: Group) -> list[offset_fetch.OffsetFetchResponseTopics]:
        return [
            offset_fetch.OffsetFetchResponseTopics(
                name=topic,
                partitions=[
                    offset_fetch.OffsetFetchResponsePartitions(
                        partition_index=index, committed_offset=offset
                    )
                ],
            )
            for (topic, index), offset in group.committed.items()
        ]

    def answer(group_id: str) -> offset_fetch.OffsetFetchResponseGroup:
        group = world.groups.get(group_id, Group())
        if group.loading:
            group.loading -= 1
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return offset_fetch.OffsetFetchResponseGroup(group_id=group_id, error_code=code)
        return offset_fetch.OffsetFetchResponseGroup(group_id=group_id, topics=topics(group))

    return offset_fetch.OffsetFetchResponse(
        groups=[answer(each.group_id) for each in request.groups]
    )


def _describe_configs(world: World, request: describe_configs.DescribeConfigsRequest) -> Message:
    entries = [
        describe_configs.DescribeConfigsResourceResult(
            name="retention.ms", value="60000", config_source=1, documentation="How <b>long</b>."
        ),
        describe_configs.DescribeConfigsResourceResult(
            name="segment.bytes", value="1", config_source=5
        ),
        describe_configs.DescribeConfigsResourceResult(
            name="ssl.key.password", value=None, config_source=4, is_sensitive=True
        ),
    ]
    return describe_configs.DescribeConfigsResponse(
        results=[
            describe_configs.DescribeConfigsResult(
                resource_type=each.resource_type, resource_name=each.resource_name, configs=entries
            )
            for each in request.resources
        ]
    )


def _describe_cluster(world: World, request: Message) -> Message:
    brokers = [
        describe_cluster.DescribeClusterBroker(broker_id=each, host="127.0.0.1", port=_port(each))
        for each in world.nodes
    ]
    return describe_cluster.DescribeClusterResponse(
        cluster_id="the-cluster", controller_id=NODE, brokers=brokers
    )


def _describe_log_dirs(world: World, request: Message) -> Message:
    found = describe_log_dirs.DescribeLogDirsResult(log_dir="/data", total_bytes=10, usable_bytes=5)
    return describe_log_dirs.DescribeLogDirsResponse(results=[found])


def _describe_users(world: World, request: Message) -> Message:
    info = describe_user_scram_credentials.CredentialInfo(mechanism=1, iterations=4096)
    return describe_user_scram_credentials.DescribeUserScramCredentialsResponse(
        results=[
            describe_user_scram_credentials.DescribeUserScramCredentialsResult(
                user=name, credential_infos=[info]
            )
            for name in world.users
        ]
    )


def _describe_acls(world: World, request: Message) -> Message:
    return describe_acls.DescribeAclsResponse(
        error_code=ErrorCode.SECURITY_DISABLED, error_message="No authorizer is configured"
    )


def _describe_quotas(world: World, request: Message) -> Message:
    entry = describe_client_quotas.EntryData(
        entity=[describe_client_quotas.EntityData(entity_type="user", entity_name=None)],
        values=[describe_client_quotas.ValueData(key="producer_byte_rate", value=1_000_000.0)],
    )
    return describe_client_quotas.DescribeClientQuotasResponse(entries=[entry])


_ANSWERS: dict[type[Message], Callable[[World, Any], Message]] = {
    **fake_changes.ANSWERS,
    metadata.MetadataRequest: _metadata,
    find_coordinator.FindCoordinatorRequest: _find_coordinator,
    list_transactions.ListTransactionsRequest: _list_transactions,
    describe_transactions.DescribeTransactionsRequest: _describe_transactions,
    init_producer_id.InitProducerIdRequest: _init_producer_id,
    describe_producers.DescribeProducersRequest: _describe_producers,
    list_offsets.ListOffsetsRequest: _list_offsets,
    fetch.FetchRequest: _fetch,
    produce.ProduceRequest: _produce,
    list_groups.ListGroupsRequest: _list_groups,
    describe_groups.DescribeGroupsRequest: _describe_groups,
    offset_fetch.OffsetFetchRequest: _offset_fetch,
    describe_configs.DescribeConfigsRequest: _describe_configs,
    describe_cluster.DescribeClusterRequest: _describe_cluster,
    describe_log_dirs.DescribeLogDirsRequest: _describe_log_dirs,
    describe_user_scram_credentials.DescribeUserScramCredentialsRequest: _describe_users,
    describe_acls.DescribeAclsRequest: _describe_acls,
    describe_client_quotas.DescribeClientQuotasRequest: _describe_quotas,
}
