"""Requests of administration that ask for what cannot be: the same codes from both brokers."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.admin import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
)

from compat_tests.admin import leader_of
from compat_tests.brokers import Broker
from compat_tests.client import TIMEOUT_S
from compat_tests.conftest import MakeName, MakeTopic
from compat_tests.raw import Connection

UNKNOWN_SERVER_ERROR = -1
NONE = 0
UNKNOWN_TOPIC = 3
INVALID_TOPIC = 17
UNSUPPORTED_MECHANISM = 33
ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_FACTOR = 38
INVALID_ASSIGNMENT = 39
INVALID_CONFIG = 40
INVALID_REQUEST = 42
POLICY_VIOLATION = 44
ELECTION_NOT_NEEDED = 84
NO_REASSIGNMENT = 85
NOT_FOUND = 91
DUPLICATE = 92
UNACCEPTABLE_CREDENTIAL = 93
UNKNOWN_TOPIC_ID = 100

Assignments = list[tuple[int, list[int]]]
#: No node of either broker.
ABSENT = 9
WRONG_ASSIGNMENTS: list[Assignments] = [
    [(1, [1])],
    [(0, [1]), (0, [1])],
    [(0, [1]), (2, [1])],
    [(0, [])],
    [(0, [1, 1])],
    [(0, [ABSENT])],
    [(0, [1, ABSENT])],
]
#: Of one added partition.
WRONG_GROWTHS: list[list[list[int]]] = [
    [],
    [[]],
    [[ABSENT]],
    [[1, 1]],
    [[1, ABSENT]],
    [[1], [1]],
]


def call(broker: Broker, request: Any, response: Any) -> Any:
    with Connection(broker.bootstrap) as connection:
        return connection.call(request, response)


def creatable(
    name: str,
    partitions: int = 1,
    factor: int = 1,
    configs: dict[str, str | None] | None = None,
    assignments: Assignments | None = None,
) -> Any:
    asked = CreateTopicsRequest.CreatableTopic
    return asked(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            asked.CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in assignments or ()
        ],
        configs=[
            asked.CreatableTopicConfig(name=each, value=value)
            for each, value in (configs or {}).items()
        ],
    )


def create(broker: Broker, *topics: Any, validate_only: bool = True) -> Any:
    request = CreateTopicsRequest(
        version=7, topics=list(topics), timeout_ms=5000, validate_only=validate_only
    )
    return sorted(call(broker, request, CreateTopicsResponse).topics, key=lambda topic: topic.name)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"partitions": -1, "factor": -1}, NONE),
        ({"partitions": 0}, INVALID_PARTITIONS),
        ({"partitions": -2}, INVALID_PARTITIONS),
        ({"partitions": 10_001}, POLICY_VIOLATION),
        ({"factor": 0}, INVALID_FACTOR),
        ({"factor": -2}, INVALID_FACTOR),
        ({"factor": 4}, INVALID_FACTOR),
        ({"partitions": 0, "factor": 0}, INVALID_FACTOR),
        ({"configs": {"nope": "1"}}, INVALID_CONFIG),
        ({"configs": {"retention.ms": "x"}}, INVALID_CONFIG),
        ({"configs": {"retention.ms": None}}, INVALID_CONFIG),
        ({"configs": {"remote.storage.enable": "true"}}, INVALID_CONFIG),
        ({"assignments": [(0, [1]), (1, [1])], "partitions": -1, "factor": -1}, NONE),
        ({"assignments": [(0, [1])], "factor": -1}, INVALID_REQUEST),
        ({"assignments": [(0, [1])], "partitions": -1}, INVALID_REQUEST),
        *(
            ({"assignments": wrong, "partitions": -1, "factor": -1}, INVALID_ASSIGNMENT)
            for wrong in WRONG_ASSIGNMENTS
        ),
    ],
    ids=str,
)
def test_topics_are_checked(
    broker: Broker, name: MakeName, asked: dict[str, Any], code: int
) -> None:
    (result,) = create(broker, creatable(name("orders"), **asked))
    assert result.error_code == code
    if code == NONE:
        partitions = 2 if "assignments" in asked else 1
        assert (result.num_partitions, result.replication_factor) == (partitions, 1)
        assert len(result.configs) == 37
        assert result.topic_id != UUID(int=0)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "ä", "a" * 250])
def test_names_that_no_topic_can_have(broker: Broker, name: str) -> None:
    (result,) = create(broker, creatable(name))
    assert result.error_code == INVALID_TOPIC


def test_a_topic_is_created_once(broker: Broker, name: MakeName) -> None:
    orders = name("orders")
    (result,) = create(broker, creatable(f"{orders}_a"), validate_only=False)
    assert result.error_code == NONE
    for again, code in ((f"{orders}_a", ALREADY_EXISTS), (f"{orders}.a", INVALID_TOPIC)):
        for validate_only in (False, True):
            (result,) = create(broker, creatable(again), validate_only=validate_only)
            assert result.error_code == code
    twice = [creatable(f"{orders}-b"), creatable(f"{orders}-b"), creatable(f"{orders}-c")]
    assert [each.error_code for each in create(broker, *twice)] == [INVALID_REQUEST, NONE]
    (result,) = create(broker, creatable("__cluster_metadata"))
    assert result.error_code == INVALID_REQUEST


def test_topics_are_deleted_by_name_or_id(broker: Broker, name: MakeName) -> None:
    names = [name("orders") for _ in range(3)]
    created = {
        each.name: each.topic_id
        for each in create(broker, *map(creatable, names), validate_only=False)
    }
    by_name, by_id, by_both = names

    told: dict[str | None, UUID] = {}

    def delete(*topics: tuple[str | None, UUID | None]) -> set[tuple[str | None, int]]:
        asked = [
            DeleteTopicsRequest.DeleteTopicState(name=each, topic_id=topic_id or UUID(int=0))
            for each, topic_id in topics
        ]
        request = DeleteTopicsRequest(version=6, topics=asked, timeout_ms=5000)
        found = call(broker, request, DeleteTopicsResponse).responses
        told.update((each.name, each.topic_id) for each in found)
        return {(each.name, each.error_code) for each in found}

    assert delete((by_name, None)) == {(by_name, NONE)}
    assert delete((None, created[by_id])) == {(by_id, NONE)}
    assert delete((by_both, None), (None, created[by_both])) == {(by_both, INVALID_REQUEST)}
    assert told[by_both] == created[by_both]
    assert delete((by_both, None), (by_both, None)) == {(by_both, INVALID_REQUEST)}
    assert delete((by_both, created[by_both])) == {(by_both, INVALID_REQUEST)}
    assert delete((None, None)) == {(None, INVALID_REQUEST)}
    assert delete((None, UUID(int=7))) == {(None, UNKNOWN_TOPIC_ID)}
    assert delete((name("none"), None)).pop()[1] == UNKNOWN_TOPIC
    assert delete((by_both, None)) == {(by_both, NONE)}


def test_partitions_are_added_as_they_can_be(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders", partitions=2)
    asked = CreatePartitionsRequest.CreatePartitionsTopic

    def grow(name: str, count: int, assignments: list[list[int]] | None = None) -> int:
        replicas = None
        if assignments is not None:
            replicas = [
                asked.CreatePartitionsAssignment(broker_ids=brokers) for brokers in assignments
            ]
        growth = asked(name=name, count=count, assignments=replicas)
        request = CreatePartitionsRequest(
            version=3, topics=[growth], timeout_ms=5000, validate_only=True
        )
        (result,) = call(broker, request, CreatePartitionsResponse).results
        return int(result.error_code)

    for count in (-1, 0, 1, 2):
        assert grow(orders, count) == INVALID_PARTITIONS
    assert grow(f"{orders}-none", 3) == UNKNOWN_TOPIC
    assert grow(orders, 3) == NONE
    assert grow(orders, 3, [[1]]) == NONE
    for wrong in WRONG_GROWTHS:
        assert grow(orders, 3, wrong) == INVALID_ASSIGNMENT, wrong


def test_one_replica_leads_and_stays(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders")

    def elect(kind: int, name: str, partition: int) -> int:
        asked = ElectLeadersRequest.TopicPartitions(topic=name, partitions=[partition])
        request = ElectLeadersRequest(
            version=2, election_type=kind, topic_partitions=[asked], timeout_ms=5000
        )
        ((result,),) = [
            each.partition_result
            for each in call(broker, request, ElectLeadersResponse).replica_election_results
        ]
        return int(result.error_code)

    assert [elect(kind, orders, 0) for kind in (0, 1)] == [ELECTION_NOT_NEEDED] * 2
    assert elect(0, orders, 7) == elect(0, f"{orders}-none", 0) == UNKNOWN_TOPIC
    assert elect(9, orders, 0) == INVALID_REQUEST

    def move(partition: int, replicas: list[int] | None) -> int:
        asked = AlterPartitionReassignmentsRequest.ReassignableTopic
        partitions = [asked.ReassignablePartition(partition_index=partition, replicas=replicas)]
        request = AlterPartitionReassignmentsRequest(
            version=0, topics=[asked(name=orders, partitions=partitions)], timeout_ms=5000
        )
        answer = call(broker, request, AlterPartitionReassignmentsResponse)
        ((result,),) = [each.partitions for each in answer.responses]
        return int(result.error_code)

    leader = leader_of(broker.bootstrap, orders)
    assert move(0, [leader]) == NONE
    assert move(0, None) == NO_REASSIGNMENT
    assert move(7, [leader]) == UNKNOWN_TOPIC
    for wrong in ([], [ABSENT], [leader, ABSENT], [leader, leader], [-1]):
        assert move(0, wrong) == INVALID_ASSIGNMENT, wrong


def test_a_user_named_twice_is_told_what_is_wrong_with_the_first(
    broker: Broker, name: MakeName
) -> None:
    asked = AlterUserScramCredentialsRequest
    user = name("user")

    def deletion(name: str = user, mechanism: int = 1) -> Any:
        return asked.ScramCredentialDeletion(name=name, mechanism=mechanism)

    def upsertion(
        name: str = user, mechanism: int = 1, iterations: int = 4096, salted: bytes = b"s" * 32
    ) -> Any:
        return asked.ScramCredentialUpsertion(
            name=name,
            mechanism=mechanism,
            iterations=iterations,
            salt=b"salt",
            salted_password=salted,
        )

    def alter(deletions: list[Any], upsertions: list[Any]) -> dict[str, int]:
        request = asked(version=0, deletions=deletions, upsertions=upsertions)
        results = call(broker, request, AlterUserScramCredentialsResponse).results
        codes = {each.user: int(each.error_code) for each in results}
        assert len(codes) == len(results)
        return codes

    for twice, code in (
        (([deletion(""), deletion("")], [upsertion("")]), UNACCEPTABLE_CREDENTIAL),
        (([deletion(mechanism=0), deletion()], []), UNSUPPORTED_MECHANISM),
        (([deletion(), deletion(mechanism=0)], [upsertion()]), NOT_FOUND),
        (([], [upsertion(mechanism=10), upsertion()]), UNSUPPORTED_MECHANISM),
        (([], [upsertion(iterations=1), upsertion()]), UNACCEPTABLE_CREDENTIAL),
        (([], [upsertion(), upsertion(mechanism=10)]), DUPLICATE),
        (([], [upsertion(), upsertion(mechanism=2)]), DUPLICATE),
    ):
        assert list(alter(*twice).values()) == [code], twice
    # Kafka's controller fails over a key of no bytes.
    empty = UNACCEPTABLE_CREDENTIAL if broker.kind == "magnetar" else UNKNOWN_SERVER_ERROR
    assert alter([], [upsertion(salted=b"")]) == {user: empty}
    assert alter([deletion()], []) == {user: NOT_FOUND}


def test_partitions_are_described_page_by_page(broker: Broker, name: MakeName) -> None:
    base = name("orders")
    one, two = f"{base}-1", f"{base}-2"
    create(broker, creatable(one, 3), creatable(two, 3), validate_only=False)
    asked = DescribeTopicPartitionsRequest

    def describe(
        names: list[str], limit: int = 9, cursor: tuple[str, int] | None = None
    ) -> tuple[list[tuple[str, int, list[int]]], tuple[str, int] | None]:
        begin = None
        if cursor is not None:
            begin = asked.Cursor(topic_name=cursor[0], partition_index=cursor[1])
        request = asked(
            version=0,
            topics=[asked.TopicRequest(name=each) for each in names],
            response_partition_limit=limit,
            cursor=begin,
        )
        answer = call(broker, request, DescribeTopicPartitionsResponse)
        found = [
            (each.name, each.error_code, [one.partition_index for one in each.partitions])
            for each in answer.topics
        ]
        more = answer.next_cursor
        return found, None if more is None else (more.topic_name, more.partition_index)

    everything = [(one, NONE, [0, 1, 2]), (two, NONE, [0, 1, 2])]
    deadline = time.monotonic() + TIMEOUT_S
    while describe([two, one, one]) != (everything, None):
        assert time.monotonic() < deadline
    assert describe([one, two], 2) == ([(one, NONE, [0, 1])], (one, 2))
    assert describe([one, two], 3) == ([(one, NONE, [0, 1, 2])], (two, 0))
    assert describe([one, two], 2, (one, 2)) == ([(one, NONE, [2]), (two, NONE, [0])], (two, 1))
    assert describe([one, two], 9, (two, 1)) == ([(two, NONE, [1, 2])], None)
    assert describe([one], 0) == describe([one], -1) == ([(one, NONE, [0])], (one, 1))
    assert describe([f"{base}-none"]) == ([(f"{base}-none", UNKNOWN_TOPIC, [])], None)
    for wrong in ((one, -1), (f"{base}-3", 0)):
        assert describe([one], 9, wrong)[0] == [(one, INVALID_REQUEST, [])]
