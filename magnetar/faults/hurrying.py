"""What takes time, now: a clock that moves, transactions and members that expire, fenced producers.

Nothing here has rules of its own: each decision is the coordinators', asked at another time.
"""

from __future__ import annotations

from coordinator.groups.classic.requests import LeavingMember
from coordinator.transactions import expire
from coordinator.transactions.metadata import State, TransactionMetadata
from magnetar.broker import Broker
from magnetar.clock import SystemClock
from magnetar.faults.names import Mistake
from magnetar.runtime.groups import Groups
from wire.errors import KafkaError

#: No transactional id is idle for so long: `expire` is asked for open transactions only.
_NEVER_MS = 1 << 53
#: Time passes by so much at once, at most: sums with it are far from the end of 64 bits.
_ADVANCE_MS_MAX = 1 << 53


class MovableClock(SystemClock):
    """The operating system's clock, and what a test has added to it."""

    def __init__(self) -> None:
        self._ahead_ms = 0
        super().__init__()

    def move(self, ms: int) -> None:
        """Let time pass, for both clocks."""
        self._ahead_ms += ms

    def now_ms(self) -> int:
        return super().now_ms() + self._ahead_ms

    def steady_ms(self) -> int:
        return super().steady_ms() + self._ahead_ms


async def advance(broker: Broker, clock: MovableClock, ms: int) -> None:
    """Move the time of a broker, and return once all that falls due by it is done.

    Transactions, ids, members, offsets and segments expire. Waits of clients under way (a fetch, a
    throttled connection) go on as they are. Raises Mistake for a time that goes backwards: no
    steady clock does.
    """
    if not 0 <= ms <= _ADVANCE_MS_MAX:
        raise Mistake(f"{ms} ms: time passes by 0 to 2^53 ms")
    clock.move(ms)
    broker.transactions.expire_due()
    await broker.groups.timers.expire_due()
    await broker.groups.retention.expire_unused()
    await broker.retention.check()
    await broker.transactions.store.commits.all_own_visible()


async def expire_transaction(broker: Broker, transactional_id: str) -> None:
    """Abort the open transaction of an id as its timeout would. Raises Mistake where none is."""
    store = broker.transactions.store
    txn = store.find(transactional_id)
    if txn is None or txn.state is not State.ONGOING:
        state = "unknown" if txn is None else txn.state.name
        raise Mistake(f"{transactional_id} has no open transaction: it is {state}")
    now_ms = max(broker.clock.now_ms(), txn.started_at_ms + txn.timeout_ms)
    store.submit(
        store.shard_of(transactional_id),
        transactional_id,
        lambda found, fresh_producer_id: expire.expire(
            found,
            expire.Lifetimes(_NEVER_MS, _NEVER_MS, _NEVER_MS),
            now_ms,
            fresh_producer_id=fresh_producer_id,
        ),
        now_ms,
    )
    await store.commits.visible(transactional_id)


async def fence(broker: Broker, transactional_id: str) -> None:
    """Fence the producer of an id, as another one with the same id does: its epoch is over."""
    known = _known(broker, transactional_id)
    try:
        await broker.transactions.init_producer_id(transactional_id, known.timeout_ms, None)
    except KafkaError as refusal:
        raise Mistake(f"{transactional_id} cannot be fenced: {refusal}") from None


def _known(broker: Broker, transactional_id: str) -> TransactionMetadata:
    known = broker.transactions.find(transactional_id)
    if known is None:
        raise Mistake(f"there is no transactional id {transactional_id!r}")
    return known


async def expire_members(broker: Broker, group_id: str, client_id: str | None) -> list[str]:
    """Let the members of a group, or those of one client, be given up; return their ids.

    As their sessions' end would, for the others and for themselves. Raises Mistake: there are none.
    """
    found = [
        member_id
        for member_id, its_client in members_of(broker.groups, group_id).items()
        if client_id in (None, its_client)
    ]
    if not found:
        whose = "" if client_id is None else f" of client {client_id!r}"
        raise Mistake(f"group {group_id!r} has no member{whose}")
    await broker.groups.leave(group_id, [LeavingMember(member_id) for member_id in found])
    return found


def members_of(groups: Groups, group_id: str) -> dict[str, str]:
    """Return the client id of each member; none of a group that is unknown."""
    shard = groups.shards.of(group_id)
    consumer_group = shard.state.consumer_groups.get(group_id)
    if consumer_group is not None and consumer_group.members:
        return {each.member_id: each.client_id for each in consumer_group.members.values()}
    group = shard.state.groups.get(group_id)
    return {} if group is None else {m.member_id: m.client_id for m in group.members.values()}


def is_settled(groups: Groups, group_id: str) -> bool:
    """Whether no rebalance of a group is under way: it is stable, or empty."""
    shard = groups.shards.of(group_id)
    consumer_group = shard.state.consumer_groups.get(group_id)
    if consumer_group is not None and consumer_group.members:
        return consumer_group.state.name == "STABLE"
    group = shard.state.groups.get(group_id)
    if group is None or not group.members:
        return True
    # Stable in the log is not enough: each member must have asked for its assignment.
    return group.state.name == "STABLE" and not group.pending_syncs
