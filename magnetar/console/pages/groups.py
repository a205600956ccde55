"""Groups: what they have yet to read, over time, who reads it, and why one does not advance."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magnetar.client import Client, NotFound, TopicPartition
from magnetar.client.group_lags import Standing, known_leaders, standings
from magnetar.client.groups import Group, ListedGroup, Member, known_groups, list_groups
from magnetar.client.partitions import bounds
from magnetar.client.share_groups import (
    SHARE,
    SharePosition,
    describe_share_groups,
    share_positions,
)
from magnetar.client.standstill import explained, findings, second_look
from magnetar.client.true_lag import Counted, TrueLag
from magnetar.console.lag_history import Sample
from magnetar.console.screens import Screen, Visit
from magnetar.console.templating import named

GROUPS_MAX = 200
MEMBERS_MAX = 100
POSITIONS_MAX = 300
FINDINGS_MAX = 50
#: What a page looks into before it says "at most": the next look goes on from there.
_COUNTING_S = 0.03
_ORDERS = ("name", "lag", "held")
_MS = 1000


@dataclass(frozen=True)
class Lag:
    """What a group has yet to read in some partitions."""

    counted: Counted
    held_back: int
    offsets: int
    """As Kafka's tools count: end minus committed."""

    @property
    def is_exact(self) -> bool:
        return not self.counted.unseen

    @property
    def records(self) -> int:
        return self.counted.records_max

    @property
    def others(self) -> int:
        """Offsets that are no records for a reader: markers, aborted records, compacted ones."""
        return max(self.offsets - self.held_back - self.records, 0)


@dataclass(frozen=True)
class Row:
    """A group in the list."""

    group: ListedGroup
    members: int
    lag: Lag | None
    topics: Sequence[str]
    trend: str
    """Points of a small curve, as SVG writes them; empty without two samples."""


@dataclass(frozen=True)
class PositionRow:
    """A partition that a group reads."""

    place: TopicPartition
    committed: int
    end: int
    lag: Lag | None
    reader: Member | None


def overview(visit: Visit) -> Screen:
    """Every group with its lag."""
    wanted = visit.query.get("filter", "").strip()
    order = visit.query.get("order", "name")

    def ask(client: Client) -> list[Row]:
        listed = [each for each in list_groups(client) if wanted in each.group_id]
        ids = [each.group_id for each in listed if each.kind != SHARE]
        found = standings(client, ids)
        shares = share_positions(client, [each.group_id for each in listed if each.kind == SHARE])
        members = _member_counts(client, listed)
        leaders = known_leaders(client, {each.topic for one in found.values() for each in one})
        deadline = time.monotonic() + _COUNTING_S
        rows = []
        for group in listed:
            if group.kind == SHARE:
                positions = shares.get(group.group_id, [])
                lag, topics = _share_lag(positions), {each.topic for each in positions}
            else:
                where = found.get(group.group_id, [])
                lag = lag_of(client, leaders, visit.access.true_lag, where, deadline)
                topics = {each.topic for each in where}
            trend = curve(visit.access.history.of(group.group_id))
            rows.append(Row(group, members.get(group.group_id, -1), lag, sorted(topics), trend))
        return rows

    rows = visit.look(ask)
    if order == "lag":
        rows.sort(key=lambda row: -(row.lag.records if row.lag else -1))
    elif order == "held":
        rows.sort(key=lambda row: -(row.lag.held_back if row.lag else -1))
    values = {
        "rows": rows[:GROUPS_MAX],
        "total": len(rows),
        "filter": wanted,
        "order": order if order in _ORDERS else "name",
        "to_read": sum(row.lag.records for row in rows if row.lag),
        "is_exact": all(row.lag.is_exact for row in rows if row.lag),
        "held_back": sum(row.lag.held_back for row in rows if row.lag),
        "idle": sum(row.group.state == "Empty" for row in rows),
    }
    return Screen("groups.html", values, "Groups", is_live=True)


def one(visit: Visit) -> Screen:
    """One group: lag over time, partitions, members, and what keeps it."""
    group_id = visit.query.get("id")
    if group_id is None:
        raise NotFound("No group is named.")

    def ask(client: Client) -> dict[str, Any]:
        is_share = (group_id, SHARE) in {(each.group_id, each.kind) for each in list_groups(client)}
        if is_share and (share := describe_share_groups(client, [group_id]).get(group_id)):
            return _share_values(client, share)
        return _group_values(visit, client, group_id)

    values = visit.look(ask)
    page = max(visit.number("members", 1), 1)
    group: Group = values["group"]
    first = (page - 1) * MEMBERS_MAX
    values |= {
        "members": group.members[first : first + MEMBERS_MAX],
        "first_member": first,
        "page": page,
        "pages": max(-(-len(group.members) // MEMBERS_MAX), 1),
        "chart": chart(visit.access.history.of(group_id)),
        "problem": visit.access.history.problem,
    }
    return Screen("group.html", values, named(group_id), is_live=True)


def lag_of(
    client: Client,
    leaders: Mapping[TopicPartition, int],
    true_lag: TrueLag,
    where: Sequence[Standing],
    deadline: float,
) -> Lag | None:
    """Return the sum over partitions; None: nothing is committed in a topic that is there."""
    known = [each for each in where if each.end >= 0 and each.place in leaders]
    if not known:
        return None
    counted = Counted()
    for each in known:
        counted += count(client, leaders, true_lag, each, deadline)
    return Lag(counted, sum(each.held_back for each in known), sum(each.lag for each in known))


def count(
    client: Client,
    leaders: Mapping[TopicPartition, int],
    true_lag: TrueLag,
    each: Standing,
    deadline: float,
) -> Counted:
    """Return what a group may read in a partition; past the deadline, only what is known."""
    first, stable = each.committed, min(each.stable, each.end)
    if time.monotonic() > deadline:
        return true_lag.known(each.place, first, stable)
    return true_lag.count(client, leaders, each.place, first, stable)


def curve(samples: Sequence[Sample]) -> str:
    """Return the points of a curve 60 wide and 16 high."""
    recent = [each.to_read + each.held_back for each in samples[-60:]]
    if len(recent) < 2:
        return ""
    highest = max(*recent, 1)
    step = 60 / (len(recent) - 1)
    return " ".join(
        f"{index * step:.1f},{15 - 14 * value / highest:.1f}" for index, value in enumerate(recent)
    )


def chart(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return what console.js draws."""
    return {
        "times": [round(each.time_s) for each in samples],
        "series": [
            {
                "label": "to read",
                "color": "--accent",
                "values": [each.to_read for each in samples],
            },
            {
                "label": "behind open transactions",
                "color": "--warn",
                "values": [each.held_back for each in samples],
            },
        ],
    }


def _group_values(visit: Visit, client: Client, group_id: str) -> dict[str, Any]:
    earlier = visit.access.history.earlier(group_id)
    committed = {} if earlier is None else earlier.committed
    look = second_look(client, group_id, committed, visit.access.true_lag)
    places = {each.place for each in look.positions}
    leaders = known_leaders(client, {topic for topic, _ in places})
    stable, _ = bounds(client, leaders, places & set(leaders))
    deadline = time.monotonic() + _COUNTING_S
    rows = []
    for each in look.positions:
        place = each.place
        standing = Standing(*place, each.committed, stable.get(place, -1), each.end)
        lag = None
        if each.committed >= 0:
            lag = lag_of(client, leaders, visit.access.true_lag, [standing], deadline)
        rows.append(PositionRow(place, each.committed, each.end, lag, each.reader))
    watched_ms = 0 if earlier is None else round((time.monotonic() - earlier.steady_s) * _MS)
    reasons = [
        {"text": explained(each, round(watched_ms, -3)), "cause": str(each.cause), "finding": each}
        for each in findings(look)
        # Without an earlier look every member seems to commit nothing.
        if earlier is not None or each.cause not in ("not committing", "advancing")
    ]
    known = [row.lag for row in rows if row.lag is not None]
    return {
        "group": look.group,
        "positions": rows[:POSITIONS_MAX],
        "position_count": len(rows),
        "reasons": reasons[:FINDINGS_MAX],
        "reason_count": len(reasons),
        "is_watched": earlier is not None,
        "to_read": sum(each.records for each in known),
        "held_back": sum(each.held_back for each in known),
        "others": sum(each.others for each in known),
        "is_exact": all(each.is_exact for each in known),
        "shared": (),
        "topics": sorted({row.place[0] for row in rows if row.committed >= 0}),
    }


def _share_values(client: Client, group: Group) -> dict[str, Any]:
    found = share_positions(client, [group.group_id])[group.group_id]
    lag = _share_lag(found)
    return {
        "group": group,
        "positions": (),
        "position_count": 0,
        "reasons": (),
        "reason_count": 0,
        "is_watched": True,
        "to_read": lag.records if lag else 0,
        "held_back": 0,
        "others": 0,
        "is_exact": True,
        "shared": found[:POSITIONS_MAX],
        "topics": (),
    }


def _share_lag(positions: Sequence[SharePosition]) -> Lag | None:
    known = [each.lag for each in positions if each.lag >= 0]
    if not known:
        return None
    return Lag(Counted(records=sum(known)), 0, sum(known))


def _member_counts(client: Client, listed: Sequence[ListedGroup]) -> dict[str, int]:
    """Return the number of members of groups that have any."""
    busy = [each for each in listed if each.state not in ("Empty", "Dead")]
    found = known_groups(
        client, [each.group_id for each in busy if each.kind in ("classic", "consumer")]
    )
    found |= describe_share_groups(client, [each.group_id for each in busy if each.kind == SHARE])
    return {each.group_id: 0 for each in listed if each.state == "Empty"} | {
        group_id: len(group.members) for group_id, group in found.items()
    }
