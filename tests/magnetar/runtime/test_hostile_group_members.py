"""What one member of a group says stops neither the broker nor the group's other members."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from magnetar.broker import Broker
from magnetar.runtime import patterns
from magnetar.runtime.groups import new_member_id
from tests.magnetar.clocks import MovedClock
from tests.magnetar.group_members import GROUP, ORDERS, ORDERS_OF_ANY_VERSION, beat
from wire.error_code import ErrorCode
from wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from wire.types import STRING_BYTES_MAX


@pytest.fixture
async def broker(start_broker: Any, clock: MovedClock) -> Broker:
    started: Broker = await start_broker(clock=clock)
    started.topics.create("orders", 4)
    return started


def classic_join(*protocols: tuple[str, bytes]) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=60_000,
        rebalance_timeout_ms=600_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name=name, metadata=said) for name, said in protocols],
    )


@pytest.mark.parametrize("said", [b"", b"\0", b"\xff\xff" + ORDERS_OF_ANY_VERSION])
async def test_a_group_is_downgraded_whatever_a_member_said_for_the_protocol_that_is_chosen(
    broker: Broker, client: Any, clock: MovedClock, said: bytes
) -> None:
    await beat(client, "new", 0, rebalance_timeout_ms=600_000)
    hostile = classic_join(("range", ORDERS), ("roundrobin", said))
    joined = await client.ask(hostile, 3, JoinGroupResponse)
    assert joined.error_code == ErrorCode.NONE
    others = [
        await client.ask(
            classic_join(("roundrobin", ORDERS), ("range", ORDERS)), 3, JoinGroupResponse
        )
        for _ in range(2)
    ]
    clock.passed_ms += 50_000
    await broker.groups.timers.expire_due()
    group = broker.groups.find(GROUP)
    assert set(group.members) == {joined.member_id, *(other.member_id for other in others)}


@pytest.mark.parametrize("letter", ["c", "\u00fc"])
def test_the_longest_client_id_makes_a_short_member_id(letter: str) -> None:
    longest = letter * (STRING_BYTES_MAX // len(letter.encode()))
    made = new_member_id(longest)
    assert len(made.encode()) <= 2100
    assert made.startswith(letter * 1_000)
    assert made != new_member_id(longest)
    assert new_member_id("short").startswith("short-")


async def test_a_member_that_takes_another_instance_id_leaves_the_one_it_had_free(
    broker: Broker, client: Any
) -> None:
    assert (await beat(client, "a", 0, instance_id="one")).error_code == ErrorCode.NONE
    assert (await beat(client, "a", 0, instance_id="two")).error_code == ErrorCode.NONE
    assert (await beat(client, "a", -1, instance_id="two")).error_code == ErrorCode.NONE
    assert (await beat(client, "b", 0, instance_id="one")).error_code == ErrorCode.NONE


async def until_matched(broker: Broker) -> None:
    """Return when no group's patterns are being matched."""
    states = [shard.state for shard in broker.groups.shards]
    while any(
        soft._matching_since_ms is not None
        for state in states
        for soft in state.soft_states.values()
    ):
        await asyncio.sleep(0)


async def test_while_patterns_are_slow_to_match_no_more_of_that_work_piles_up(
    broker: Broker, client: Any, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    regex = {"subscribed_topic_names": None, "subscribed_topic_regex": "o.*"}
    await beat(client, "a", 0, **regex)
    joined = await beat(client, "a", 1)
    is_quick = asyncio.Event()
    begun = 0

    async def slow(pattern: str, texts: Iterable[str]) -> frozenset[str]:
        nonlocal begun
        begun += 1
        names = frozenset(texts)
        await is_quick.wait()
        return names

    monkeypatch.setattr(patterns, "matching", slow)
    for index in range(5):
        broker.topics.create(f"other-{index}", 1)
        clock.passed_ms += 1_500
        await beat(client, "a", joined.member_epoch)
    assert begun == 1
    is_quick.set()
    await until_matched(broker)
    # What took six seconds rests for ten.
    clock.passed_ms += 5_000
    joined = await beat(client, "a", joined.member_epoch, topic_partitions=None)
    await until_matched(broker)
    assert begun == 1
    clock.passed_ms += 5_000
    await beat(client, "a", joined.member_epoch, topic_partitions=None)
    await until_matched(broker)
    assert begun == 2, "what came meanwhile is not forgotten"
    found = broker.groups.find_consumer_group(GROUP).regexes["o.*"]
    assert {"other-0", "other-4"} <= found.topics


async def test_a_pattern_that_had_no_place_is_matched_with_a_later_heartbeat(
    broker: Broker, client: Any, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of ACLs has all groups match again: of a thousand, some find no place at once."""
    regex = {"subscribed_topic_names": None, "subscribed_topic_regex": "o.*"}
    await beat(client, "a", 0, **regex)
    joined = await beat(client, "a", 1)
    broker.topics.create("other", 1)
    for places in (0, 1):
        monkeypatch.setattr(patterns.PATTERNS, "_jobs_max", places)
        clock.passed_ms += 1_500
        await beat(client, "a", joined.member_epoch)
        await until_matched(broker)
    assert "other" in broker.groups.find_consumer_group(GROUP).regexes["o.*"].topics
