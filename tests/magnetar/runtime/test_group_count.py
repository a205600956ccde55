"""`max.groups`: no client makes more groups than the broker has room for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from coordinator.groups.classic.requests import LeavingMember
from coordinator.groups.committing import Committer
from coordinator.groups.offsets.committed import CommittedOffset
from coordinator.groups.shard import GroupShard
from magnetar.broker import Broker
from magnetar.runtime.shard import RunningShard
from tests.magnetar.committing import durably
from tests.magnetar.conftest import RawClient, StartBroker
from tests.magnetar.group_members import beat
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from wire.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

Connect = Callable[[Broker], Awaitable[RawClient]]


@pytest.fixture
async def small(start_broker: StartBroker) -> Broker:
    broker = await start_broker({"max.groups": "2"})
    broker.topics.create("orders", 1)
    return broker


async def join(client: RawClient, group_id: str) -> int:
    request = JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=30_000,
        protocol_type="bench",
        protocols=[JoinGroupRequestProtocol(name="any", metadata=b"")],
    )
    return (await client.ask(request, 9, JoinGroupResponse)).error_code


async def commit(broker: Broker, group_id: str) -> ErrorCode:
    try:
        (code,) = await durably(
            broker.groups.offsets.commit(
                Committer(group_id=group_id),
                [("orders", 0, CommittedOffset(1))],
                knows_group_not_found=True,
            )
        )
    except KafkaError as refusal:
        return refusal.code
    return code


async def test_a_group_beyond_the_limit_is_refused(small: Broker, connect: Connect) -> None:
    client = await connect(small)
    for group_id in ("a", "b", "a"):
        assert await join(client, group_id) == ErrorCode.MEMBER_ID_REQUIRED
    assert await join(client, "c") == ErrorCode.POLICY_VIOLATION


async def test_offsets_of_a_group_beyond_the_limit_are_refused(small: Broker) -> None:
    for group_id in ("a", "b", "a"):
        assert await commit(small, group_id) is ErrorCode.NONE
    assert await commit(small, "c") is ErrorCode.POLICY_VIOLATION
    small.groups.delete("a")
    assert await commit(small, "c") is ErrorCode.NONE


async def test_groups_of_open_transactions_beyond_the_limit_are_refused(small: Broker) -> None:
    """Else one transaction makes any number of them, and keeps them by its commit."""
    producer = await small.transactions.init_producer_id("tx", 60_000, None)

    async def stage(group_id: str) -> None:
        await durably(
            small.groups.offsets.commit_in_transaction(
                Committer(group_id=group_id),
                *producer,
                [("orders", 0, CommittedOffset(1))],
                knows_group_not_found=True,
            )
        )

    for group_id in ("a", "b", "a"):
        await stage(group_id)
    with pytest.raises(KafkaError, match="max.groups") as refused:
        await stage("c")
    assert refused.value.code is ErrorCode.POLICY_VIOLATION


async def test_a_group_that_has_offsets_can_be_joined(small: Broker, connect: Connect) -> None:
    for group_id in ("a", "b"):
        assert await commit(small, group_id) is ErrorCode.NONE
    client = await connect(small)
    assert await join(client, "a") == ErrorCode.MEMBER_ID_REQUIRED
    assert await join(client, "c") == ErrorCode.POLICY_VIOLATION


async def test_one_client_makes_no_more_than_that_either(
    start_broker: StartBroker, connect: Connect
) -> None:
    broker = await start_broker({"max.groups": "1000"})
    client = await connect(broker)
    codes = [await join(client, f"group-{number}") for number in range(1_500)]
    assert codes.count(ErrorCode.POLICY_VIOLATION) == 500
    assert len([*broker.groups.all()]) == 1_000


async def test_groups_that_are_deleted_together_wait_for_the_disk_together(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waited for a sync of its own: 20,000 groups took 47 s."""
    broker = await start_broker()
    names = [f"group-{number}" for number in range(5)]
    for group_id in names:
        assert await commit(broker, group_id) is ErrorCode.NONE
    left_at_waits = []
    durable = RunningShard.durable

    def waited(self: RunningShard[Any, Any], end_offset: int) -> Any:
        left_at_waits.append(len([*broker.groups.all()]))
        return durable(self, end_offset)

    monkeypatch.setattr(RunningShard, "durable", waited)
    client = await connect(broker)
    request = DeleteGroupsRequest(groups_names=[*names, "unknown"])
    answer = await client.ask(request, 2, DeleteGroupsResponse)
    codes = [each.error_code for each in answer.results]
    assert codes == [ErrorCode.NONE] * 5 + [ErrorCode.GROUP_ID_NOT_FOUND]
    assert left_at_waits == [0] * 5


async def test_groups_are_listed_in_turns_those_left_out_that_go_meanwhile(
    start_broker: StartBroker,
) -> None:
    """All of a hundred thousand were made ready in one step, for each ListGroups: a second."""
    broker = await start_broker()
    # All in one shard.
    for group_id in ("a", "c", "e"):
        assert await commit(broker, group_id) is ErrorCode.NONE
    listed = iter(broker.groups.all())
    assert next(listed).group_id == "a"
    broker.groups.delete("c")
    assert [group.group_id for group in listed] == ["e"]


async def test_groups_are_not_looked_at_all_at_once(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """96,000 took 50 ms, for each ListGroups, and twice for each look at the metrics."""
    broker = await start_broker()
    for group_id in ("a", "b"):
        assert await commit(broker, group_id) is ErrorCode.NONE
    looked_at: list[GroupShard] = []
    group_ids = GroupShard.group_ids

    def noted(state: GroupShard) -> Iterator[str]:
        looked_at.append(state)
        return group_ids(state)

    monkeypatch.setattr(GroupShard, "group_ids", noted)
    listed = iter(broker.groups.all())
    assert next(listed).group_id == "b"
    assert looked_at == [broker.groups.shards.of("b").state]
    assert next(listed).group_id == "a"


async def test_a_group_is_listed_once_however_much_is_known_of_it(
    start_broker: StartBroker, connect: Connect
) -> None:
    broker = await start_broker()
    for group_id in ("a", "b"):
        assert await commit(broker, group_id) is ErrorCode.NONE
    # Of "b" the shard has members besides the offsets.
    joining = broker.groups.shards.of("b").state.joinable("b", "", 0)
    assert [group.group_id for group in broker.groups.all() if group is not joining] == ["a"]
    assert len([*broker.groups.all()]) == 2


async def test_no_limit_is_no_limit(start_broker: StartBroker, connect: Connect) -> None:
    broker = await start_broker({"max.groups": "0"})
    client = await connect(broker)
    for number in range(10):
        assert await join(client, f"group-{number}") == ErrorCode.MEMBER_ID_REQUIRED


async def test_members_that_say_much_of_themselves_have_a_bound(
    start_broker: StartBroker, connect: Connect
) -> None:
    """Over all groups, for as long as they are members; a member that says little is let in."""
    broker = await start_broker({"queued.max.request.bytes": "100000"})
    client = await connect(broker)

    async def code(group_id: str, size_bytes: int) -> tuple[int, str]:
        protocol = JoinGroupRequestProtocol(name="any", metadata=bytes(size_bytes))
        request = JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            protocol_type="bench",
            protocols=[protocol],
        )
        # Version 3 joins at once, without an id first.
        answer = await client.ask(request, 3, JoinGroupResponse)
        return answer.error_code, answer.member_id

    joined, member_id = await code("a", 60_000)
    assert joined == ErrorCode.NONE
    assert (await code("b", 60_000))[0] == ErrorCode.POLICY_VIOLATION
    assert (await code("b", 4_000))[0] == ErrorCode.NONE
    await broker.groups.leave("a", [LeavingMember(member_id)])
    assert (await code("c", 60_000))[0] == ErrorCode.NONE


async def test_assignments_have_a_bound_over_all_groups(
    start_broker: StartBroker, connect: Connect
) -> None:
    """100 groups whose leaders assigned 4 MB each held 425 MB."""
    broker = await start_broker({"queued.max.request.bytes": "1000000"})
    client = await connect(broker)

    members: dict[str, str] = {}

    async def assign(group_id: str, size_bytes: int) -> int:
        joining = JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            member_id=members.get(group_id, ""),
            protocol_type="bench",
            protocols=[JoinGroupRequestProtocol(name="any", metadata=b"")],
        )
        joined = await client.ask(joining, 3, JoinGroupResponse)
        assert joined.error_code == ErrorCode.NONE
        members[group_id] = joined.member_id
        assigned = SyncGroupRequestAssignment(
            member_id=joined.member_id, assignment=bytes(size_bytes)
        )
        syncing = SyncGroupRequest(
            group_id=group_id,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[assigned],
        )
        return (await client.ask(syncing, 2, SyncGroupResponse)).error_code

    assert await assign("a", 400_000) == ErrorCode.NONE
    assert 400_000 < broker.groups.shards.member_bytes < 410_000
    assert await assign("b", 400_000) == ErrorCode.POLICY_VIOLATION
    assert await assign("c", 8_000) == ErrorCode.NONE
    # In its next generations the group has as much as before.
    assert [await assign("a", 400_000) for _ in range(3)] == [ErrorCode.NONE] * 3
    assert 400_000 < broker.groups.shards.member_bytes < 420_000
    assert await assign("a", 900_000) == ErrorCode.POLICY_VIOLATION


async def test_ids_that_were_given_out_have_a_bound_over_all_groups(
    start_broker: StartBroker, connect: Connect
) -> None:
    """Each is kept for as long as the client wants, up to half an hour: 40,000 held 323 MB."""
    broker = await start_broker({"queued.max.request.bytes": "100000"})
    client = await connect(broker)
    codes = [await join(client, f"group-{number}") for number in range(1000)]
    given_out = codes.index(ErrorCode.POLICY_VIOLATION)
    assert set(codes[:given_out]) == {ErrorCode.MEMBER_ID_REQUIRED}
    assert set(codes[given_out:]) == {ErrorCode.POLICY_VIOLATION}
    assert 90_000 < broker.groups.shards.member_bytes <= 100_000


async def test_a_new_group_has_an_id_of_a_bounded_length(
    start_broker: StartBroker, connect: Connect
) -> None:
    """A group of 32 KB of name takes 130 KB, which makes a bound of their number none."""
    broker = await start_broker()
    broker.topics.create("orders", 1)
    client = await connect(broker)
    assert await join(client, "g" * 1024) == ErrorCode.MEMBER_ID_REQUIRED
    assert await join(client, "g" * 1025) == ErrorCode.INVALID_GROUP_ID
    assert await join(client, "\u00e9" * 513) == ErrorCode.INVALID_GROUP_ID
    assert await commit(broker, "g" * 1025) is ErrorCode.INVALID_GROUP_ID
    said = await beat(client, "m", 0, group_id="g" * 1025, subscribed_topic_names=["orders"])
    assert said.error_code == ErrorCode.INVALID_GROUP_ID


async def test_members_of_consumer_groups_have_a_bound_over_all_groups(
    start_broker: StartBroker, connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    """Many who say little fill it too; room comes back as they leave; one line is logged."""
    broker = await start_broker({"queued.max.request.bytes": "100000"})
    broker.topics.create("orders", 1)
    client = await connect(broker)

    async def join(number: int, names: int = 1, member_epoch: int = 0) -> int:
        answer = await beat(
            client,
            f"member-{number}",
            member_epoch,
            group_id=f"group-{number % 3}",
            subscribed_topic_names=[f"topic-{name:0100}" for name in range(names)],
        )
        return answer.error_code

    async def leave(number: int) -> None:
        answer = await beat(client, f"member-{number}", -1, group_id=f"group-{number % 3}")
        assert answer.error_code == ErrorCode.NONE

    capsys.readouterr()
    joined = 0
    while (code := await join(joined)) == ErrorCode.NONE:
        joined += 1
        assert joined < 100
    assert code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert 90_000 < broker.groups.shards.member_bytes <= 100_000
    assert await join(joined) == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert capsys.readouterr().err.count("members are refused") == 1

    # Those who are in go on, and none of them gets more.
    assert (await beat(client, "member-0", 2, group_id="group-0")).error_code in (
        ErrorCode.NONE,
        ErrorCode.FENCED_MEMBER_EPOCH,
    )
    for number in range(joined):
        await leave(number)
    assert broker.groups.shards.member_bytes == 0
    assert await join(0, names=200) == ErrorCode.NONE
    assert await join(1, names=200) == ErrorCode.NONE
    assert await join(2, names=200) == ErrorCode.GROUP_MAX_SIZE_REACHED
