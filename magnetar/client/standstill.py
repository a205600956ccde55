"""Why a group does not advance: from two looks at it, and the transactions open in between."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from magnetar.client.cluster import Client, TopicPartition
from magnetar.client.groups import Group, Position, describe_groups, positions
from magnetar.client.partitions import (
    LATEST,
    READ_COMMITTED,
    OpenProducer,
    describe_open,
    list_offsets,
)
from magnetar.client.readable import count, moment
from magnetar.client.transactions import Transaction, list_transactions
from magnetar.client.true_lag import Counted, TrueLag

_STABLE = "Stable"


class Cause(StrEnum):
    """What keeps a group, or one partition of it."""

    NO_MEMBERS = "no members"
    REBALANCING = "rebalancing"
    NOT_ASSIGNED = "not assigned"
    OPEN_TRANSACTION = "open transaction"
    NOT_COMMITTING = "not committing"
    ADVANCING = "advancing"


@dataclass(frozen=True)
class Finding:
    """One cause; `topic` None where it is the whole group's."""

    cause: Cause
    topic: str | None = None
    partition: int | None = None
    lag: int = 0
    member_id: str | None = None
    transactional_id: str | None = None
    producer_id: int | None = None
    open_since_ms: int | None = None
    """When the transaction began; of one without a coordinator, the time of its last batch."""
    advanced: int = 0
    """How many offsets the group committed between the two looks."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Look:
    """What is known of a group: `earlier` are the committed offsets of the first look."""

    group: Group
    positions: Sequence[Position]
    earlier: Mapping[TopicPartition, int]
    stable: Mapping[TopicPartition, int]
    open: Sequence[OpenProducer]
    transactions: Sequence[Transaction]
    unread: Mapping[TopicPartition, Counted] = field(default_factory=dict)
    """What lies between the committed and the stable offset, where that was looked into."""

    def lag_of(self, each: Position) -> int:
        """Return how many records wait; offsets stand for those that were not looked into."""
        counted = self.unread.get(each.place)
        if counted is None:
            return each.lag
        stable = self.stable.get(each.place, each.end)
        return counted.records_max + max(each.end - max(stable, each.committed), 0)


def look(client: Client, group_id: str, watched_s: float) -> Look:
    """Return two looks at a group, `watched_s` apart. ClientError: there is no such group."""
    (group,) = describe_groups(client, [group_id])
    earlier = {each.place: each.committed for each in positions(client, group)}
    time.sleep(watched_s)
    return second_look(client, group_id, earlier, TrueLag())


def second_look(
    client: Client, group_id: str, earlier: Mapping[TopicPartition, int], true_lag: TrueLag
) -> Look:
    """Return a look at a group whose committed offsets were `earlier` some time ago."""
    (group,) = describe_groups(client, [group_id])
    found = positions(client, group)
    behind = {each.place for each in found if each.lag}
    # A deleted topic has no end, and no leader to ask.
    behind -= {each.place for each in found if each.end < 0}
    leaders = client.topics({topic for topic, _ in behind}) if behind else {}
    stable = list_offsets(client, leaders, behind, LATEST, READ_COMMITTED)
    unread = {
        each.place: true_lag.count(
            client,
            leaders,
            each.place,
            each.committed,
            min(stable[each.place], each.end),
        )
        for each in found
        if each.place in leaders and each.committed >= 0 and each.lag
    }
    held = _held(found, stable, unread)
    producers = describe_open(client, leaders, held)
    ids = sorted({each.producer_id for each in producers})
    transactions = list_transactions(client, producer_ids=ids) if ids else []
    return Look(group, found, earlier, stable, producers, transactions, unread)


def findings(seen: Look) -> list[Finding]:
    """Return what keeps the group; none if it has read everything. Pure."""
    # Markers and aborted records are nothing to wait for.
    behind = [each for each in seen.positions if each.end > 0 and seen.lag_of(each)]
    found = []
    if behind and not seen.group.members:
        found.append(Finding(Cause.NO_MEMBERS))
    elif behind and seen.group.state != _STABLE:
        found.append(Finding(Cause.REBALANCING))
    held = _held(behind, seen.stable, seen.unread)
    for each in behind:
        place = each.place
        lag = seen.lag_of(each)
        if place in held:
            found.append(_blocked(seen, each))
        elif each.reader is None:
            if seen.group.members:
                found.append(Finding(Cause.NOT_ASSIGNED, *place, lag))
        else:
            advanced = each.committed - seen.earlier.get(place, each.committed)
            cause = Cause.ADVANCING if advanced > 0 else Cause.NOT_COMMITTING
            member_id = each.reader.member_id
            found.append(Finding(cause, *place, lag, member_id, advanced=advanced))
    return found


def _held(
    found: Sequence[Position],
    stable: Mapping[TopicPartition, int],
    unread: Mapping[TopicPartition, Counted],
) -> Collection[TopicPartition]:
    """Return the partitions of which read_committed members have read what they may."""
    held = set()
    for each in found:
        place = each.place
        stable_offset = stable.get(place, -1)
        if not 0 <= stable_offset < each.end:
            continue
        # Without a committed offset a member may begin at 0, at the earliest.
        has_passed = stable_offset <= max(each.committed, 0) < each.end
        # Some clients commit the offset behind their last record, and leave markers behind that.
        if has_passed or (place in unread and not unread[place].records_max):
            held.add(place)
    return held


def _blocked(seen: Look, each: Position) -> Finding:
    place = each.place
    lag = seen.lag_of(each)
    first = min(
        (one for one in seen.open if one.place == place),
        key=lambda one: one.start_offset,
        default=None,
    )
    if first is None:
        # It ended between the questions.
        return Finding(Cause.ADVANCING, *place, lag)
    known = next((one for one in seen.transactions if one.producer_id == first.producer_id), None)
    return Finding(
        Cause.OPEN_TRANSACTION,
        *place,
        lag,
        transactional_id=None if known is None else known.transactional_id,
        producer_id=first.producer_id,
        open_since_ms=first.last_timestamp if known is None else known.started_ms,
    )


def explained(finding: Finding, watched_ms: int) -> str:
    """Return a finding as a sentence."""
    place = f"{finding.topic}-{finding.partition}"
    waiting = f"{count(finding.lag)} wait" if finding.lag >= 0 else "nothing is committed"
    held = waiting if finding.lag >= 0 else f"{waiting}, and all records lie"
    watched = f"in {watched_ms / 1000:g} s"
    return {
        Cause.NO_MEMBERS: "The group has no members: no consumer runs, or none gets in.",
        Cause.REBALANCING: (
            "The group is rebalancing: it waits until each member has answered. A member that"
            " works on its records for long, and does not poll meanwhile, delays it, for its"
            " rebalance timeout (max.poll.interval.ms) at most."
        ),
        Cause.NOT_ASSIGNED: f"{place}: {waiting}, and no member reads the partition.",
        Cause.NOT_COMMITTING: (
            f"{place}: {waiting}. Member {finding.member_id} has the partition, and committed"
            f" nothing {watched}."
        ),
        Cause.ADVANCING: (
            f"{place}: {waiting}; the group advances, by {count(finding.advanced)} {watched}."
        ),
        Cause.OPEN_TRANSACTION: (
            f"{place}: {held} behind the open transaction of {_owner(finding)}, since"
            f" {moment(-1 if finding.open_since_ms is None else finding.open_since_ms)}."
            " read_committed members see nothing beyond it."
        ),
    }[finding.cause]


def _owner(finding: Finding) -> str:
    if finding.transactional_id is not None:
        return repr(finding.transactional_id)
    return f"producer {finding.producer_id}, which no coordinator knows"
