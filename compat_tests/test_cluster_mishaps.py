"""Mishaps of a cluster's database that are no fail-over, of ways to clients, and of what they know.

Two nodes over one server. The tests follow one another: each leaves both nodes serving. What fails
over, or is cut off from the database: `test_cluster_failures`. Longer ones: `cluster_mishaps`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import psycopg
import pytest
from confluent_kafka import TopicPartition
from kafka import TopicPartition as KafkaPythonPartition
from kafka.admin import KafkaAdminClient

from compat_tests.cluster_mishaps import Place, place
from compat_tests.confluent_client import consumer, producer, send
from compat_tests.offsets import commit, positions
from compat_tests.test_cluster import leaders, make_topics
from compat_tests.test_cluster_failures import (
    FENCED,
    LEADS,
    PATIENCE_S,
    await_said,
    shard,
    writing,
)
from compat_tests.waiting import eventually

__all__ = ["place"]

pytestmark = [pytest.mark.magnetar_only(reason="Kafka's nodes have disks of their own")]

#: What the database answers when its disk is full.
FULL_DISK = """
CREATE FUNCTION magnetar.full_disk() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$;
CREATE TRIGGER full_disk BEFORE INSERT ON magnetar.chunks EXECUTE FUNCTION magnetar.full_disk()
"""
ROOM = "DROP FUNCTION magnetar.full_disk CASCADE"


def test_a_paused_node_wakes_while_its_partitions_are_taken_over(place: Place) -> None:
    node = place.cluster.nodes[2]
    with writing(place.cluster, "wakes-early"):
        paused, before = node.pid(), place.incarnation(2)
        ended, led = map(node.output.count, ("node ended", LEADS))
        os.kill(paused, signal.SIGSTOP)
        place.await_take_over(2, before)
        os.kill(paused, signal.SIGCONT)
        await_said(node, "node ended", ended)
        await_said(node, LEADS, led)
        assert FENCED in node.output, node.output


@contextmanager
def read_only(place: Place) -> Iterator[None]:
    place.ask("ALTER SYSTEM SET default_transaction_read_only = on")
    place.ask("SELECT pg_reload_conf()")
    yield
    place.ask("ALTER SYSTEM RESET default_transaction_read_only")
    place.ask("SELECT pg_reload_conf()")


@contextmanager
def full_disk(place: Place) -> Iterator[None]:
    place.ask(FULL_DISK)
    yield
    place.ask(ROOM)


@contextmanager
def no_connection_left(place: Place) -> Iterator[None]:
    """Take all connections that the nodes had, and all others."""
    with ExitStack() as taken, psycopg.connect(place.server.url, autocommit=True) as admin:

        def has_none() -> bool:
            """Return whether no node had a connection, and take what is free."""
            ended = admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name LIKE 'magnetar%'"
            ).fetchall()
            with suppress(psycopg.OperationalError):
                while True:
                    taken.enter_context(psycopg.connect(place.server.url))
            return not ended

        ends = time.monotonic() + 3
        while time.monotonic() < ends:
            has_none()
        # Nor has one taken what was free meanwhile.
        eventually(lambda: has_none() and has_none())
        yield


@pytest.mark.parametrize("refusing", [read_only, full_disk, no_connection_left])
def test_a_database_that_refuses_is_waited_for(
    place: Place, refusing: Callable[[Place], Any]
) -> None:
    cluster = place.cluster
    told, topic = "clients are turned away", refusing.__name__.replace("_", "-")
    with writing(cluster, topic) as writer:
        before = {node: node.output.count(told) for node in cluster.nodes.values()}
        lines = sum(len(node.output.splitlines()) for node in before)
        with refusing(place):
            for node, times in before.items():
                await_said(node, told, times)
            said = sum(len(node.output.splitlines()) for node in before) - lines
            assert said < 60, "an outage does not fill the log"
        writer.await_all()
        eventually(lambda: {*leaders(cluster, topic)} == {1, 2}, PATIENCE_S)


def test_clients_that_do_not_reach_a_node_go_on_when_it_is_stopped(place: Place) -> None:
    node = place.cluster.nodes[2]
    with writing(place.cluster, "unreachable", socket_timeout_ms=5_000) as writer:
        ready = node.output.count(" ready on ")
        place.client_proxy.cut()
        # It leads on: it has its lease. What stops it makes others lead.
        assert 2 in leaders(place.cluster, "unreachable")
        assert node.stop() == 0
        eventually(lambda: {*leaders(place.cluster, "unreachable")} == {1}, PATIENCE_S)
        writer.await_all()
        place.client_proxy.heal()
        node.spawn()
        node.await_ready(ready + 1)


def move(place: Place, topic: str, partition: int) -> None:
    """Make the other node the leader."""
    before = leaders(place.cluster, topic)[partition]
    admin = KafkaAdminClient(bootstrap_servers=place.cluster.bootstrap.split(","))
    others = [node_id for node_id in place.cluster.nodes if node_id != before]
    admin.alter_partition_reassignments({KafkaPythonPartition(topic, partition): others})
    admin.close()
    eventually(lambda: leaders(place.cluster, topic)[partition] != before, PATIENCE_S)


def test_consumers_that_are_no_members_find_a_coordinator_that_has_moved(place: Place) -> None:
    """Its former node lives, and no heartbeat tells librdkafka that it has moved."""
    bootstrap, committed = place.cluster.bootstrap, TopicPartition("moving", 0, 1)
    make_topics(place.cluster, "moving")
    send(producer(bootstrap), "moving", [(b"k", b"0"), (b"k", b"1")])
    asking, reading = consumer(bootstrap, "moving"), consumer(bootstrap, "moving")
    for each in (asking, reading):
        commit(each, committed)
    move(place, "__consumer_offsets", shard("moving"))
    (stored,) = positions(asking, [TopicPartition("moving", 0)])
    assert stored.offset == 1
    reading.assign([TopicPartition("moving", 0)])
    message = reading.poll(PATIENCE_S)
    assert message is not None and message.error() is None and message.offset() == 1
    asking.close()
    reading.close()
