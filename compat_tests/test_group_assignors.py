"""Every assignor of every client: two members share the partitions, the last one has them all."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as AioRoundRobin
from aiokafka.coordinator.assignors.sticky.sticky_assignor import (
    StickyPartitionAssignor as AioSticky,
)
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from compat_tests import confluent_client, java, kafka_python_client
from compat_tests.assignments import PARTITIONS, await_partitions
from compat_tests.brokers import Broker
from compat_tests.client import TIMEOUT_S
from compat_tests.conftest import MakeName, MakeTopic

ALL = list(range(PARTITIONS))
JAVA_CONSUMER = "org.apache.kafka.clients.consumer."


def is_shared(owned: list[list[int]]) -> bool:
    """Whether everybody has some, and all is had once."""
    return all(owned) and sorted(index for mine in owned for index in mine) == ALL


@pytest.mark.parametrize(
    "assignor",
    [
        RangePartitionAssignor,
        RoundRobinPartitionAssignor,
        StickyPartitionAssignor,
        CooperativeStickyAssignor,
    ],
)
def test_kafka_python(broker: Broker, topic: MakeTopic, name: MakeName, assignor: Any) -> None:
    orders, group = topic("orders", PARTITIONS), name("group")
    members = [
        kafka_python_client.consumer(
            broker.bootstrap,
            group_id=group,
            session_timeout_ms=20_000,
            heartbeat_interval_ms=200,
            max_poll_interval_ms=30_000,
            partition_assignment_strategy=[assignor],
        )
        for _ in range(2)
    ]
    try:
        for member in members:
            kafka_python_client.subscribe(member, orders)
        deadline = time.monotonic() + 2 * TIMEOUT_S
        while not is_shared([_polled(member) for member in members]):
            assert time.monotonic() < deadline
        members.pop().close()
        while not is_shared([_polled(member) for member in members]):
            assert time.monotonic() < deadline
    finally:
        for member in members:
            member.close()


def _polled(member: Any) -> list[int]:
    member.poll(timeout_ms=30)
    return [each.partition for each in member.assignment()]


@pytest.mark.parametrize("assignor", [AioRange, AioRoundRobin, AioSticky])
async def test_aiokafka(broker: Broker, topic: MakeTopic, name: MakeName, assignor: Any) -> None:
    orders, group = topic("orders", PARTITIONS), name("group")
    members = [
        AIOKafkaConsumer(
            orders,
            bootstrap_servers=broker.bootstrap,
            group_id=group,
            session_timeout_ms=20_000,
            heartbeat_interval_ms=200,
            partition_assignment_strategy=[assignor],
        )
        for _ in range(2)
    ]

    async def shared() -> None:
        while not is_shared([[each.partition for each in one.assignment()] for one in members]):
            await asyncio.sleep(0.02)

    try:
        await asyncio.gather(*(member.start() for member in members))
        await asyncio.wait_for(shared(), 2 * TIMEOUT_S)
        await members.pop().stop()
        await asyncio.wait_for(shared(), 2 * TIMEOUT_S)
    finally:
        for member in members:
            await member.stop()


@pytest.mark.parametrize(
    ("strategy", "assignor"),
    [("roundrobin", "RoundRobinAssignor"), ("cooperative-sticky", "CooperativeStickyAssignor")],
)
def test_java_beside_librdkafka(
    broker: Broker, topic: MakeTopic, name: MakeName, strategy: str, assignor: str
) -> None:
    orders, group = topic("orders", PARTITIONS), name("group")
    settings = {"session_timeout_ms": 20_000, "heartbeat_interval_ms": 200}
    mine = confluent_client.consumer(
        broker.bootstrap, group, partition_assignment_strategy=strategy, **settings
    )
    others = java.start(
        "VerifiableConsumer",
        *("--bootstrap-server", broker.bootstrap, "--topic", orders, "--group-id", group),
        *("--group-protocol", "classic", "--session-timeout", "20000"),
        *("--assignment-strategy", JAVA_CONSUMER + assignor),
    )
    try:
        mine.subscribe([orders])
        await_partitions(mine, PARTITIONS // 2)
        others.terminate()
        await_partitions(mine, PARTITIONS)
    finally:
        others.kill()
        mine.close()
