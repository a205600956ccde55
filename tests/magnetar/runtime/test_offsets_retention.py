"""The check for unused offsets: many groups in one turn of the event loop, a large one in parts."""

from __future__ import annotations

from coordinator.groups.committing import Committer
from coordinator.groups.deletion import EXPIRED_AT_ONCE
from coordinator.groups.offsets.committed import CommittedOffset
from magnetar.broker import Broker
from magnetar.runtime.turns import Turns
from tests.magnetar.clocks import MovedClock
from tests.magnetar.committing import durably
from tests.magnetar.conftest import StartBroker

DAY_MS = 24 * 3_600_000


async def commit(broker: Broker, group_id: str, count: int, committed: CommittedOffset) -> None:
    commits = [("orders", index, committed) for index in range(count)]
    await durably(
        broker.groups.offsets.commit(
            Committer(group_id=group_id), commits, knows_group_not_found=True
        )
    )


async def test_groups_in_which_nothing_expires_share_a_turn(broker: Broker) -> None:
    for number in range(50):
        await commit(broker, f"group{number}", 1, CommittedOffset(1, expires_ms=2**62))
    retention = broker.groups.retention
    retention._turns = Turns(now_s=lambda: 0.0)
    checking = retention.expire_unused()
    try:
        checking.send(None)
    except StopIteration:
        return
    raise AssertionError("the check has given up its turn")


async def test_all_that_is_due_expires_however_much(broker: Broker) -> None:
    await commit(broker, "group", 2 * EXPIRED_AT_ONCE + 1, CommittedOffset(1, expires_ms=0))
    await commit(broker, "group", 1, CommittedOffset(1, expires_ms=2**62))
    await broker.groups.retention.expire_unused()
    state = broker.groups.shards.of("group").state
    assert state.offsets.partitions_of("group", "orders") == [0]


async def test_offsets_expire_in_time_where_the_clock_was_years_behind_at_the_start(
    start_broker: StartBroker, clock: MovedClock
) -> None:
    clock.passed_ms = -3_650 * DAY_MS
    broker = await start_broker(clock=clock)
    clock.set_by_ms = 3_650 * DAY_MS
    await commit(broker, "group", 1, CommittedOffset(1, committed_ms=clock.now_ms()))
    left = []
    for _ in range(9):
        await broker.groups.retention.expire_unused()
        left.append(broker.groups.shards.of("group").state.offsets.partitions_of("group", "orders"))
        clock.passed_ms += DAY_MS
    # offsets.retention.minutes are seven days. The first check sees that the clock was set.
    assert left == [[0]] * 8 + [[]]


async def test_a_clock_that_is_ahead_for_less_than_the_retention_time_expires_no_offset(
    start_broker: StartBroker, clock: MovedClock
) -> None:
    broker = await start_broker(clock=clock)
    offsets = broker.groups.shards.of("group").state.offsets
    for day in range(20):
        # Five days ahead, one day right, and so on.
        clock.set_by_ms = 3_650 * DAY_MS if day % 6 else 0
        if not clock.set_by_ms:
            await commit(broker, "group", 1, CommittedOffset(1, committed_ms=clock.now_ms()))
        await broker.groups.retention.expire_unused()
        assert offsets.partitions_of("group", "orders") == [0]
        clock.passed_ms += DAY_MS
