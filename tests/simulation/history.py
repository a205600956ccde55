"""What clients did and were told, and the checker that compares it with what readers see.

An outcome is committed or aborted where the client was told so or must be able to rely on it, else
unknown: then all of it or nothing. The checker returns witnesses, sentences that name the
transaction and the partition; an empty list is what everybody wants.

    lost        committed, and not all of it is there
    torn        unknown, and a part of it is there
    dirty       aborted, and some of it is there
    duplicated  anything is there twice
    offsets     a group's offset is not where the transactions that are there have brought it
    hanging     a stable offset stays behind its high watermark, something pending, undecided
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

from coordinator.groups.offsets.committed import OffsetKey
from coordinator.transactions.metadata import UNFINISHED, State, TopicPartition
from logstore.partition.log import PartitionLog
from magnetar.broker import Broker
from magnetar.storage.topic_names import INTERNAL
from wire.errors import KafkaError
from wire.records import ControlType, iterate_records, parse_marker

_FETCH_BATCHES = 5


class Outcome(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Transaction:
    """One attempt: what it sent, and how it ended. It moves `key` from one offset to another."""

    name: str
    key: OffsetKey
    from_offset: int
    to_offset: int
    values: dict[TopicPartition, list[str]] = field(default_factory=dict)
    #: Before the client sends its commit, nothing else can commit the transaction.
    outcome: Outcome = Outcome.ABORTED
    #: In simulated seconds; the end is when the client was told of it.
    began_s: float = 0.0
    ended_s: float = float("inf")
    #: When the commit was sent first.
    end_asked_s: float = float("inf")


@dataclass(slots=True)
class History:
    transactions: list[Transaction] = field(default_factory=list)
    #: What a client was told and should not have been.
    witnesses: list[str] = field(default_factory=list)

    def begin(self, name: str, key: OffsetKey, from_offset: int, to_offset: int) -> Transaction:
        transaction = Transaction(name, key, from_offset, to_offset)
        transaction.began_s = asyncio.get_running_loop().time()
        self.transactions.append(transaction)
        return transaction


def read_committed(log: PartitionLog) -> list[str]:
    """Return the values a consumer shows, by the aborted list as consumers use it."""
    values: list[str] = []
    batches = iter(log.ledger.batches.iterate(log.log_start_offset))
    while fetched := list(islice(batches, _FETCH_BATCHES)):
        # What a fetch of these batches would be told, and each fetch begins to count afresh.
        found = log.transactions.aborted.overlapping(
            fetched[0][0].base_offset, fetched[-1][0].next_offset
        )
        waiting = sorted(found, key=lambda one: one.first_offset)
        aborted: set[int] = set()
        for header, batch in fetched:
            if header.base_offset >= log.last_stable_offset:
                break
            while waiting and waiting[0].first_offset <= header.last_offset:
                aborted.add(waiting.pop(0).producer_id)
            if header.is_control:
                if parse_marker(batch).control_type is ControlType.ABORT:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                values += [_text(record.value) for record in iterate_records(batch)]
    return values


def committed_by_markers(log: PartitionLog) -> list[str]:
    """Return the same, told by the markers alone: each decides what its producer has open."""
    order: dict[str, int] = {}
    is_open: dict[int, list[tuple[int, str]]] = {}
    for header, batch in log.ledger.batches.iterate(log.log_start_offset):
        if header.is_control:
            ended = is_open.pop(header.producer_id, [])
            if parse_marker(batch).control_type is ControlType.COMMIT:
                order.update({value: offset for offset, value in ended})
            continue
        for record in iterate_records(batch):
            is_open.setdefault(header.producer_id, []).append((record.offset, _text(record.value)))
    return sorted(order, key=order.__getitem__)


def _text(value: bytes | memoryview | None) -> str:
    assert value is not None
    return bytes(value).decode()


def check(history: History, broker: Broker) -> list[str]:
    """Return everything that is wrong, now that all has ended."""
    seen = {
        TopicPartition(topic.name, index): read_committed(log)
        for topic in broker.topics.all()
        if topic.name not in INTERNAL
        for index, log in enumerate(topic.local)
    }
    return [*check_seen(history, broker, seen), *_misread(broker, seen), *_duplicated(seen)]


def check_seen(
    history: History, broker: Broker, seen: dict[TopicPartition, list[str]]
) -> list[str]:
    """Return what is wrong where `seen` is what read_committed readers find at the end."""
    sets = {partition: set(values) for partition, values in seen.items()}
    return [
        *history.witnesses,
        *_hanging(broker),
        *(sentence for one in history.transactions for sentence in _torn(one, sets)),
        *_strayed_offsets(history, [broker], sets),
    ]


def check_nodes(
    history: History, brokers: Sequence[Broker], seen: dict[TopicPartition, list[str]]
) -> list[str]:
    """As `check_seen`, of several nodes."""
    sets = {partition: set(values) for partition, values in seen.items()}
    return [
        *history.witnesses,
        *(sentence for broker in brokers for sentence in _hanging(broker)),
        *(sentence for one in history.transactions for sentence in _torn(one, sets)),
        *_strayed_offsets(history, brokers, sets),
    ]


def _hanging(broker: Broker) -> Iterator[str]:
    for topic in broker.topics.all():
        for index, log in enumerate(topic.local):
            if not log.last_stable_offset == log.high_watermark == log.log_end_offset:
                yield (
                    f"hanging: {topic.name}-{index} stable {log.last_stable_offset},"
                    f" high watermark {log.high_watermark}, end {log.log_end_offset},"
                    f" open {list(log.transactions.open_transactions())}"
                )
    for shard in broker.groups.shards:
        for identity in shard.state.offsets.pending.open_transactions():
            yield f"hanging: pending acks of {identity} in {shard.log.partition}"
    for txn in broker.transactions:
        if txn.state in UNFINISHED or txn.state is State.ONGOING:
            yield f"hanging: {txn.transactional_id} is {txn.state.label} on {set(txn.partitions)}"


def _misread(broker: Broker, seen: dict[TopicPartition, list[str]]) -> Iterator[str]:
    for partition, values in seen.items():
        told = committed_by_markers(broker.topics.partition(*partition))
        if told != values:
            yield f"misread: {partition} shows {values}, its markers say {told}"


def _duplicated(seen: dict[TopicPartition, list[str]]) -> Iterator[str]:
    for partition, values in seen.items():
        for value, count in Counter(values).items():
            if count > 1:
                yield f"duplicated: {value} is {count} times in {partition}"


def _torn(one: Transaction, seen: dict[TopicPartition, set[str]]) -> Iterator[str]:
    present = {
        (partition, value)
        for partition, values in one.values.items()
        for value in values
        if value in seen[partition]
    }
    sent = {(partition, value) for partition, values in one.values.items() for value in values}
    if one.outcome is Outcome.COMMITTED and present != sent:
        yield f"lost: {one.name} is committed, {sent - present} is not there"
    if one.outcome is Outcome.ABORTED and present:
        yield f"dirty: {one.name} is aborted, {present} is there"
    if one.outcome is Outcome.UNKNOWN and present and present != sent:
        yield f"torn: of {one.name} there is {present}, not {sent - present}"


def _strayed_offsets(
    history: History, brokers: Sequence[Broker], seen: dict[TopicPartition, set[str]]
) -> Iterator[str]:
    """Those that are there must follow one upon the other, up to what the group has committed."""
    there: dict[OffsetKey, list[Transaction]] = {one.key: [] for one in history.transactions}
    for one in history.transactions:
        if any(
            value in seen[partition] for partition, sent in one.values.items() for value in sent
        ):
            there[one.key].append(one)
    for key, transactions in there.items():
        offset = 0
        for one in sorted(transactions, key=lambda one: one.from_offset):
            if one.from_offset != offset:
                yield f"offsets: {one.name} read {key} from {one.from_offset}, not from {offset}"
            offset = one.to_offset
        committed = max(_committed(broker, key) for broker in brokers)
        if committed != offset:
            yield f"offsets: {key} is at {committed}, its transactions have reached {offset}"


def _committed(broker: Broker, key: OffsetKey) -> int:
    """Return what the group has committed; 0 where another node has the group."""
    if not list(broker.groups.shards):
        return 0
    try:
        found = broker.groups.shards.of(key.group_id).state.offsets.get(key)
    except KafkaError:
        return 0
    return 0 if found is None else found.offset
