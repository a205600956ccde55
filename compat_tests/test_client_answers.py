"""What producers and consumers ask, in every version: both brokers answer alike.

Every field of every answer: client libraries decode by them, retry by them, give up by them. What
coordinators are asked is in `test_coordinator_answers`, administrators' in `test_admin_answers`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import pytest
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest
from kafka.protocol.metadata import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
)
from kafka.protocol.producer import ProduceRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from compat_tests.answers import (
    ABSENT,
    MISNAMED,
    NOWHERE,
    TWO,
    Fields,
    Script,
    Topic,
    differences,
)
from compat_tests.brokers import Broker
from compat_tests.conftest import MakeName
from compat_tests.raw import Connection

SESSIONS_SINCE = 7
TOPIC_IDS_SINCE = 13


def metadata(script: Script, orders: Topic) -> None:
    names: list[list[Fields] | None] = [
        *([{"name": name}] for name in (orders.name, ABSENT.name, "", ".", "a b", "a" * 250)),
        [{"name": orders.name}, {"name": orders.name}, {"name": ABSENT.name}],
        [],
    ]
    by_id: list[list[Fields]] = [
        *([{"name": None, "topic_id": each}] for each in (orders.topic_id, NOWHERE)),
        [{"name": ABSENT.name, "topic_id": orders.topic_id}],
        [{"name": ABSENT.name, "topic_id": NOWHERE}],
    ]
    # Before version 4 what is missing is made, and an empty list asks for everything.
    for version in range(4, 14):
        for asked in [*names, *(by_id if version >= 10 else ())]:
            for operations in (True, False):
                script.ask(
                    MetadataRequest,
                    version,
                    topics=asked,
                    allow_auto_topic_creation=False,
                    include_cluster_authorized_operations=operations,
                    include_topic_authorized_operations=operations,
                )
    for version in range(4):
        script.ask(MetadataRequest, version, topics=[{"name": orders.name}])


def coordinators(script: Script, orders: Topic) -> None:
    for version in range(7):
        for key in (orders.name, "", "a b"):
            for kind in (0, 1, 3, -1) if version else (0,):
                script.ask(
                    FindCoordinatorRequest,
                    version,
                    key=key,
                    key_type=kind,
                    coordinator_keys=[key, "another", key],
                )


def produced(script: Script, orders: Topic) -> None:
    broken = bytearray(TWO)
    broken[30] ^= 1
    batches = [
        *(TWO, bytes(broken), TWO[:40], TWO + TWO, b"\1" * 80),
        *(TWO[:16] + b"\1" + TWO[17:], TWO[:22] + b"\x20" + TWO[23:]),
    ]
    asked = [
        *(((orders, 0, each),) for each in batches),
        *(((orders, index, TWO),) for index in (9, -1)),
        *(((topic, 0, TWO),) for topic in (ABSENT, MISNAMED)),
        ((orders, 0, TWO), (ABSENT, 0, TWO)),
        (),
    ]
    for version in range(3, 14):
        for acks in (-1, 1):
            for parts in asked:
                script.ask(
                    ProduceRequest,
                    version,
                    transactional_id=None,
                    acks=acks,
                    timeout_ms=10_000,
                    topic_data=[
                        topic.part(partition_data=[{"index": index, "records": records}])
                        for topic, index, records in parts
                    ],
                )


def fetched(script: Script, orders: Topic) -> None:
    """Also in sessions: their ids are the broker's, and what is not news is left out."""

    fetch = partial(_fetch, script)
    for version in range(4, 19):
        for isolation in (0, 1):
            for offset in (-1, 0, 1, 6, 7):
                fetch(version, _fetching(orders, offset=offset), isolation=isolation)
        for index in (1, 9, -1):
            fetch(version, _fetching(orders, index), _fetching(orders))
        for topic in (ABSENT, MISNAMED):
            fetch(version, _fetching(topic), _fetching(orders))
        for epoch in (-2, 0, 9):
            fetch(version, _fetching(orders, current_leader_epoch=epoch))
            fetch(version, _fetching(orders, last_fetched_epoch=epoch))
        fetch(version, _fetching(orders, partition_max_bytes=0))
        fetch(version)
        for session in ((0, 1), (12345, 1), (0, -2)):
            fetch(version, _fetching(orders), session=session)
        opened = fetch(version, _fetching(orders), _fetching(orders, 1), session=(0, 0))
        if version >= SESSIONS_SINCE:
            session_id = opened.session_id
            fetch(version, session=(session_id, 1))
            fetch(version, _fetching(orders, offset=6), session=(session_id, 2))
            fetch(version, session=(session_id, 9))
            fetch(version, _fetching(ABSENT), session=(session_id, 3))
            fetch(version, session=(session_id, 4))
            fetch(version, session=(session_id, -1))
            fetch(version, session=(session_id, 5))
            sessions_of_little(fetch, version, orders)


def fetched_at_no_level(script: Script, orders: Topic) -> None:
    # In the versions between, Kafka names the partitions beside the error of the whole request.
    for version in (*range(4, SESSIONS_SINCE), *range(TOPIC_IDS_SINCE, 19)):
        _fetch(script, version, _fetching(orders), _fetching(ABSENT), isolation=2)


def _fetch(
    script: Script,
    version: int,
    *parts: Fields,
    session: tuple[int, int] = (0, -1),
    isolation: int = 0,
    forgotten: Sequence[Fields] = (),
) -> Any:
    return script.ask(
        FetchRequest,
        version,
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=isolation,
        session_id=session[0],
        session_epoch=session[1],
        topics=list(parts),
        forgotten_topics_data=list(forgotten),
    )


def sessions_of_little(fetch: Callable[..., Any], version: int, orders: Topic) -> None:
    """A session may begin without partitions; one that is left without any ends."""
    session_id = fetch(version, session=(0, 0)).session_id
    fetch(version, _fetching(orders), session=(session_id, 1))
    fetch(version, session=(session_id, 2))
    forgotten = [{"topic": orders.name, "topic_id": orders.topic_id, "partitions": [0, 1]}]
    fetch(version, _fetching(orders, 1), session=(session_id, 3), forgotten=forgotten)
    fetch(version, session=(session_id, 4))
    session_id = fetch(version, session=(0, 0)).session_id
    fetch(version, session=(session_id, 1))
    fetch(version, session=(session_id, 2))
    if version >= TOPIC_IDS_SINCE:
        session_id = fetch(version, _fetching(orders), session=(0, 0)).session_id
        fetch(TOPIC_IDS_SINCE - 1, session=(session_id, 1))


def _fetching(topic: Topic, index: int = 0, offset: int = 0, **fields: int) -> Fields:
    bounds = {"partition_max_bytes": 1 << 20, "current_leader_epoch": -1, "last_fetched_epoch": -1}
    partition = {"partition": index, "fetch_offset": offset, "log_start_offset": -1}
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id,
        "partitions": [partition | bounds | fields],
    }


def offsets_found(script: Script, orders: Topic) -> None:
    asked: list[tuple[Topic, list[tuple[int, int, int]]]] = [
        *((orders, [(index, time, -1)]) for index in (0, 1) for time in (*range(-7, 1), 5, 6)),
        *((orders, [(0, -1, epoch)]) for epoch in (-2, 0, 9)),
        *((topic, []) for topic in (orders, ABSENT)),
        (orders, [(9, -1, -1), (0, -2, -1)]),
        *((topic, [(0, -1, -1)]) for topic in (ABSENT, MISNAMED)),
        *((topic, [(9, time, -1)]) for topic in (orders, ABSENT) for time in (-3, -7)),
    ]
    for version in range(1, 12):
        for topic, partitions in asked:
            parts = [
                {"partition_index": index, "timestamp": timestamp, "current_leader_epoch": epoch}
                for index, timestamp, epoch in partitions
            ]
            # Versions 2 and later have a level.
            for isolation in (0, 1, 2, -1) if version > 1 else (0,):
                script.ask(
                    ListOffsetsRequest,
                    version,
                    replica_id=-1,
                    isolation_level=isolation,
                    topics=[{"name": topic.name, "partitions": parts}],
                    timeout_ms=10_000,
                )


def ends_of_epochs(script: Script, orders: Topic) -> None:
    for version in range(2, 5):
        for topic, index in ((orders, 0), (orders, 1), (orders, 9), (ABSENT, 0)):
            for current_epoch, epoch in product((-2, -1, 0, 9), repeat=2):
                asked = {
                    "partition": index,
                    "current_leader_epoch": current_epoch,
                    "leader_epoch": epoch,
                }
                script.ask(
                    OffsetForLeaderEpochRequest,
                    version,
                    replica_id=-1,
                    topics=[{"topic": topic.name, "partitions": [asked]}],
                )


def who_comes_with_sasl(script: Script, orders: Topic) -> None:
    for version in (0, 1):
        for mechanism in ("PLAIN", ""):
            script.ask(SaslHandshakeRequest, version, mechanism=mechanism)
    for version in range(3):
        script.ask(SaslAuthenticateRequest, version, auth_bytes=b"\0user\0secret")


SCRIPTS = [
    metadata,
    coordinators,
    produced,
    fetched,
    fetched_at_no_level,
    offsets_found,
    ends_of_epochs,
    who_comes_with_sasl,
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_clients_are_answered_alike(
    both_brokers: tuple[Broker, Broker], name: MakeName, script: Callable[[Script, Topic], None]
) -> None:
    assert differences(both_brokers, name("orders"), script) == []


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_coordinator_comes_with_the_words_for_no_error(
    broker: Broker, name: MakeName, version: int
) -> None:
    group = name("group")
    with Connection(broker.bootstrap) as connection:
        connection.go_to_coordinator(group, key_type=0)  # Kafka makes its topic first
        request = FindCoordinatorRequest[version](key=group, key_type=0)
        found = connection.call(request, FindCoordinatorResponse)
    assert (found.error_code, found.error_message) == (0, "NONE")
