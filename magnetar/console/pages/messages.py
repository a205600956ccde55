"""Records of a topic: the newest, those from a place on, those that hold a text; and one alone.

Each look has a bound of bytes, records and time, whatever the topic holds: what was looked at, and
how to go on, stands on the page.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from magnetar.client import Client, ClientError, NotFound, TopicPartition
from magnetar.client.batches import Judged, Outcome, PartitionView, view_partitions
from magnetar.client.partitions import list_offsets
from magnetar.client.readable import count, printable
from magnetar.console.changes import moment_of
from magnetar.console.decoding import Decoder
from magnetar.console.pages.topics import leaders_of, partition_of, topic_of
from magnetar.console.payload import Payload
from magnetar.console.screens import Screen, Visit
from wire.errors import WireError
from wire.records import iterate_records

LIMIT = 50
LIMIT_MAX = 500
#: Partitions that one look reads.
PARTITIONS_MAX = 32
_BYTES_MAX = 16 << 20
_FILTERED_S = 2.0
_WINDOW_MAX = 4096
_KINDS = ("committed", "aborted", "open", "markers")
_PLACES = ("newest", "oldest", "offset", "time")


@dataclass(frozen=True)
class Message:
    """A record, or a marker, and what became of it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    outcome: Outcome
    producer_id: int
    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()

    @property
    def word(self) -> str:
        return "marker" if self.outcome.is_marker else str(self.outcome)

    def holds(self, text: bytes) -> bool:
        """Return whether key, value or a header holds the text, in capitals or not."""
        parts = [self.key or b"", self.value or b""]
        parts += [name.encode() + b"=" + (value or b"") for name, value in self.headers]
        return any(text in part.lower() for part in parts)


@dataclass(frozen=True)
class Shown:
    """A message with its key and value decoded."""

    message: Message
    key: Payload
    value: Payload
    waits: bool
    """Whether read_committed readers do not see it yet, although it is committed."""


@dataclass
class Budget:
    """What a look may still read."""

    bytes_left: int = _BYTES_MAX
    deadline: float = field(default_factory=lambda: time.monotonic() + _FILTERED_S)

    @property
    def is_spent(self) -> bool:
        return self.bytes_left <= 0 or time.monotonic() > self.deadline


@dataclass
class Looked:
    """What a look at one partition found, and the offsets [first, end) that it went through."""

    view: PartitionView
    messages: list[Message] = field(default_factory=list)
    first: int = 0
    end: int = 0


def overview(visit: Visit) -> Screen:
    """Records of a topic."""
    name = topic_of(visit)
    limit = visit.number("limit", LIMIT, lowest=1, highest=LIMIT_MAX)
    wanted = visit.query.get("filter", "").strip()
    kind = visit.query.get("kind", "")
    where = visit.query.get("from", "newest")
    keeps = _keeps(kind, wanted)

    def ask(client: Client) -> tuple[list[Looked], int]:
        leaders = leaders_of(client, name)
        chosen = partition_of(visit, leaders)
        places = [chosen] if chosen is not None else sorted(leaders)
        views = view_partitions(client, leaders, places[:PARTITIONS_MAX])
        budget = Budget()
        if where in ("newest", "before"):
            anchor = visit.number("offset", -1, lowest=-1) if where == "before" else -1
            found = [backwards(view, anchor, limit, keeps, budget) for view in views]
        else:
            begins = _begins(visit, client, leaders, views, where)
            found = [forwards(view, begins[view.place], limit, keeps, budget) for view in views]
        return found, len(leaders)

    looked, partitions = visit.look(ask)
    is_newest_first = where in ("newest", "before")
    values = {
        "name": name,
        "tab": "messages",
        "partitions": partitions,
        "partition": visit.query.get("partition", ""),
        "rows": shown(visit, looked, limit, is_newest_first),
        "looked": [_sentence(each) for each in looked][:4],
        "looked_count": len(looked),
        "is_partial": partitions > PARTITIONS_MAX and not visit.query.get("partition"),
        "partitions_max": PARTITIONS_MAX,
        "filter": wanted,
        "kind": kind if kind in (*_KINDS, "all") else "",
        "from_": where if where in _PLACES else "newest",
        "offset": visit.query.get("offset", ""),
        "time": visit.query.get("time", ""),
        "limit": limit,
        "is_tail": is_newest_first and visit.query.get("live") == "1",
        **_pager(looked),
    }
    return Screen("messages.html", values, f"{name}: messages", is_live=bool(values["is_tail"]))


def shown(visit: Visit, looked: Sequence[Looked], limit: int, is_newest_first: bool) -> list[Shown]:
    """Return what was found in all partitions, in order, decoded."""
    every = sorted(
        (message for each in looked for message in each.messages),
        key=lambda one: (one.timestamp, one.offset),
        reverse=is_newest_first,
    )
    decoder = Decoder(visit.settings.registry)
    stable = {each.view.place[1]: each.view.last_stable_offset for each in looked}
    return [
        Shown(
            one,
            decoder.decode(one.key),
            decoder.decode(one.value),
            one.outcome is Outcome.COMMITTED and one.offset >= stable[one.partition],
        )
        for one in every[:limit]
    ]


def one(visit: Visit) -> Screen:
    """One record, whole."""
    message = _message(visit)
    decoder = Decoder(visit.settings.registry)
    values = {
        "name": message.topic,
        "tab": "messages",
        "message": message,
        "key": decoder.decode(message.key),
        "value": decoder.decode(message.value),
        "headers": [(printable(name), decoder.decode(value)) for name, value in message.headers],
    }
    title = f"{message.topic}-{message.partition} {message.offset}"
    # Only what may still be decided is looked at again: a record may have 10 MB.
    is_live = message.outcome is Outcome.OPEN
    return Screen("message.html", values, title, is_live)


def raw(visit: Visit) -> bytes:
    """Return the value of a record, as it is."""
    return _message(visit).value or b""


def backwards(
    view: PartitionView,
    anchor: int,
    limit: int,
    keeps: Callable[[Message], bool],
    budget: Budget,
) -> Looked:
    """Return the newest messages before `anchor` (-1: before the end), the newest first."""
    end = view.high_watermark if anchor < 0 else min(anchor, view.high_watermark)
    found = Looked(view, first=end, end=end)
    window = min(limit * 2, 128)
    while found.first > view.log_start_offset and len(found.messages) < limit:
        first = max(found.first - window, view.log_start_offset)
        batches, next_offset = view.read(first, found.first, max(budget.bytes_left, 1))
        if next_offset < found.first and window > 1 and batches:
            # The newest part of the window was not reached: it holds too much.
            window = max(window // 4, 1)
            budget.bytes_left -= sum(len(each.batch) for each in batches) // 4
            if budget.is_spent:
                break
            continue
        budget.bytes_left -= sum(len(each.batch) for each in batches)
        # Whole batches: the next window ends where the first of them begins.
        begin = min([first, *(each.header.base_offset for each in batches)])
        below = found.first
        met = [one for one in _messages(view.place, batches) if begin <= one.offset < below]
        found.messages += [one for one in reversed(met) if keeps(one)]
        found.first = max(min(begin, below - 1), view.log_start_offset)
        window = min(window * 2, _WINDOW_MAX)
        if budget.is_spent:
            break
    if len(found.messages) > limit:
        found.messages = found.messages[:limit]
        found.first = found.messages[-1].offset
    return found


def forwards(
    view: PartitionView,
    begin: int,
    limit: int,
    keeps: Callable[[Message], bool],
    budget: Budget,
) -> Looked:
    """Return the first messages from `begin` on."""
    first = min(max(begin, view.log_start_offset), view.high_watermark)
    found = Looked(view, first=first, end=first)
    while found.end < view.high_watermark and len(found.messages) < limit:
        end = min(found.end + _WINDOW_MAX, view.high_watermark)
        size = min(1 << 20, max(budget.bytes_left, 1))
        batches, next_offset = view.read(found.end, end, size)
        if next_offset <= found.end:
            break
        budget.bytes_left -= sum(len(each.batch) for each in batches)
        met = [
            one for one in _messages(view.place, batches) if found.end <= one.offset < next_offset
        ]
        found.messages += [one for one in met if keeps(one)]
        found.end = next_offset
        if budget.is_spent:
            break
    if len(found.messages) > limit:
        found.messages = found.messages[:limit]
        found.end = found.messages[-1].offset + 1
    return found


def _messages(place: TopicPartition, batches: Sequence[Judged]) -> Iterator[Message]:
    """Yield what the batches hold. ClientError: one is damaged."""
    for header, batch, outcome in batches:
        common = outcome, header.producer_id
        if outcome.is_marker:
            yield Message(*place, header.base_offset, header.base_timestamp, *common)
            continue
        try:
            for record in iterate_records(batch):
                yield Message(
                    *place,
                    record.offset,
                    record.timestamp,
                    *common,
                    record.key,
                    record.value,
                    record.headers,
                )
        except WireError as error:
            raise ClientError(
                f"{place[0]}-{place[1]} is damaged at offset {header.base_offset}: {error}."
            ) from None


def _keeps(kind: str, wanted: str) -> Callable[[Message], bool]:
    text = wanted.lower().encode()

    def keeps(message: Message) -> bool:
        if kind == "markers":
            return message.outcome.is_marker
        if message.outcome.is_marker:
            return kind == "all" and not text
        if kind in ("committed", "aborted", "open") and message.outcome != kind:
            return False
        return not text or message.holds(text)

    return keeps


def _begins(
    visit: Visit,
    client: Client,
    leaders: dict[TopicPartition, int],
    views: Sequence[PartitionView],
    where: str,
) -> dict[TopicPartition, int]:
    """Return the offset that each partition is read from."""
    if where == "offset":
        return dict.fromkeys((view.place for view in views), visit.number("offset", 0))
    if where == "time":
        moment = _time_of(visit)
        found = list_offsets(client, leaders, [view.place for view in views], moment)
        # -1: no record is as young.
        return {
            view.place: view.high_watermark if found[view.place] < 0 else found[view.place]
            for view in views
        }
    return {view.place: view.log_start_offset for view in views}


def _time_of(visit: Visit) -> int:
    text = visit.query.get("time", "").strip()
    return moment_of(text, "The time") if text else 0


def _sentence(looked: Looked) -> str:
    view = looked.view
    name = f"{view.place[0]}-{view.place[1]}"
    if view.log_start_offset == view.high_watermark:
        return f"{name} is empty."
    return (
        f"{name}: looked at offsets {count(looked.first)} to {count(max(looked.end - 1, 0))}, of"
        f" {count(view.log_start_offset)} to {count(view.high_watermark - 1)}."
    )


def _pager(looked: Sequence[Looked]) -> dict[str, object]:
    """Return where older and newer records are; only one partition has an order."""
    if len(looked) != 1:
        return {"older": None, "newer": None, "only": None}
    (each,) = looked
    view = each.view
    return {
        "older": each.first if each.first > view.log_start_offset else None,
        "newer": each.end if each.end < view.high_watermark else None,
        "only": view.place[1],
    }


def _message(visit: Visit) -> Message:
    name = topic_of(visit)
    place = name, visit.number("partition", -1, lowest=-1)
    offset = visit.number("offset", -1, lowest=-1)

    def ask(client: Client) -> Message:
        leaders = leaders_of(client, name)
        if place not in leaders:
            raise NotFound(f"{name} has no partition {place[1]} with a leader that answers.")
        (view,) = view_partitions(client, leaders, [place])
        if not view.log_start_offset <= offset < view.high_watermark:
            raise NotFound(
                f"{name}-{place[1]} has no offset {offset}: it begins at {view.log_start_offset}"
                f" and ends before {view.high_watermark}."
            )
        batches, _ = view.read(offset, offset + 1, 1)
        for message in _messages(place, batches):
            if message.offset == offset:
                return message
        raise NotFound(
            f"{name}-{place[1]} has nothing at offset {offset} any more: compaction removed it."
        )

    return visit.look(ask)
