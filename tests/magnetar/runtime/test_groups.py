"""Groups through the broker: what members and committers are answered, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from coordinator.groups.classic.requests import PROTOCOLS_MAX
from coordinator.partitioning import partition_for
from magnetar.broker import Broker
from magnetar.storage.topic_names import CONSUMER_OFFSETS
from tests.magnetar.clocks import MovedClock
from wire.error_code import ErrorCode
from wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from wire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from wire.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

Connect = Callable[[Broker], Awaitable[Any]]


def join_request(member_id: str = "", **fields: Any) -> JoinGroupRequest:
    values = {
        "group_id": "group",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequestProtocol(name="range", metadata=b"topics")],
    }
    return JoinGroupRequest(**{**values, **fields})


async def join(client: Any, member_id: str = "", **fields: Any) -> JoinGroupResponse:
    answer: JoinGroupResponse = await client.ask(
        join_request(member_id, **fields), 3, JoinGroupResponse
    )
    return answer


async def sync(
    client: Any, member_id: str, generation_id: int, **assigned: bytes
) -> SyncGroupResponse:
    request = SyncGroupRequest(
        group_id="group",
        generation_id=generation_id,
        member_id=member_id,
        assignments=[
            SyncGroupRequestAssignment(member_id=name.replace("_", "-"), assignment=part)
            for name, part in assigned.items()
        ],
    )
    answer: SyncGroupResponse = await client.ask(request, 3, SyncGroupResponse)
    return answer


async def heartbeat(client: Any, member_id: str, generation_id: int) -> int:
    request = HeartbeatRequest(group_id="group", generation_id=generation_id, member_id=member_id)
    answer = await client.ask(request, 3, HeartbeatResponse)
    return int(answer.error_code)


async def commit(client: Any, offset: int, **fields: Any) -> int:
    """Commit for topic-0; return the code of that partition."""
    request = OffsetCommitRequest(
        **{
            "group_id": "group",
            "topics": [
                OffsetCommitRequestTopic(
                    name="topic",
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=0,
                            committed_offset=offset,
                            committed_leader_epoch=4,
                            committed_metadata="note",
                        )
                    ],
                )
            ],
            **fields,
        }
    )
    answer = await client.ask(request, 8, OffsetCommitResponse)
    return int(answer.topics[0].partitions[0].error_code)


async def fetch(client: Any, group_id: str = "group") -> tuple[int, int, str | None, int]:
    """Return offset, leader epoch, metadata and code of topic-0, stable."""
    topics = [OffsetFetchRequestTopics(name="topic", partition_indexes=[0])]
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group_id, topics=topics)], require_stable=True
    )
    answer = await client.ask(request, 8, OffsetFetchResponse)
    found = answer.groups[0].topics[0].partitions[0]
    return (
        found.committed_offset,
        found.committed_leader_epoch,
        found.metadata,
        int(found.error_code),
    )


async def describe(client: Any, group_id: str = "group") -> DescribedGroup:
    answer = await client.ask(DescribeGroupsRequest(groups=[group_id]), 6, DescribeGroupsResponse)
    described: DescribedGroup = answer.groups[0]
    return described


async def become(client: Any, state: str) -> DescribedGroup:
    """Wait until the group is in that state, for a bounded time."""
    async with asyncio.timeout(30):
        while (described := await describe(client)).group_state != state:
            await asyncio.sleep(0.01)
    return described


def offsets_log(broker: Broker) -> Any:
    topic = broker.topics.ensure_internal("__consumer_offsets")
    return topic.partitions[partition_for("group", len(topic.partitions))]


@pytest.fixture
def topic(broker: Broker) -> Any:
    return broker.topics.create("topic", 1, 1)


async def test_two_members_form_a_generation_and_share_the_leaders_assignment(
    broker: Broker, connect: Connect
) -> None:
    one, two = await connect(broker), await connect(broker)
    first = await join(one)
    joining = asyncio.create_task(join(two))
    while await heartbeat(one, first.member_id, 1) != ErrorCode.REBALANCE_IN_PROGRESS:
        await asyncio.sleep(0)
    leader = await join(one, first.member_id)
    follower = await joining
    assert leader.generation_id == follower.generation_id == 2
    assert {member.member_id for member in leader.members} == {
        leader.member_id,
        follower.member_id,
    }
    waiting = asyncio.create_task(sync(two, follower.member_id, 2))
    await sync(one, leader.member_id, 2, **{follower.member_id: b"half"})
    assert (await waiting).assignment == b"half"
    described = await describe(one)
    assert (described.group_state, described.protocol_data) == ("Stable", "range")
    assert {member.client_host for member in described.members} == {"/127.0.0.1"}


async def test_a_heartbeat_writes_nothing(broker: Broker, client: Any) -> None:
    member = await join(client)
    await sync(client, member.member_id, 1)
    end_offset = offsets_log(broker).log_end_offset
    for _ in range(10):
        assert await heartbeat(client, member.member_id, 1) == ErrorCode.NONE
    assert offsets_log(broker).log_end_offset == end_offset


async def test_a_join_that_is_refused_creates_no_topic(start_broker: Any, connect: Connect) -> None:
    broker = await start_broker()
    refused = await join(await connect(broker), group_id="")
    assert refused.error_code == ErrorCode.INVALID_GROUP_ID
    assert broker.topics.by_name(CONSUMER_OFFSETS) is None


async def test_a_member_may_not_have_many_protocols(client: Any) -> None:
    many = [JoinGroupRequestProtocol(name=f"p{n}") for n in range(PROTOCOLS_MAX + 1)]
    refused = await join(client, protocols=many)
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert (await join(client, protocols=many[1:])).error_code == ErrorCode.NONE


async def test_a_silent_member_is_removed_in_time(start_broker: Any, connect: Connect) -> None:
    broker = await start_broker({"group.min.session.timeout.ms": "10"})
    client = await connect(broker)
    member = await join(client, session_timeout_ms=50)
    await sync(client, member.member_id, 1)
    described = await become(client, "Empty")
    assert described.members == []
    assert await heartbeat(client, member.member_id, 1) == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("set_by_ms", [3_600_000, -3_600_000])
async def test_setting_the_wall_clock_removes_no_member_and_keeps_none(
    start_broker: Any, connect: Connect, set_by_ms: int
) -> None:
    clock = MovedClock()
    broker = await start_broker(clock=clock)
    client = await connect(broker)
    member = await join(client)
    await sync(client, member.member_id, 1)
    clock.set_by_ms = set_by_ms
    await broker.groups.timers.expire_due()
    assert await heartbeat(client, member.member_id, 1) == ErrorCode.NONE
    clock.passed_ms = 9_000
    await broker.groups.timers.expire_due()
    assert (await become(client, "Stable")).members
    clock.passed_ms = 20_100
    await broker.groups.timers.expire_due()
    assert await heartbeat(client, member.member_id, 1) == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_client_that_hangs_up_while_it_joins_holds_nobody_up(
    broker: Broker, connect: Connect
) -> None:
    one, two = await connect(broker), await connect(broker)
    first = await join(one)
    await sync(one, first.member_id, 1)
    two.send(join_request(rebalance_timeout_ms=600_000), 3)
    await become(one, "PreparingRebalance")
    two.close()
    await two.writer.wait_closed()
    await heartbeat(one, first.member_id, 1)
    rejoined = await join(one, first.member_id)
    assert rejoined.generation_id == 2
    assert [member.member_id for member in rejoined.members] == [first.member_id]


async def test_a_commit_comes_back_with_epoch_and_metadata(topic: Any, client: Any) -> None:
    assert await fetch(client) == (-1, -1, "", ErrorCode.NONE)
    assert await commit(client, 42) == ErrorCode.NONE
    assert await fetch(client) == (42, 4, "note", ErrorCode.NONE)


async def test_a_commit_for_what_does_not_exist_is_refused_there_alone(
    topic: Any, client: Any
) -> None:
    partitions = [
        OffsetCommitRequestPartition(
            partition_index=index, committed_offset=1, committed_metadata=m
        )
        for index, m in ((0, "m"), (1, "m"), (-1, "m"), (0, "m" * 4_097))
    ]
    topics = [
        OffsetCommitRequestTopic(name=name, partitions=partitions) for name in ("topic", "missing")
    ]
    answer = await client.ask(
        OffsetCommitRequest(group_id="group", topics=topics), 8, OffsetCommitResponse
    )
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [[p.error_code for p in topic.partitions] for topic in answer.topics] == [
        [ErrorCode.NONE, unknown, unknown, ErrorCode.OFFSET_METADATA_TOO_LARGE],
        [unknown] * 4,
    ]


async def test_a_commit_too_large_for_one_batch_is_refused_whole(
    start_broker: Any, connect: Connect
) -> None:
    broker = await start_broker({"offset.metadata.max.bytes": "2000000"})
    broker.topics.create("topic", 1, 1)
    client = await connect(broker)
    assert await commit(client, 1) == ErrorCode.NONE
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=2, committed_metadata="m" * 30_000
    )
    request = OffsetCommitRequest(
        group_id="group",
        topics=[OffsetCommitRequestTopic(name="topic", partitions=[partition] * 50)],
    )
    answer = await client.ask(request, 8, OffsetCommitResponse)
    codes = {p.error_code for p in answer.topics[0].partitions}
    assert codes == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
    assert (await fetch(client))[0] == 1


@pytest.mark.parametrize("in_transaction", [False, True])
@pytest.mark.usefixtures("topic")
async def test_offsets_that_fit_no_batch_are_not_looked_at(
    client: Any, monkeypatch: pytest.MonkeyPatch, in_transaction: bool
) -> None:
    monkeypatch.delattr("magnetar.apis.committed_topics.CommittedOffset")
    if in_transaction:
        offset = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=2)
        named = TxnOffsetCommitRequestTopic(name="topic", partitions=[offset] * 30_000)
        answer = await client.ask(
            TxnOffsetCommitRequest(group_id="group", topics=[named]), 3, TxnOffsetCommitResponse
        )
    else:
        place = OffsetCommitRequestPartition(partition_index=0, committed_offset=2)
        asked = OffsetCommitRequestTopic(name="topic", partitions=[place] * 30_000)
        answer = await client.ask(
            OffsetCommitRequest(group_id="group", topics=[asked]), 8, OffsetCommitResponse
        )
    codes = [p.error_code for p in answer.topics[0].partitions]
    assert codes == [ErrorCode.INVALID_COMMIT_OFFSET_SIZE] * 30_000


async def test_offsets_go_with_their_topic(broker: Broker, topic: Any, client: Any) -> None:
    await commit(client, 42)
    await broker.topics.deletion.perform([topic])
    broker.topics.create("topic", 1, 1)
    assert await fetch(client) == (-1, -1, "", ErrorCode.NONE)


@pytest.mark.parametrize("member_reads", [False, True])
async def test_offsets_can_be_deleted_where_no_member_reads(
    topic: Any, client: Any, member_reads: bool
) -> None:
    await commit(client, 42)
    if member_reads:
        subscription = b"\0\1" + b"\0\0\0\1" + b"\0\5topic" + b"\xff\xff\xff\xff" + b"\0\0\0\0"
        protocols = [JoinGroupRequestProtocol(name="range", metadata=subscription)]
        member = await join(client, protocols=protocols)
        await sync(client, member.member_id, 1)
    request = OffsetDeleteRequest(
        group_id="group",
        topics=[
            OffsetDeleteRequestTopic(
                name="topic", partitions=[OffsetDeleteRequestPartition(partition_index=0)]
            )
        ],
    )
    answer = await client.ask(request, 0, OffsetDeleteResponse)
    code = answer.topics[0].partitions[0].error_code
    assert code == (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if member_reads else ErrorCode.NONE)
    assert (await fetch(client))[0] == (42 if member_reads else -1)


async def test_groups_are_listed_by_state_and_type_and_deleted_when_empty(
    topic: Any, client: Any
) -> None:
    async def listed(states: list[str], types: list[str]) -> list[tuple[str, str, str]]:
        request = ListGroupsRequest(states_filter=states, types_filter=types)
        answer = await client.ask(request, 5, ListGroupsResponse)
        return sorted(
            (group.group_id, group.group_state, group.group_type) for group in answer.groups
        )

    async def delete(*group_ids: str) -> list[int]:
        request = DeleteGroupsRequest(groups_names=list(group_ids))
        answer = await client.ask(request, 2, DeleteGroupsResponse)
        return [result.error_code for result in answer.results]

    await commit(client, 1, group_id="simple")
    member = await join(client)
    await sync(client, member.member_id, 1)
    stable, simple = ("group", "Stable", "classic"), ("simple", "Empty", "classic")
    assert await listed([], []) == [stable, simple]
    assert await listed(["sTaBle"], []) == [stable]
    assert await listed([], ["Classic"]) == [stable, simple]
    assert await listed([], ["consumer"]) == []
    codes = await delete("simple", "group", "missing")
    assert codes == [0, ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]
    assert await listed([], []) == [stable]
    assert (await describe(client, "simple")).error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_unused_offsets_and_their_group_go_after_their_retention(
    start_broker: Any, connect: Connect
) -> None:
    broker = await start_broker({"offsets.retention.check.interval.ms": "20"})
    broker.topics.create("topic", 1, 1)
    client = await connect(broker)
    request_fields = {"retention_time_ms": 1}
    assert await commit_v4(client, **request_fields) == ErrorCode.NONE
    async with asyncio.timeout(30):
        while (await describe(client)).error_code != ErrorCode.GROUP_ID_NOT_FOUND:
            await asyncio.sleep(0.01)


async def test_an_offset_that_is_to_stay_for_all_time_stays(
    broker: Broker, connect: Connect
) -> None:
    broker.topics.create("topic", 1, 1)
    client = await connect(broker)
    assert await commit_v4(client, 2**63 - 1) == ErrorCode.NONE
    await broker.groups.retention.expire_unused()
    assert (await fetch(client))[0] == 1


WEEKS_MS = 3 * 7 * 24 * 3_600_000


async def test_a_clock_that_is_put_right_expires_no_offset(
    start_broker: Any, connect: Connect, clock: MovedClock
) -> None:
    # The broker starts with a clock that is three weeks behind.
    clock.passed_ms = -WEEKS_MS
    broker = await start_broker(clock=clock)
    broker.topics.create("topic", 1, 1)
    client = await connect(broker)
    assert await commit(client, 42) == ErrorCode.NONE
    clock.set_by_ms = WEEKS_MS
    await broker.groups.retention.expire_unused()
    assert (await fetch(client))[0] == 42
    clock.passed_ms += WEEKS_MS
    await broker.groups.retention.expire_unused()
    assert (await fetch(client))[0] == -1


async def test_a_group_lost_its_members_when_the_wall_clock_says_also_after_a_restart(
    start_broker: Any, connect: Connect, clock: MovedClock
) -> None:
    settings = {"durability": "fsync"}
    broker = await start_broker(settings, clock=clock)
    broker.topics.create("topic", 1, 1)
    client = await connect(broker)
    member = await join(client)
    await sync(client, member.member_id, 1)
    member_fields = {"member_id": member.member_id, "generation_id_or_member_epoch": 1}
    assert await commit(client, 42, **member_fields) == ErrorCode.NONE
    # The clock was wrong when the broker started.
    clock.set_by_ms = WEEKS_MS
    leaving = LeaveGroupRequest(
        group_id="group", members=[MemberIdentity(member_id=member.member_id)]
    )
    await client.ask(leaving, 3, LeaveGroupResponse)
    await broker.stop()
    clock = MovedClock()
    clock.passed_ms = WEEKS_MS
    broker = await start_broker(settings, clock=clock)
    await broker.groups.retention.expire_unused()
    assert (await fetch(await connect(broker)))[0] == 42


async def commit_v4(client: Any, retention_time_ms: int) -> int:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    request = OffsetCommitRequest(
        group_id="group",
        retention_time_ms=retention_time_ms,
        topics=[OffsetCommitRequestTopic(name="topic", partitions=[partition])],
    )
    answer = await client.ask(request, 4, OffsetCommitResponse)
    return int(answer.topics[0].partitions[0].error_code)


async def test_nobody_hears_of_a_group_or_an_offset_before_it_is_durable(
    broker: Broker, topic: Any, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = [await connect(broker) for _ in range(3)]
    log, disk = offsets_log(broker), asyncio.Event()

    async def durable(end_offset: int) -> None:
        await disk.wait()

    waiters: list[Callable[[Exception | None], None]] = []

    def when_durable(end_offset: int, waiter: Callable[[Exception | None], None]) -> bool:
        waiters.append(waiter)
        return True

    monkeypatch.setattr(log, "durable", durable)
    monkeypatch.setattr(log.ledger, "when_durable", when_durable)
    committing = asyncio.create_task(commit(one, 42))
    fetching = asyncio.create_task(fetch(two))
    describing = asyncio.create_task(describe(three))
    done, _ = await asyncio.wait((committing, fetching, describing), timeout=0.05)
    assert not done
    disk.set()
    for waiter in waiters:
        waiter(None)
    assert await committing == ErrorCode.NONE
    assert (await fetching)[0] in (-1, 42)
    await describing
