"""Consumer groups through the broker: what is written, who is given up, what a restart keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from coordinator.groups.consumer.requests import HeartbeatRequest as MemberHeartbeat
from coordinator.partitioning import partition_for
from magnetar.broker import Broker
from magnetar.storage.topic_names import CONSUMER_OFFSETS
from tests.magnetar.clocks import MovedClock
from tests.magnetar.group_members import GROUP, ORDERS, beat
from wire.error_code import ErrorCode
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

Connect = Callable[[Broker], Awaitable[Any]]


@pytest.fixture
async def broker(start_broker: Any, clock: MovedClock) -> Broker:
    started: Broker = await start_broker(clock=clock)
    started.topics.create("orders", 4)
    return started


async def passes(broker: Broker, clock: MovedClock, passed_ms: int) -> None:
    """Let time pass, and let the broker see who is overdue."""
    clock.passed_ms += passed_ms
    await broker.groups.timers.expire_due()


def owned(answer: ConsumerGroupHeartbeatResponse) -> list[TopicPartitions]:
    assert answer.assignment is not None
    return [
        TopicPartitions(topic_id=each.topic_id, partitions=each.partitions)
        for each in answer.assignment.topic_partitions
    ]


async def described(client: Any) -> DescribedGroup:
    request = ConsumerGroupDescribeRequest(group_ids=[GROUP], include_authorized_operations=True)
    answer = await client.ask(request, 1, ConsumerGroupDescribeResponse)
    group: DescribedGroup = answer.groups[0]
    return group


def classic_join(member_id: str = "") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=ORDERS)],
    )


async def classic_heartbeat(client: Any, member_id: str, generation_id: int) -> int:
    request = HeartbeatRequest(group_id=GROUP, generation_id=generation_id, member_id=member_id)
    return int((await client.ask(request, 4, HeartbeatResponse)).error_code)


def log_end(broker: Broker) -> int:
    topic = broker.topics.by_name(CONSUMER_OFFSETS)
    assert topic is not None
    return topic.local[partition_for(GROUP, len(topic.local))].log_end_offset


def limit_batches(broker: Broker, size_bytes: int) -> None:
    """Let the coordinator's batches take `size_bytes` at most."""
    for log in broker.topics.ensure_internal(CONSUMER_OFFSETS).local:
        log.reconfigure(replace(log.config, max_message_bytes=size_bytes))


async def test_group_version_is_finalized(client: Any) -> None:
    request = ApiVersionsRequest(client_software_name="t", client_software_version="1")
    answer = await client.ask(request, 4, ApiVersionsResponse)
    finalized = {each.name: each.max_version_level for each in answer.finalized_features}
    assert finalized["group.version"] == 1


async def test_heartbeats_of_a_group_at_rest_write_nothing(broker: Broker, client: Any) -> None:
    await beat(client, "a", 0)
    before = log_end(broker)
    for _ in range(5):
        assert (await beat(client, "a", 2)).error_code == ErrorCode.NONE
    assert log_end(broker) == before


async def test_a_silent_member_is_given_up_when_its_session_ends(
    broker: Broker, client: Any, clock: MovedClock
) -> None:
    await beat(client, "a", 0)
    await passes(broker, clock, 44_000)
    assert (await beat(client, "a", 2)).error_code == ErrorCode.NONE
    await passes(broker, clock, 44_000)
    assert (await described(client)).group_state == "Stable"
    await passes(broker, clock, 1_100)
    assert (await described(client)).group_state == "Empty"
    assert (await beat(client, "a", 2)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_member_that_does_not_give_back_in_time_is_given_up(
    broker: Broker, client: Any, clock: MovedClock
) -> None:
    await beat(client, "slow", 0, rebalance_timeout_ms=5_000)
    await beat(client, "b", 0)
    await beat(client, "slow", 2)
    await passes(broker, clock, 4_000)
    assert (await beat(client, "slow", 2)).error_code == ErrorCode.NONE, "it may be slow"
    await passes(broker, clock, 1_100)
    assert (await beat(client, "slow", 2)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    answer = await beat(client, "b", 3)
    assert [each.partitions for each in owned(answer)] == [[0, 1, 2, 3]]


async def test_a_static_member_that_stays_away_is_given_up(
    broker: Broker, client: Any, clock: MovedClock
) -> None:
    await beat(client, "a", 0, instance_id="one")
    await beat(client, "a", -2, instance_id="one")
    await passes(broker, clock, 44_000)
    assert len((await described(client)).members) == 1
    await passes(broker, clock, 1_100)
    assert (await described(client)).members == []


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_static_member_that_leaves_for_a_while_need_not_give_back_in_time(
    start_broker: Any, connect: Connect, clock: MovedClock, restarts: bool
) -> None:
    settings = {"durability": "page-cache"}
    broker = await start_broker(settings, clock=clock)
    broker.topics.create("orders", 4)
    client = await connect(broker)
    joined = await beat(client, "a", 0, instance_id="one", rebalance_timeout_ms=5_000)
    await beat(client, "b", 0)
    asked = await beat(client, "a", joined.member_epoch, instance_id="one")
    assert asked.assignment is not None, "it is to give partitions back"
    await beat(client, "a", -2, instance_id="one")
    if restarts:
        await broker.stop()
        broker = await start_broker(settings, clock=clock)
        client = await connect(broker)
    await passes(broker, clock, 6_000)
    assert len((await described(client)).members) == 2
    back = await beat(client, "c", 0, instance_id="one", rebalance_timeout_ms=5_000)
    assert back.error_code == ErrorCode.NONE
    await passes(broker, clock, 6_000)
    assert len((await described(client)).members) == 2


async def test_a_restart_keeps_members_and_epochs(start_broker: Any, connect: Connect) -> None:
    settings = {"durability": "page-cache"}
    broker = await start_broker(settings)
    broker.topics.create("orders", 4)
    client = await connect(broker)
    await beat(client, "a", 0)
    await beat(client, "b", 0)
    told = await beat(client, "a", 2)
    before = await described(client)
    await broker.stop()
    broker = await start_broker(settings)
    client = await connect(broker)
    assert await described(client) == before
    assert (await beat(client, "a", 2, topic_partitions=owned(told))).member_epoch == 3
    answer = await beat(client, "b", 3)
    assert len(owned(answer)[0].partitions) == 2


async def test_an_empty_group_is_deleted_for_good(broker: Broker, client: Any) -> None:
    await beat(client, "a", 0)
    request = DeleteGroupsRequest(groups_names=[GROUP])
    refused = await client.ask(request, 2, DeleteGroupsResponse)
    assert refused.results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    await beat(client, "a", -1)
    deleted = await client.ask(request, 2, DeleteGroupsResponse)
    assert deleted.results[0].error_code == ErrorCode.NONE
    assert (await described(client)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert (await beat(client, "a", 0)).member_epoch == 2, "a new group"


async def test_groups_are_listed_by_type(client: Any) -> None:
    await beat(client, "a", 0)
    for types, found in ((["consumer"], [GROUP]), (["classic"], []), ([], [GROUP])):
        request = ListGroupsRequest(types_filter=types)
        answer = await client.ask(request, 5, ListGroupsResponse)
        assert [each.group_id for each in answer.groups] == found


async def test_members_fetch_offsets_with_their_epoch(client: Any) -> None:
    await beat(client, "a", 0)
    for epoch, code in ((2, ErrorCode.NONE), (1, ErrorCode.STALE_MEMBER_EPOCH)):
        group = OffsetFetchRequestGroup(
            group_id=GROUP, member_id="a", member_epoch=epoch, topics=None
        )
        answer = await client.ask(OffsetFetchRequest(groups=[group]), 9, OffsetFetchResponse)
        assert answer.groups[0].error_code == code


async def test_a_protocol_that_is_not_named_is_not_served(
    start_broker: Any, connect: Connect
) -> None:
    settings = {"group.coordinator.rebalance.protocols": "classic"}
    client = await connect(await start_broker(settings))
    assert (await beat(client, "a", 0)).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert (await described(client)).error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_who_waits_in_a_classic_group_is_sent_back_when_it_is_upgraded(
    broker: Broker, connect: Connect
) -> None:
    one, two, three = [await connect(broker) for _ in range(3)]
    first = await one.ask(classic_join(), 3, JoinGroupResponse)
    two.send(classic_join(), 3)
    while len(broker.groups.find(GROUP).members) < 2:
        await asyncio.sleep(0)
    answer = await beat(three, "new", 0)
    assert answer.error_code == ErrorCode.NONE
    _, body = await two.receive()
    sent_back = JoinGroupResponse.decode(body, 3)
    assert sent_back.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    code = await classic_heartbeat(one, first.member_id, first.generation_id)
    assert code == ErrorCode.REBALANCE_IN_PROGRESS


async def test_a_classic_member_that_does_not_sync_or_join_again_is_given_up(
    broker: Broker, client: Any, clock: MovedClock
) -> None:
    await beat(client, "new", 0, rebalance_timeout_ms=600_000)
    joined = await client.ask(classic_join(), 3, JoinGroupResponse)
    for _ in range(3):
        await passes(broker, clock, 7_000)
        await beat(client, "new", 2)
        code = await classic_heartbeat(client, joined.member_id, joined.generation_id)
    assert code == ErrorCode.UNKNOWN_MEMBER_ID, "its heartbeats do not help"


async def test_a_group_whose_last_consumer_leaves_is_a_classic_group_that_rebalances(
    broker: Broker, client: Any
) -> None:
    await beat(client, "new", 0)
    joined = await client.ask(classic_join(), 3, JoinGroupResponse)
    sync = SyncGroupRequest(
        group_id=GROUP, generation_id=joined.generation_id, member_id=joined.member_id
    )
    assert (await client.ask(sync, 3, SyncGroupResponse)).error_code == ErrorCode.NONE
    await beat(client, "new", -1)
    code = await classic_heartbeat(client, joined.member_id, joined.generation_id)
    assert code == ErrorCode.REBALANCE_IN_PROGRESS
    again = await client.ask(classic_join(joined.member_id), 3, JoinGroupResponse)
    assert (again.error_code, again.leader) == (ErrorCode.NONE, joined.member_id)


async def test_an_administrator_removes_members_of_either_protocol(client: Any) -> None:
    await beat(client, "a", 0, instance_id="one")
    members = [
        MemberIdentity(member_id="", group_instance_id="one"),
        MemberIdentity(member_id="unknown", group_instance_id=None),
    ]
    request = LeaveGroupRequest(group_id=GROUP, members=members)
    answer = await client.ask(request, 5, LeaveGroupResponse)
    assert [each.error_code for each in answer.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert (await described(client)).members == []


async def test_a_classic_join_makes_an_empty_consumer_group_a_classic_one(
    broker: Broker, client: Any
) -> None:
    await beat(client, "a", 0)
    await beat(client, "a", -1)
    joined = await client.ask(classic_join(), 3, JoinGroupResponse)
    assert (joined.error_code, joined.generation_id) == (ErrorCode.NONE, 1)
    assert broker.groups.find(GROUP).members
    assert (await described(client)).error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_a_classic_join_that_is_refused_leaves_an_empty_consumer_group_as_it_is(
    broker: Broker, client: Any
) -> None:
    await beat(client, "a", 0)
    await beat(client, "a", -1)
    epoch = (await described(client)).group_epoch
    end_offset = log_end(broker)
    stranger = await client.ask(classic_join("stranger"), 3, JoinGroupResponse)
    assert stranger.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    speechless = classic_join()
    speechless.protocols = []
    refused = await client.ask(speechless, 3, JoinGroupResponse)
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert (await described(client)).group_epoch == epoch
    assert log_end(broker) == end_offset


async def test_a_pattern_follows_topics_that_come(broker: Broker, client: Any) -> None:
    answer = await beat(client, "a", 0, subscribed_topic_names=None, subscribed_topic_regex="ord.*")
    assert len(owned(answer)) == 0
    answer = await beat(client, "a", answer.member_epoch)
    assert len(owned(answer)) == 1
    broker.topics.create("ordinals", 1)
    epoch = 2
    for _ in range(1_000):
        answer = await beat(client, "a", epoch)
        if answer.assignment is not None:
            break
    assert len(owned(answer)) == 2
    assert answer.member_epoch == 3


async def test_an_assignment_larger_than_a_batch_is_written_in_several(
    start_broker: Any, connect: Connect
) -> None:
    settings = {"durability": "page-cache"}
    broker = await start_broker(settings)
    limit_batches(broker, 2_000)
    broker.topics.create("orders", 200)
    client = await connect(broker)
    for number in range(20):
        assert (await beat(client, f"m{number}", 0)).error_code == ErrorCode.NONE
    before = await described(client)
    await broker.stop()
    broker = await start_broker(settings)
    assert await described(await connect(broker)) == before


@pytest.mark.parametrize("policy", ["disabled", "upgrade", "downgrade", "bidirectional"])
async def test_groups_are_migrated_as_the_policy_allows(
    start_broker: Any, connect: Connect, policy: str
) -> None:
    broker = await start_broker({"group.consumer.migration.policy": policy})
    broker.topics.create("orders", 4)
    client, other = await connect(broker), await connect(broker)
    await client.ask(classic_join(), 3, JoinGroupResponse)
    answer = await beat(other, "new", 0)
    upgrades = policy in ("bidirectional", "upgrade")
    expected = ErrorCode.NONE if upgrades else ErrorCode.GROUP_ID_NOT_FOUND
    assert answer.error_code == expected, answer.error_message
    await beat(client, "new", 0, group_id="second")
    request = classic_join()
    request.group_id = "second"
    joined = await client.ask(request, 3, JoinGroupResponse)
    if policy == "disabled":
        assert joined.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return
    assert joined.error_code == ErrorCode.NONE
    await beat(client, "new", -1, group_id="second")
    downgrades = policy in ("bidirectional", "downgrade")
    answered = await client.ask(ListGroupsRequest(types_filter=["classic"]), 5, ListGroupsResponse)
    assert ("second" in [each.group_id for each in answered.groups]) is downgrades


async def test_a_member_that_changes_its_protocol_is_waited_for_as_its_new_one(
    broker: Broker, client: Any, clock: MovedClock
) -> None:
    await beat(client, "other", 0)
    joined = await client.ask(classic_join("both"), 3, JoinGroupResponse)
    assert joined.error_code == ErrorCode.NONE
    assert (await beat(client, "both", 0)).error_code == ErrorCode.NONE
    await passes(broker, clock, 21_000)
    epoch = (await beat(client, "both", 0)).member_epoch
    assert (await beat(client, "both", epoch)).error_code == ErrorCode.NONE


async def test_a_subscription_too_large_for_a_record_is_refused_and_nobody_else_suffers(
    broker: Broker, connect: Connect
) -> None:
    limit_batches(broker, 5_000)
    client, other = await connect(broker), await connect(broker)
    names = [f"{number:0200}" for number in range(100)]
    answer = await beat(client, "a", 0, subscribed_topic_names=names)
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert (await beat(other, "b", 0)).error_code == ErrorCode.NONE
    assert (await beat(client, "a", 0)).error_code == ErrorCode.NONE


async def test_a_member_whose_target_is_too_large_for_a_record_leaves_no_ghost(
    broker: Broker, client: Any, clock: MovedClock
) -> None:
    broker.topics.create("large", 1_000)
    limit_batches(broker, 2_000)
    answer = await beat(client, "a", 0, subscribed_topic_names=["large"])
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
    await passes(broker, clock, 46_000)
    assert (await described(client)).members == []


@pytest.mark.usefixtures("short_turns")
async def test_members_that_join_at_once_take_turns(broker: Broker) -> None:
    joins = [
        asyncio.create_task(
            broker.groups.consumer.heartbeat(
                MemberHeartbeat(
                    group_id=GROUP,
                    member_id=f"m{number}",
                    member_epoch=0,
                    topic_names=frozenset({"orders"}),
                    rebalance_timeout_ms=10_000,
                    owned={},
                ),
                1,
                lambda _: True,
            )
        )
        for number in range(20)
    ]
    counts = [0]
    while counts[-1] < len(joins):
        await asyncio.sleep(0)
        groups = broker.groups.shards.of(GROUP).state.consumer_groups
        counts.append(len(groups[GROUP].members) if GROUP in groups else 0)
    assert max(after - before for before, after in pairwise(counts)) == 1
    await asyncio.gather(*joins)


async def test_a_pattern_matches_no_topic_that_its_member_may_not_know(broker: Broker) -> None:
    for name in ("pattern-a", "pattern-b"):
        broker.topics.create(name, 1)
    join = MemberHeartbeat(
        group_id=GROUP,
        member_id="m",
        member_epoch=0,
        topic_regex="pattern-.*",
        rebalance_timeout_ms=10_000,
        owned={},
    )

    async def matched(request: MemberHeartbeat) -> tuple[int, frozenset[str]]:
        answer = await broker.groups.consumer.heartbeat(
            request, 1, lambda name: name in ("pattern-a", "pattern-d")
        )
        group = broker.groups.shards.of(GROUP).state.consumer_groups[GROUP]
        return answer.member_epoch, group.regexes["pattern-.*"].topics

    epoch, topics = await matched(join)
    assert topics == {"pattern-a"}
    # New topics are matched beside the heartbeats.
    for name in ("pattern-c", "pattern-d"):
        broker.topics.create(name, 1)
    deadline = asyncio.get_running_loop().time() + 10
    while len(topics) == 1 and asyncio.get_running_loop().time() < deadline:
        epoch, topics = await matched(replace(join, member_epoch=epoch, topic_regex=None))
        await asyncio.sleep(0.01)
    assert topics == {"pattern-a", "pattern-d"}
