"""Consumer groups of very many members: no step is for all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakSet

import pytest

from coordinator.groups.consumer.group import ConsumerGroup
from magnetar.broker import Broker
from magnetar.runtime import consumer_groups
from magnetar.runtime.consumer_groups import ConsumerGroups
from magnetar.runtime.shard import RunningShard
from magnetar.runtime.turns import Turns
from tests.magnetar.clocks import MovedClock
from tests.magnetar.group_members import GROUP, ORDERS, beat
from wire.error_code import ErrorCode
from wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from wire.messages.consumer_group_heartbeat import TopicPartitions
from wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)

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


@pytest.fixture
def drafts_at_waits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Note at each wait for the disk how many drafts of groups were made so far, and are left."""
    made: list[None] = []
    living: WeakSet[ConsumerGroup] = WeakSet()
    waits: list[tuple[int, int]] = []
    draft, durable = ConsumerGroup.draft, RunningShard.durable

    def drafted(self: ConsumerGroup) -> ConsumerGroup:
        made.append(None)
        copy = draft(self)
        living.add(copy)
        return copy

    def waited(self: RunningShard[Any, Any], end_offset: int) -> Any:
        waits.append((len(made), len(living)))
        return durable(self, end_offset)

    monkeypatch.setattr(ConsumerGroup, "draft", drafted)
    monkeypatch.setattr(RunningShard, "durable", waited)
    return waits


async def test_members_that_wait_for_the_disk_hold_no_copies_of_their_group(
    broker: Broker, client: Any, drafts_at_waits: list[tuple[int, int]]
) -> None:
    """1,000 members that waited for one sync held 1,000 copies of their group: 100 MB."""
    await join(client)
    request = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000,
        member_id="classic",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=ORDERS)],
    )
    answer = await client.ask(request, 3, JoinGroupResponse)
    assert answer.error_code == ErrorCode.NONE
    made, _ = drafts_at_waits[-1]
    assert made == MEMBERS, "one for each member but the first"
    assert all(left == 0 for _, left in drafts_at_waits)


async def test_a_member_that_takes_its_next_step_copies_no_group(
    broker: Broker, client: Any, drafts_at_waits: list[tuple[int, int]]
) -> None:
    """1,000 members in a rebalance copied their group 1,000 times: half of what they cost."""
    epochs = [(await beat(client, f"member-{n}", 0)).member_epoch for n in range(4)]
    before, _ = drafts_at_waits[-1]
    after = [
        (await beat(client, f"member-{n}", epoch)).member_epoch for n, epoch in enumerate(epochs)
    ]
    assert after != epochs, "some have moved to the epoch of the last join"
    assert drafts_at_waits[-1] == (before, 0)


async def test_heartbeats_that_come_at_once_give_up_their_turn(
    broker: Broker, client: Any, given_up: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 members in a rebalance held the others up for 290 ms, in one turn."""
    joined = await beat(client, "member", 0)
    monkeypatch.setattr(Turns, "is_over", lambda _: True)
    given_up.clear()
    await beat(client, "member", joined.member_epoch)
    assert len(given_up) == 1
