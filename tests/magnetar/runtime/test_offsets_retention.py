"""The check for unused offsets: many groups in one turn of the event loop, a large one in parts."""

from __future__ import annotations

from coordinator.groups.committing import Committer
from coordinator.groups.deletion import EXPIRED_AT_ONCE
from coordinator.groups.offsets.committed import CommittedOffset
from magnetar.broker import Broker
from magnetar.runtime.turns import Turns
from tests.magnetar.committing import durably


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
