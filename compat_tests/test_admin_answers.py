"""Requests of administration, odd ones above all, in every version: both brokers answer alike.

What a client library never sends is sent here. Texts that explain are each broker's own; ids,
addresses and sizes of disks differ by nature; the rest is compared field by field. Changes are
validated only; what they do has tests of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from kafka.protocol import admin

from compat_tests.admin import create_topic
from compat_tests.answers import comparable
from compat_tests.brokers import Broker
from compat_tests.conftest import MakeName
from compat_tests.raw import Connection, batch

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
ANY, MATCH, DEFAULT = 2, 0, 1
NOWHERE = UUID(int=7)
Fields = dict[str, Any]


class Asked(NamedTuple):
    """An API, the versions of it (both inclusive), and the bodies for an existing topic."""

    request: Any
    first_version: int
    last_version: int
    bodies: Callable[[str], list[Fields]]


def topics(orders: str) -> list[Fields]:
    absent = f"{orders}-new"

    def of(
        name: str = absent,
        partitions: int = 1,
        factor: int = 1,
        assigned: tuple[Any, ...] = (),
        *configs: Any,
    ) -> Any:
        return (name, partitions, factor, list(assigned), list(configs))

    replica_lists: list[Any] = [[[1]], [[1], [1]], [[]], [[1], []], [[1, 1]], [[2]], [[1], [2]]]
    alone = [
        *(of(name) for name in ("", ".", "..", "a b", "a/b", "é", "a" * 249, "a" * 250)),
        *(of(name) for name in (orders, orders.replace("_", "."), "__x", "__cluster_metadata")),
        *(of(absent, count, factor) for count in (-2, -1, 0, 5) for factor in (-2, -1, 0, 1, 2)),
        *(
            of(absent, -1, -1, tuple(zip(range(9), replicas, strict=False)))
            for replicas in replica_lists
        ),
        of(absent, -1, -1, ((1, [1]),)),
        of(absent, -1, -1, ((0, [1]), (0, [1]))),
        of(absent, 1, -1, ((0, [1]),)),
        of(absent, -1, 1, ((0, [1]),)),
        *(
            of(absent, 1, 1, (), (name, value))
            for name, value in (
                *(("retention.ms", text) for text in ("", "x", "-1", "-2", "1.0", "0x1", None)),
                *(("cleanup.policy", text) for text in ("", ",", "compact,", "x", "Delete")),
                *(("compression.gzip.level", text) for text in ("-1", "0", "9", "10")),
                *(("preallocate", text) for text in ("TRUE", "1")),
                *(("min.cleanable.dirty.ratio", text) for text in ("-0.1", "1", "1.1", "x")),
                *(("segment.bytes", text) for text in ("1048575", "1048576", "2147483648")),
                *(("leader.replication.throttled.replicas", text) for text in ("*", "0:1", "x")),
                *(("remote.storage.enable", "true"), ("", "1"), ("nope", "1")),
            )
        ),
        of(absent, 1, 1, (), ("max.compaction.lag.ms", "1"), ("min.compaction.lag.ms", "2")),
        of(absent, 1, 1, (), ("segment.ms", "x"), ("segment.ms", "2")),
    ]
    alone += [
        of(name, *counts, (), *configs)
        for name in (absent, orders, "a b", "__cluster_metadata")
        for configs in ((("nope", "1"),), (("retention.ms", None),))
        for counts in ((0, 1), (1, 9))
    ]
    alone += [
        of(name, -1, -1, ((0, [9]),), *configs)
        for name in (orders, "a b", "__cluster_metadata")
        for configs in ((), (("nope", "1"),))
    ]
    together = [[], [of(), of()], [of(), of(partitions=2), of(f"{orders}-other")]]
    return [
        {"topics": each, "timeout_ms": 10_000, "validate_only": True}
        for each in [*([one] for one in alone), *together]
    ]


def growth(orders: str) -> list[Fields]:
    replica_lists: list[Any] = [[], [[]], [[1]], [[2]], [[-1]], [[1, 1]], [[1, 2]], [[1], [1]]]
    asked: list[Any] = [
        *([(orders, count, None)] for count in (-1, 0, 2, 3, 4, 100)),
        *([(orders, 4, [(replicas,) for replicas in each])] for each in replica_lists),
        [(orders, 3, [])],
        [(f"{orders}-new", 4, None)],
        [("", 4, None)],
        [(orders, 4, None), (orders, 5, None)],
        [(orders, 4, None), (f"{orders}-new", 4, None)],
        [],
    ]
    return [{"topics": each, "timeout_ms": 10_000, "validate_only": True} for each in asked]


def removals(orders: str) -> list[Fields]:
    """Of nothing that is there, by name."""
    absent = f"{orders}-new"
    asked: list[list[str]] = [[], [absent], [absent, absent], ["", "a b", "a" * 300]]
    return [{"topic_names": names, "timeout_ms": 10_000} for names in asked]


def removals_by_id(orders: str) -> list[Fields]:
    no_id = UUID(int=0)
    asked: list[Any] = [
        [(None, NOWHERE)],
        [(None, NOWHERE), (None, NOWHERE)],
        [(None, no_id)],
        [("", no_id)],
        [(orders, NOWHERE)],
        [(f"{orders}-new", no_id), (None, NOWHERE), (orders, NOWHERE), (None, no_id)],
    ]
    return [{"topics": each, "timeout_ms": 10_000} for each in asked]


def deletions(orders: str) -> list[Fields]:
    """Each goes no further than the one before: the order matters."""
    asked: list[Any] = [
        *([(orders, [(0, offset)])] for offset in (0, 1, 0, -2, 31, 2**63 - 1)),
        [(orders, [(9, 0)])],
        [(orders, [(-1, 0)])],
        [(f"{orders}-new", [(0, 0)])],
        [("", [(0, 0)])],
        [(orders, [])],
        [(orders, [(0, 5), (0, 4)])],
        [(orders, [(0, 6)]), (orders, [(0, 8), (1, 0)])],
        [(orders, [(0, 2), (9, 3)]), (f"{orders}-new", [(0, 1)])],
        [(orders, [(1, -1)])],
        [],
    ]
    return [{"topics": each, "timeout_ms": 10_000} for each in asked]


def incremental(orders: str) -> list[Fields]:
    of_topic: list[Any] = [
        [],
        [("retention.ms", SET, "5"), ("retention.ms", DELETE, None)],
        *([("retention.ms", operation, None)] for operation in range(4)),
        *([("retention.ms", operation, "7")] for operation in (DELETE, APPEND, SUBTRACT)),
        *([("nope", operation, "1")] for operation in range(4)),
        *([("cleanup.policy", SET, text)] for text in ("", ",", "compact,,delete", "nope")),
        *([("cleanup.policy", APPEND, text)] for text in ("compact", "delete", " compact", "x")),
        *([("cleanup.policy", APPEND, text)] for text in ("", "compact,", ",x")),
        *([("cleanup.policy", SUBTRACT, text)] for text in ("", "delete", "compact")),
        [("retention.ms", SET, "5"), ("segment.ms", SET, "x")],
        [("min.compaction.lag.ms", SET, "10"), ("max.compaction.lag.ms", SET, "5")],
        [("", SET, "1")],
    ]
    change = [("retention.ms", SET, "7")]
    lag = "log.cleaner.min.compaction.lag.ms"
    others: list[Any] = [
        *([(TOPIC, name, change)] for name in ("", "a b", f"{orders}-new")),
        *(
            [(TOPIC, name, [each])]
            for name in ("", "a b", f"{orders}-new")
            for each in (("retention.ms", SET, "x"), ("retention.ms", APPEND, "1"))
        ),
        [(GROUP, "", [("nope", APPEND, "1")])],
        [(TOPIC, orders, change), (TOPIC, orders, [])],
        [(TOPIC, orders, change), (TOPIC, f"{orders}-new", change)],
        *([(kind, "x", change)] for kind in (-1, 0, 1, 3, 64)),
        *([(BROKER, name, [(lag, SET, "5")])] for name in ("1", "", "2", "x", "-1")),
        *([(BROKER, name, [(lag, SET, "-5")])] for name in ("1", "")),
        *([(BROKER, "1", [(name, DELETE, None)])] for name in ("num.partitions", "nope", lag)),
        *([(BROKER, "", [(name, SET, "0")])] for name in ("background.threads", "node.id")),
        *([(LOGGER, name, [])] for name in ("1", "", "2", "x")),
        *([(LOGGER, "1", [("root", SET, level)])] for level in ("", "NOPE", None)),
        *([(CLIENT_METRICS, name, [("interval.ms", SET, "100")])] for name in ("", orders)),
        *(
            [(CLIENT_METRICS, orders, [("interval.ms", SET, text)])]
            for text in ("99", "3600001", "b")
        ),
        *([(CLIENT_METRICS, orders, [("match", SET, text)])] for text in ("client_id=a", "x=a")),
        *([(GROUP, name, [("consumer.session.timeout.ms", SET, "900")])] for name in ("", orders)),
        *([(GROUP, orders, [("consumer.session.timeout.ms", SET, text)])] for text in ("1", "x")),
        [
            (
                *(GROUP, orders),
                [
                    ("consumer.session.timeout.ms", SET, "700"),
                    ("consumer.heartbeat.interval.ms", SET, "700"),
                ],
            )
        ],
        *([(GROUP, orders, [("share.auto.offset.reset", SET, text)])] for text in ("latest", "x")),
    ]
    every = [*([(TOPIC, orders, changes)] for changes in of_topic), *others]
    return [{"resources": resources, "validate_only": True} for resources in every]


def replacing(orders: str) -> list[Fields]:
    of_topic: list[Any] = [
        *([("retention.ms", text)] for text in ("55", "x", None)),
        [],
        [("retention.ms", "1"), ("retention.ms", "2")],
        [("nope", "1")],
    ]
    every: list[Any] = [
        *([(TOPIC, orders, configs)] for configs in of_topic),
        *(
            [(TOPIC, name, [("retention.ms", text)])]
            for name in ("", "a b", f"{orders}-new")
            for text in ("1", "x")
        ),
        *([(BROKER, name, [("num.partitions", "3")])] for name in ("1", "", "2")),
        [(LOGGER, "1", [("root", "INFO")])],
        [(GROUP, "", [])],
        [(0, "x", [])],
        [],
    ]
    return [{"resources": resources, "validate_only": True} for resources in every]


def described(orders: str) -> list[Fields]:
    every: list[Any] = [
        *([(TOPIC, orders, names)] for names in (None, [], ["retention.ms"], ["nope"])),
        [(TOPIC, orders, ["retention.ms", "retention.ms", "nope"])],
        [(TOPIC, orders, ["retention.ms"]), (TOPIC, orders, ["segment.ms"])],
        *([(TOPIC, name, None)] for name in ("", "a b", "x" * 300, f"{orders}-new")),
        *([(BROKER, name, ["num.partitions"])] for name in ("1", "2", "x", "-1", "01")),
        [(BROKER, "1", ["ssl.key.password", "log.retention.ms", "log.retention.hours"])],
        *([(LOGGER, name, ["nope"])] for name in ("1", "", "2")),
        *([(CLIENT_METRICS, name, None)] for name in ("", f"{orders}-new")),
        *([(GROUP, name, ["share.isolation.level"])] for name in ("", f"{orders}-new")),
        *([(TOPIC, orders, ["segment.ms"]), (kind, "x", None)] for kind in (-1, 0, 1, 3, 64)),
        [],
    ]
    return [
        {"resources": resources, "include_synonyms": synonyms, "include_documentation": False}
        for resources in every
        for synonyms in (True, False)
    ]


def directories(orders: str) -> list[Fields]:
    every: list[Any] = [
        *([(orders, indexes)] for indexes in ([0, 1, 2], [0, 0], [9], [-1], [])),
        [(orders, [0]), (orders, [1, 0])],
        [(f"{orders}-new", [0])],
        [],
    ]
    return [{"topics": asked} for asked in every]


def moves_of_directories(orders: str) -> list[Fields]:
    every: list[Any] = [
        *([(path, [(orders, [0, 1])])] for path in ("/nowhere", "relative", "")),
        [("/nowhere", [(f"{orders}-new", [0])])],
        [("/nowhere", [(orders, [0, 0])]), ("relative", [(orders, [0])])],
        [("/nowhere", [])],
        [("/nowhere", [(orders, [])])],
        [],
    ]
    return [{"dirs": asked} for asked in every]


def partitions_of(orders: str) -> list[Any]:
    return [
        *([(orders, indexes)] for indexes in ([0], [], [0, 0], [0, 9], [-1])),
        [(orders, [0]), (orders, [1])],
        [(f"{orders}-new", [0])],
        [],
    ]


def elections(orders: str) -> list[Fields]:
    every = partitions_of(orders)
    return [{"election_type": 0, "topic_partitions": each, "timeout_ms": 10_000} for each in every]


def moves(orders: str) -> list[Fields]:
    every: list[Any] = [
        *(
            [(orders, [(0, replicas)])]
            for replicas in ([1], None, [], [2], [1, 2], [1, 1], [-1], [2, 2])
        ),
        *([(orders, [(index, [1])])] for index in (9, -1)),
        [(orders, [(9, None)])],
        [(f"{orders}-new", [(0, [1])])],
        [(orders, [(0, [1]), (0, None)])],
        [(orders, [])],
        [],
    ]
    return [{"topics": each, "timeout_ms": 10_000} for each in every]


def moves_under_way(orders: str) -> list[Fields]:
    return [{"topics": each, "timeout_ms": 10_000} for each in [None, *partitions_of(orders)]]


def cluster(orders: str) -> list[Fields]:
    return [
        {"include_cluster_authorized_operations": operations, "endpoint_type": endpoints}
        for operations in (True, False)
        for endpoints in (1, 2, 0, -1)
    ]


def quorums(orders: str) -> list[Fields]:
    metadata = "__cluster_metadata"
    every: list[Any] = [
        *([(metadata, indexes)] for indexes in ([1], [0, 0], [0, 1], [])),
        [(orders, [0])],
        [(orders, [0]), (metadata, [0])],
    ]
    return [
        {"topics": [(name, [(index,) for index in indexes]) for name, indexes in each]}
        for each in every
    ]


def resources(orders: str) -> list[Fields]:
    every = ([BROKER], [LOGGER], [BROKER, BROKER], [0], [-1], [64], [BROKER, 99])
    return [{"resource_types": list(types)} for types in every]


def quotas(orders: str) -> list[Fields]:
    user, client, rate = ("user", orders), ("client-id", orders), "producer_byte_rate"
    entities: list[Any] = [
        *([], [user], [user, client], [("user", None)], [("user", "")], [("nope", "x")]),
        *([("ip", "127.0.0.1")], [("ip", None)], [("ip", "127.0.0.1"), user], [user, user]),
    ]
    values = (0.0, -1.0, 1.5, 1e30, 0.5, float("inf"))
    entries: list[Any] = [
        *([(entity, [(rate, 1000.0, False)])] for entity in entities),
        *([(entity, [("connection_creation_rate", 5.0, False)])] for entity in entities[-4:]),
        [([("ip", "999.1.1.1")], [("connection_creation_rate", 5.0, False)])],
        *([([user], [(rate, value, False)])] for value in values),
        *([([user], [("request_percentage", value, False)])] for value in values),
        *([([user], [("nope", 1.0, remove)])] for remove in (True, False)),
        [([user], [(rate, 1.0, False), (rate, 2.0, False)])],
        [([user], [(rate, 1.0, False)]), ([user], [(rate, 2.0, False)])],
        [([user], [(rate, 1.0, False)]), ([("nope", "x")], [(rate, 2.0, False)])],
        [],
    ]
    return [{"entries": each, "validate_only": True} for each in entries]


def quota_filters(orders: str) -> list[Fields]:
    every: list[Any] = [
        *([("user", how, orders)] for how in (MATCH, DEFAULT, ANY, 3, -1)),
        *([("user", how, None)] for how in (MATCH, 3, -1)),
        *([(kind, ANY, None)] for kind in ("nope", "")),
        [("ip", ANY, None), ("user", ANY, None)],
        [("user", ANY, None), ("user", ANY, None)],
        [("user", MATCH, orders), ("client-id", MATCH, orders)],
    ]
    return [
        {"components": components, "strict": strict}
        for components in every
        for strict in (True, False)
    ]


EVERY_API = [
    Asked(admin.CreateTopicsRequest, 2, 7, topics),
    Asked(admin.CreatePartitionsRequest, 0, 3, growth),
    Asked(admin.DeleteTopicsRequest, 1, 5, removals),
    Asked(admin.DeleteTopicsRequest, 6, 6, removals_by_id),
    Asked(admin.DeleteRecordsRequest, 0, 2, deletions),
    Asked(admin.IncrementalAlterConfigsRequest, 0, 1, incremental),
    Asked(admin.AlterConfigsRequest, 0, 2, replacing),
    Asked(admin.DescribeConfigsRequest, 1, 4, described),
    Asked(admin.ListConfigResourcesRequest, 1, 1, resources),
    Asked(admin.DescribeLogDirsRequest, 1, 5, directories),
    Asked(admin.AlterReplicaLogDirsRequest, 1, 2, moves_of_directories),
    Asked(admin.ElectLeadersRequest, 0, 2, elections),
    Asked(admin.AlterPartitionReassignmentsRequest, 0, 1, moves),
    Asked(admin.ListPartitionReassignmentsRequest, 0, 0, moves_under_way),
    Asked(admin.DescribeClusterRequest, 0, 2, cluster),
    Asked(admin.DescribeQuorumRequest, 0, 2, quorums),
    Asked(admin.AlterClientQuotasRequest, 0, 1, quotas),
    Asked(admin.DescribeClientQuotasRequest, 0, 1, quota_filters),
]


@pytest.fixture
def connections(both_brokers: tuple[Broker, Broker]) -> Iterator[list[Connection]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Connection(broker.bootstrap)) for broker in both_brokers]


@pytest.fixture
def orders(
    both_brokers: tuple[Broker, Broker], connections: list[Connection], name: MakeName
) -> str:
    """A topic of three partitions on either broker, 30 records as long in the first of them.

    They are new: retention would delete old ones in between.
    """
    created = name("orders_all")
    for broker, connection in zip(both_brokers, connections, strict=True):
        create_topic(broker.bootstrap, created, 3)
        for _ in range(10):
            assert connection.produce(created, batch([b"v"] * 3)).error_code == 0
    return created


@pytest.mark.parametrize(
    "asked", EVERY_API, ids=lambda asked: f"{asked.request.__name__}-{asked.last_version}"
)
def test_both_brokers_answer_alike(
    connections: list[Connection], orders: str, asked: Asked
) -> None:
    response = getattr(admin, asked.request.__name__.replace("Request", "Response"))
    differing = []
    for version in range(asked.first_version, asked.last_version + 1):
        for fields in asked.bodies(orders):
            ours, kafkas = (
                comparable(connection.call(asked.request[version](**fields), response).to_dict())
                for connection in connections
            )
            if ours != kafkas:
                differing.append((version, fields, ours, kafkas))
    assert not differing
