"""Consumer groups of very many members: no step is for all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from magnetar.broker import Broker
from magnetar.runtime import consumer_groups
from magnetar.runtime.consumer_groups import ConsumerGroups
from magnetar.runtime.turns import Turns
from tests.magnetar.clocks import MovedClock
from tests.magnetar.group_members import GROUP, beat
from wire.error_code import ErrorCode
from wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from wire.messages.consumer_group_heartbeat import TopicPartitions

MEMBERS = 7


@pytest.fixture
async def broker(start_broker: Any, clock: MovedClock) -> Broker:
    started: Broker = await start_broker(clock=clock)
    started.topics.create("orders", 4)
    return started


async def join(client: Any) -> None:
    for number in range(MEMBERS):
        await beat(client, f"member-{number}", 0)


async def test_sessions_that_end_together_end_some_at_a_time(
    broker: Broker, client: Any, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_groups, "_EXPIRED_AT_ONCE", 3)
    removed: list[int] = []
    remove = ConsumerGroups.remove

    def noted(self: ConsumerGroups, step: Any, group: Any, member_ids: Iterable[str]) -> None:
        removed.append(len([*member_ids]))
        remove(self, step, group, [*member_ids])

    monkeypatch.setattr(ConsumerGroups, "remove", noted)
    await join(client)
    clock.passed_ms += 46_000
    await broker.groups.timers.expire_due()
    assert removed == [3, 3, 1]


async def test_others_have_their_turn_between_the_members_of_a_group_that_is_described(
    broker: Broker, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await join(client)
    turns: list[None] = []
    give_up = Turns.give_up

    async def noted(self: Turns) -> None:
        turns.append(None)
        await give_up(self)

    monkeypatch.setattr(Turns, "is_over", lambda _: True)
    monkeypatch.setattr(Turns, "give_up", noted)
    request = ConsumerGroupDescribeRequest(group_ids=[GROUP])
    (group,) = (await client.ask(request, 0, ConsumerGroupDescribeResponse)).groups
    assert len(group.members) == MEMBERS
    assert len(turns) >= MEMBERS - 1


async def test_others_have_their_turn_while_a_member_says_that_it_owns_very_much(
    broker: Broker, client: Any, given_up: list[None]
) -> None:
    """A topic that was named 20,000 times held the broker up for two seconds."""
    joined = await beat(client, "member", 0)
    assert joined.assignment is not None
    (topic,) = joined.assignment.topic_partitions
    named = [
        TopicPartitions(topic_id=topic.topic_id, partitions=[number % 4]) for number in range(1_000)
    ]
    answer = await beat(client, "member", joined.member_epoch, topic_partitions=named)
    assert (answer.error_code, answer.member_epoch) == (ErrorCode.NONE, joined.member_epoch)
    assert len(given_up) >= 3
