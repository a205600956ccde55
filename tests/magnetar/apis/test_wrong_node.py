"""Every version of every request for a partition, a group or a transaction, at the wrong node.

A client with old metadata asks a node that does not lead, or does not coordinate. Only the right
error makes it look for the other one: an empty answer would be believed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from magnetar.apis.registry import Api, load_apis
from tests.logstore.partitions import batch_of
from tests.magnetar.conftest import RawClient
from tests.magnetar.nodes_in_one import NodesInOne, two_of
from wire import types
from wire.error_code import ErrorCode
from wire.message import Message
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.schema import Field, fields_of

OF_GROUPS = (
    *("OffsetCommit", "OffsetFetch", "JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup"),
    *("DescribeGroups", "DeleteGroups", "OffsetDelete", "TxnOffsetCommit"),
    *("ConsumerGroupHeartbeat", "ConsumerGroupDescribe"),
)
OF_TRANSACTIONS = (
    *("InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn"),
    "DescribeTransactions",
)
OF_PARTITIONS = (
    *("Produce", "Fetch", "ListOffsets", "OffsetForLeaderEpoch", "DeleteRecords"),
    "DescribeProducers",
)
#: From version 4 on AddPartitionsToTxn is a request between brokers.
LAST = {"AddPartitionsToTxn": 3}
#: What each has to be told.
CODES = {
    **dict.fromkeys(OF_GROUPS, ErrorCode.NOT_COORDINATOR),
    **dict.fromkeys(OF_TRANSACTIONS, ErrorCode.NOT_COORDINATOR),
    **dict.fromkeys(OF_PARTITIONS, ErrorCode.NOT_LEADER_OR_FOLLOWER),
}


def cases() -> Iterator[tuple[Api, int]]:
    """Yield each version of each of these requests."""
    for api in load_apis().values():
        if api.name in CODES:
            for version in range(api.min_version, LAST.get(api.name, api.max_version) + 1):
                yield api, version


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[NodesInOne]:
    async with two_of(NodesInOne(tmp_path / "data")) as started:
        yield started


async def answers(nodes: NodesInOne, node_id: int) -> dict[tuple[str, int], set[int]]:
    """Return the errors with which a node answers requests for what node 1 has."""
    client = await nodes.client(node_id)
    found = {}
    for api, version in cases():
        answer = await client.ask(filled(api, version, words(nodes)), version, api.response_class)
        found[api.name, version] = set(error_codes(answer))
    return found


async def test_the_wrong_node_says_so_and_the_right_one_does_not(nodes: NodesInOne) -> None:
    wrong = await answers(nodes, 0)
    assert {key: codes for key, codes in wrong.items() if codes != {CODES[key[0]]}} == {}
    assert {name for name, _ in wrong} == CODES.keys()
    right = await answers(nodes, 1)
    assert {key: codes for key, codes in right.items() if CODES[key[0]] in codes} == {}


async def librdkafka(nodes: NodesInOne, name: str, version: str) -> RawClient:
    """Return a connection to node 0 of a client that says that it is librdkafka."""
    client = await nodes.another_client(0)
    told = ApiVersionsRequest(client_software_name=name, client_software_version=version)
    await client.ask(told, 4, ApiVersionsResponse)
    return client


@pytest.mark.parametrize(
    ("name", "version"),
    [("confluent-kafka-python", "2.16.1-rdkafka-2.16.0"), ("librdkafka", "2.16.0")],
)
async def test_librdkafka_asks_for_offsets_again_where_it_finds_the_coordinator(
    nodes: NodesInOne, name: str, version: str
) -> None:
    for api, api_version in cases():
        if api.name == "OffsetFetch":
            client = await librdkafka(nodes, name, version)
            request = filled(api, api_version, words(nodes))
            answer = await client.ask(request, api_version, api.response_class)
            assert {*error_codes(answer)} == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
            # It would ask this node for ever: a consumer that is no member has no heartbeats.
            assert await client.is_closed()
            client.close()


async def test_what_librdkafka_asks_beside_its_offsets_is_answered(nodes: NodesInOne) -> None:
    """Its admin client asks for many groups at once."""
    client = await librdkafka(nodes, "librdkafka", "2.16.0")
    api, version = next(case for case in cases() if case[0].name == "OffsetFetch")
    for group in (1, 0):
        asked = {**words(nodes), "group_id": nodes.group_id(group)}
        client.send(filled(api, version, asked), version)
    wrong, right = [
        api.response_class.decode((await client.receive())[1], version) for _ in range(2)
    ]
    assert {*error_codes(wrong)} == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    assert {*error_codes(right)} == {ErrorCode.NONE}
    # On this connection still.
    beat = HeartbeatRequest(group_id=nodes.group_id(1), member_id="member")
    answer = await client.ask(beat, 4, HeartbeatResponse)
    assert answer.error_code == ErrorCode.NOT_COORDINATOR
    client.close()


def words(nodes: NodesInOne) -> Mapping[str, Any]:
    """Return what fields of these names have: all of node 1."""
    topic = nodes.nodes[0].topics.ensure("a")
    partition = nodes.partition(1)
    topics = {"name": "a", "topic": "a", "topic_name": "a", "topic_id": topic.id}
    partitions = dict.fromkeys(
        ("partition", "partition_index", "partition_indexes", "partitions", "index"), partition
    )
    group, transactional_id = nodes.group_id(1), nodes.transactional_id(1)
    return {
        **topics,
        **partitions,
        **dict.fromkeys(("group_id", "groups", "group_ids", "groups_names"), group),
        **dict.fromkeys(("transactional_id", "transactional_ids"), transactional_id),
        "v3_and_below_transactional_id": transactional_id,
        "ProduceRequest.transactional_id": None,
        "TxnOffsetCommitRequest.transactional_id": transactional_id,
        "records": batch_of(b"apple"),
        "acks": -1,
        "timeout_ms": 1000,
        "transaction_timeout_ms": 1000,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "member_id": "member",
        "protocol_type": "consumer",
        "protocol_name": "range",
        "current_leader_epoch": -1,
        "replica_id": -1,
        "forgotten_topics_data": [],
        "replica_directory_id": types.ZERO_UUID,
        "timestamp": -1,
        "max_num_offsets": 1,
        "max_bytes": 1000,
        "partition_max_bytes": 1000,
        "subscribed_topic_names": "a",
        "server_assignor": None,
        "subscribed_topic_regex": None,
        "instance_id": None,
        "group_instance_id": None,
        "FetchRequest.rack_id": "",
        "rack_id": None,
        "topic_partitions": [],
    }


def filled(api: Api, version: int, words: Mapping[str, Any]) -> Message:
    """Return a request with one element in each array, and these words in its fields."""
    made: Message = _struct(api.request_class, version, words)
    return made


def _struct(declared: Any, version: int, words: Mapping[str, Any]) -> Any:
    return declared(
        **{
            field.name: _value(declared.__name__, field, version, words)
            for field in fields_of(declared)
            # Tagged fields are left out.
            if version in field.versions and version not in field.tagged
        }
    )


def _value(struct: str, field: Field, version: int, words: Mapping[str, Any]) -> Any:
    kind = field.type
    if f"{struct}.{field.name}" in words:
        return words[f"{struct}.{field.name}"]
    if isinstance(kind, types.Array):
        if words.get(field.name) == []:
            return []
        if isinstance(kind.element, types.Nested):
            return [_struct(kind.element.struct, version, words)]
        return [words[field.name]] if field.name in words else []
    if isinstance(kind, types.Nested):
        return _struct(kind.struct, version, words)
    if field.name in words:
        return words[field.name]
    default = field.default
    return b"" if default is None and isinstance(kind, types.Bytes) else default


def error_codes(answer: Any) -> Iterator[int]:
    """Yield the error of each group, transaction or partition; of a request as a whole only one
    that is an error.
    """
    fields = fields_of(type(answer))
    inner = [
        each
        for field in fields
        if isinstance(field.type, types.Array) and isinstance(field.type.element, types.Nested)
        for each in getattr(answer, field.name) or ()
        if any(_has_code(type(each)))
    ]
    for each in inner:
        yield from error_codes(each)
    for field in fields:
        if field.name in ("error_code", "partition_error_code"):
            code = getattr(answer, field.name)
            if code or not inner:
                yield code


def _has_code(struct: Any) -> Iterator[bool]:
    for field in fields_of(struct):
        if field.name in ("error_code", "partition_error_code"):
            yield True
        elif isinstance(field.type, types.Array) and isinstance(field.type.element, types.Nested):
            yield from _has_code(field.type.element.struct)
