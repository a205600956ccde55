"""The last consumer member comes back as a classic one: what the other members hear of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from magnetar.broker import Broker
from tests.magnetar.group_members import GROUP, ORDERS, beat
from wire.error_code import ErrorCode
from wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

CONSUMER = "consumer"


@pytest.fixture
async def group(broker: Broker, client: Any) -> ConsumerGroupHeartbeatResponse:
    """A group of a static consumer and a classic member, which waits for what the first has."""
    broker.topics.create("orders", 4)
    await beat(client, "static", 0, instance_id="one")
    await join(client, "classic", "range", "roundrobin")
    told = await beat(client, "static", 2, instance_id="one")
    assert told.assignment is not None
    return told


async def join(
    client: Any, member_id: str, *names: str, instance_id: str | None = None
) -> JoinGroupResponse:
    request = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type=CONSUMER,
        protocols=[JoinGroupRequestProtocol(name=name, metadata=ORDERS) for name in names],
    )
    answer: JoinGroupResponse = await client.ask(request, 9, JoinGroupResponse)
    assert answer.error_code == ErrorCode.NONE
    return answer


async def give_back(client: Any, told: ConsumerGroupHeartbeatResponse) -> None:
    """Let the static member be at the group's epoch, with half of the partitions."""
    assert told.assignment is not None
    kept = [
        TopicPartitions(topic_id=each.topic_id, partitions=each.partitions)
        for each in told.assignment.topic_partitions
    ]
    answer = await beat(client, "static", 2, instance_id="one", topic_partitions=kept)
    assert answer.member_epoch == 3


async def synced(client: Any, joined: JoinGroupResponse) -> SyncGroupResponse:
    request = SyncGroupRequest(
        group_id=GROUP,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type=joined.protocol_type,
        protocol_name=joined.protocol_name,
    )
    answer: SyncGroupResponse = await client.ask(request, 5, SyncGroupResponse)
    return answer


async def heartbeat(client: Any, member_id: str, generation_id: int) -> int:
    request = HeartbeatRequest(group_id=GROUP, generation_id=generation_id, member_id=member_id)
    return int((await client.ask(request, 4, HeartbeatResponse)).error_code)


async def test_a_member_that_waits_for_partitions_is_told_to_join(
    client: Any, group: ConsumerGroupHeartbeatResponse
) -> None:
    await give_back(client, group)
    back = await join(client, "", "range", "roundrobin", instance_id="one")
    # Else it would never hear of the partitions that it waited for.
    assert await heartbeat(client, "classic", 3) == ErrorCode.REBALANCE_IN_PROGRESS
    assert (await synced(client, back)).error_code == ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("names", [("range", "roundrobin"), ("roundrobin", "range")])
async def test_members_that_have_their_partitions_go_on_if_they_prefer_the_same_protocol(
    client: Any, group: ConsumerGroupHeartbeatResponse, names: tuple[str, str]
) -> None:
    await give_back(client, group)
    assert (await join(client, "classic", "range", "roundrobin")).generation_id == 3
    back = await join(client, "", *names, instance_id="one")
    # A member that names another protocol in its sync than the group has chosen would be refused,
    # and clients end then.
    expected = ErrorCode.REBALANCE_IN_PROGRESS if names[0] != "range" else ErrorCode.NONE
    assert (await synced(client, back)).error_code == expected
    assert await heartbeat(client, "classic", 3) == expected


async def test_a_sync_that_names_another_protocol_hears_of_the_rebalance_first(
    broker: Broker, client: Any, group: ConsumerGroupHeartbeatResponse
) -> None:
    for member_id in ("second", "third"):
        await join(client, member_id, "roundrobin", "range")
    joined = await join(client, "classic", "range", "roundrobin")
    await beat(client, "static", -1, instance_id="one")
    # The classic group chooses what most prefer. Clients end where their protocol is refused.
    assert broker.groups.find(GROUP).protocol_name == "roundrobin" != joined.protocol_name
    assert broker.groups.find(GROUP).generation_id == joined.generation_id
    assert (await synced(client, joined)).error_code == ErrorCode.REBALANCE_IN_PROGRESS


async def test_a_restart_forgets_no_rebalance_that_follows_the_downgrade(
    start_broker: Any, connect: Callable[[Broker], Awaitable[Any]]
) -> None:
    settings = {"durability": "page-cache"}
    broker = await start_broker(settings)
    broker.topics.create("orders", 4)
    client = await connect(broker)
    await beat(client, "consumer", 0)
    joined = await join(client, "classic", "range")
    assert (await synced(client, joined)).error_code == ErrorCode.NONE
    # Nothing else tells the member to take what the other one had.
    await beat(client, "consumer", -1)
    await broker.stop()
    client = await connect(await start_broker(settings))
    code = await heartbeat(client, "classic", joined.generation_id)
    assert code == ErrorCode.REBALANCE_IN_PROGRESS
    again = await join(client, "classic", "range")
    assert (again.leader, again.generation_id) == ("classic", joined.generation_id + 1)
