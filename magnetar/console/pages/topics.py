"""Topics and their partitions: offsets, leaders, sizes, and what holds a partition back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass

from magnetar.client import Client, NotFound, Refused, TopicPartition
from magnetar.client import transactions as queries
from magnetar.client.batches import Outcome, view_partitions
from magnetar.client.group_lags import known_leaders, standings
from magnetar.client.groups import list_groups
from magnetar.client.log_dirs import partition_sizes
from magnetar.client.partitions import EARLIEST, OpenProducer, bounds, list_offsets
from magnetar.client.topics import (
    Partition,
    Topic,
    asked_leaders,
    list_topics,
    own_configs,
    with_offsets,
)
from magnetar.client.transactions import Transaction, owners
from magnetar.console.pages.groups import Lag, lag_of
from magnetar.console.screens import Screen, Visit

TOPICS_MAX = 50
PARTITIONS_MAX = 200
#: Bytes of a partition that one look for aborted ranges reads.
_OUTCOMES_BYTES = 4 << 20
_OUTCOMES_OFFSETS = 20_000


@dataclass(frozen=True)
class Row:
    """A topic in the list; -1 where no leader answered."""

    topic: Topic
    offsets: int
    held_back: int


@dataclass(frozen=True)
class Held:
    """A partition, and the transaction that its readers wait for."""

    partition: Partition
    first: OpenProducer | None
    owner: Transaction | None
    open_for_ms: int

    @property
    def waits(self) -> int:
        return max(self.partition.high_watermark - self.partition.last_stable_offset, 0)


@dataclass(frozen=True)
class Range:
    """Neighbouring offsets with one outcome; `end` is exclusive."""

    outcome: Outcome
    first: int
    end: int
    records: int
    producer_id: int
    first_timestamp: int


def topic_of(visit: Visit) -> str:
    """Return the topic that an address names."""
    name = visit.query.get("name", "")
    if not name:
        raise NotFound("No topic is named.")
    return name


def partition_of(visit: Visit, leaders: Mapping[TopicPartition, int]) -> TopicPartition | None:
    """Return the partition that an address names; None: it names none, and means all."""
    text = visit.query.get("partition", "")
    if not text:
        return None
    place = topic_of(visit), visit.number("partition", -1, lowest=-1)
    if place not in leaders:
        raise NotFound(f"{place[0]} has no partition {text!r} with a leader that answers.")
    return place


def leaders_of(client: Client, name: str) -> dict[TopicPartition, int]:
    """Return the leaders of a topic that are asked. NotFound: there is none."""
    leaders = known_leaders(client, [name])
    if not leaders and client.left_out:
        raise NotFound(f"No leader of {name!r} answers, if there is such a topic.")
    if not leaders:
        raise NotFound(f"There is no topic {name!r} that you may look at.")
    return leaders


def overview(visit: Visit) -> Screen:
    """The topics, a page at a time."""
    wanted = visit.query.get("filter", "").strip()
    shows_internal = visit.query.get("internal") == "1"
    page = visit.number("page", 1, lowest=1)

    def ask(client: Client) -> tuple[list[Row], int, int]:
        every = [
            each
            for each in list_topics(client)
            if wanted in each.name and (shows_internal or not each.is_internal)
        ]
        shown = every[(page - 1) * TOPICS_MAX : page * TOPICS_MAX]
        leaders = asked_leaders(client, shown)
        starts = list_offsets(client, leaders, leaders, EARLIEST)
        stable, ends = bounds(client, leaders, leaders.keys())
        rows = [_row(each, starts, stable, ends) for each in shown]
        return rows, len(every), sum(len(each.partitions) for each in every)

    rows, total, partitions = visit.look(ask)
    values = {
        "rows": rows,
        "total": total,
        "partitions": partitions,
        "page": page,
        "pages": max(-(-total // TOPICS_MAX), 1),
        "filter": wanted,
        "internal": shows_internal,
    }
    return Screen("topics.html", values, "Topics", is_live=True)


def one(visit: Visit) -> Screen:
    """One topic: its partitions, and who holds each back."""
    name = topic_of(visit)
    page = visit.number("page", 1, lowest=1)

    def ask(client: Client) -> tuple[Topic, list[Held]]:
        topic = _described(client, name)
        held = {
            (name, each.partition)
            for each in topic.partitions
            if 0 <= each.last_stable_offset < each.high_watermark
        }
        firsts, known = _holders(client, name, held) if held else ({}, {})
        now_ms = queries.now_ms()
        return topic, [_held(name, each, firsts, known, now_ms) for each in topic.partitions]

    topic, rows = visit.look(ask)
    # What holds readers back comes first: it is what one looks for among many partitions.
    rows.sort(key=lambda each: (-each.waits, each.partition.partition))
    values = {
        "name": name,
        "tab": "partitions",
        "topic": topic,
        "rows": rows[(page - 1) * PARTITIONS_MAX : page * PARTITIONS_MAX],
        "page": page,
        "pages": max(-(-len(rows) // PARTITIONS_MAX), 1),
        "waits": sum(each.waits for each in rows),
        "offsets": sum(
            max(each.partition.high_watermark - each.partition.log_start_offset, 0) for each in rows
        ),
        "size_bytes": sum(max(each.partition.size_bytes, 0) for each in rows),
        "chosen": visit.number("partition", -1, lowest=-1),
    }
    return Screen("topic.html", values, name, is_live=True)


def groups(visit: Visit) -> Screen:
    """The groups that read a topic, and what each has yet to read."""
    name = topic_of(visit)

    def ask(client: Client) -> list[tuple[str, str, Lag | None]]:
        listed = {each.group_id: each.state for each in list_groups(client)}
        leaders = known_leaders(client, [name])
        rows = []
        for group_id, where in standings(client, listed).items():
            here = [each for each in where if each.topic == name]
            if here:
                lag = lag_of(client, leaders, visit.access.true_lag, here, float("inf"))
                rows.append((group_id, listed[group_id], lag))
        if not rows:
            # For its error if there is no such topic; of one that is gone groups may be left.
            leaders_of(client, name)
        return rows

    values = {"name": name, "tab": "groups", "rows": visit.look(ask)}
    return Screen("topic_groups.html", values, f"{name}: groups", is_live=True)


def outcomes(visit: Visit) -> Screen:
    """What became of a partition's records: which ranges were aborted, which are open."""
    name = topic_of(visit)

    def ask(client: Client) -> tuple[int, int, int, int, list[Range], int]:
        leaders = leaders_of(client, name)
        place = partition_of(visit, leaders) or min(leaders)
        (view,) = view_partitions(client, leaders, [place])
        end = visit.number("end", view.high_watermark, highest=view.high_watermark)
        first = max(end - _OUTCOMES_OFFSETS, view.log_start_offset)
        first = min(visit.number("first", first, lowest=view.log_start_offset), end)
        batches, looked_end = view.read(first, end, _OUTCOMES_BYTES)
        ranges: list[Range] = []
        for header, _, outcome in batches:
            begin = max(header.base_offset, first)
            ranges.append(
                Range(
                    outcome,
                    begin,
                    header.next_offset,
                    0 if outcome.is_marker else header.record_count,
                    header.producer_id,
                    header.base_timestamp,
                )
            )
        bounds_found = view.log_start_offset, view.high_watermark, first, looked_end
        return *bounds_found, joined(ranges), place[1]

    start, high_watermark, first, end, found, partition = visit.look(ask)
    span = max(end - first, 1)
    bars = [
        {
            "x": round(1000 * (each.first - first) / span, 2),
            "width": max(round(1000 * (each.end - each.first) / span, 2), 1),
            "word": "marker" if each.outcome.is_marker else str(each.outcome),
            "title": f"{each.outcome}: offsets {each.first} to {each.end - 1}",
        }
        for each in found
        if not each.outcome.is_marker
    ]
    values = {
        "name": name,
        "tab": "outcomes",
        "partition": partition,
        "start": start,
        "high_watermark": high_watermark,
        "first": first,
        "end": end,
        "bars": bars[:2000],
        "ranges": [
            each for each in found if each.outcome in (Outcome.ABORTED, Outcome.OPEN, Outcome.ENDED)
        ][-200:],
        "aborted": sum(each.records for each in found if each.outcome is Outcome.ABORTED),
        "open": sum(each.records for each in found if each.outcome is Outcome.OPEN),
        "committed": sum(each.records for each in found if each.outcome is Outcome.COMMITTED),
        "markers": sum(each.outcome.is_marker for each in found),
        "step": _OUTCOMES_OFFSETS,
    }
    return Screen("outcomes.html", values, f"{name}: outcomes")


def joined(ranges: Sequence[Range]) -> list[Range]:
    """Return the ranges with neighbours of one outcome and producer as one. Pure."""
    found: list[Range] = []
    for each in ranges:
        last = found[-1] if found else None
        is_same = (
            last is not None
            and last.outcome is each.outcome
            and not each.outcome.is_marker
            # Committed records of many producers lie side by side: that is no news.
            and (last.producer_id == each.producer_id or each.outcome is Outcome.COMMITTED)
        )
        if last is not None and is_same:
            found[-1] = Range(
                last.outcome,
                last.first,
                each.end,
                last.records + each.records,
                last.producer_id,
                last.first_timestamp,
            )
        else:
            found.append(each)
    return found


def _row(
    topic: Topic,
    starts: Mapping[TopicPartition, int],
    stable: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> Row:
    places = [(topic.name, each.partition) for each in topic.partitions]
    known = [place for place in places if place in ends and place in starts]
    return Row(
        topic,
        sum(ends[place] - starts[place] for place in known),
        sum(max(ends[place] - stable[place], 0) for place in known),
    )


def _described(client: Client, name: str) -> Topic:
    """Return a topic with what its visitor may know: offsets, and sizes if the cluster tells."""
    (topic,) = list_topics(client, [name])
    sizes: dict[TopicPartition, int] = {}
    configs: dict[str, dict[str, str | None]] = {}
    # Both need more than to describe the topic: without them the rest is shown.
    with suppress(Refused):
        sizes = partition_sizes(client, asked_leaders(client, [topic]))
    with suppress(Refused):
        configs = own_configs(client, [name])
    (described,) = with_offsets(client, [topic], sizes, configs)
    return described


def _holders(
    client: Client, name: str, held: Set[TopicPartition]
) -> tuple[dict[TopicPartition, OpenProducer], dict[tuple[int, TopicPartition], Transaction]]:
    """Return the oldest open producer of each partition, and the transactions by producer.

    Nothing for a visitor who may not read the topic.
    """
    leaders = known_leaders(client, [name])
    try:
        views = view_partitions(client, leaders, held & set(leaders))
    except Refused:
        return {}, {}
    firsts = {
        view.place: min(view.open, key=lambda each: each.start_offset)
        for view in views
        if view.open
    }
    return firsts, owners(client, firsts.values()) if firsts else {}


def _held(
    name: str,
    partition: Partition,
    firsts: Mapping[TopicPartition, OpenProducer],
    known: Mapping[tuple[int, TopicPartition], Transaction],
    now_ms: int,
) -> Held:
    place = name, partition.partition
    first = firsts.get(place)
    owner = None if first is None else known.get((first.producer_id, place))
    open_for_ms = 0 if owner is None else owner.open_for_ms(now_ms)
    return Held(partition, first, owner, open_for_ms)
