"""Stories of transactions told as text: commands, and under each the trace that it leaves.

    # A comment says the point.
    init tx-1
        = 1000/0
        tx-1 new -> EMPTY 1000/0

What a command leaves is read off the logs, durable or not: the answer (`=`), the transaction log's
records, data and markers of partitions, stable offsets that moved, what a crash took. So a story
can be checked by reading, and by `run`. Commands (a producer is its id and epoch, 1000/0; the
latest answer's where none is named):

    init ID [PRODUCER]               InitProducerId, naming an identity or none
    add ID PARTITION... [PRODUCER]   AddPartitionsToTxn (version 1)
    send1 ID PARTITION VALUE [PRODUCER]    Produce v11: the partition must have been added
    send2 ID PARTITION VALUE [PRODUCER]    Produce v12: adds it in the same step
    end1 | end2 ID commit|abort [PRODUCER]     EndTxn v4 | v5
    ... ; crash undecided|decided|marked   end, but lose power: nothing of it is durable, the
                                     decision is, or the markers are too; then start again. In the
                                     default broker the markers are durable with the decision.
    restart                          lose what is not durable, start again
    wait MILLISECONDS                the clock moves, alarms ring
    age ID EPOCH                     as many transactions later
    read PARTITION                   what read_committed readers are given
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from coordinator.transactions.commit_plan import Storage
from coordinator.transactions.metadata import ProducerIdentity, TopicPartition
from coordinator.transactions.records import decode_key, decode_value
from logstore.partition.reader import Isolation
from magnetar.storage.topic_names import TRANSACTION_STATE
from tests.logstore.partitions import batch_of
from tests.logstore.reading import records_from
from tests.magnetar.transaction_world import TIMEOUT_MS, World
from wire.errors import KafkaError
from wire.records import BatchHeader, Marker, iterate_batches, iterate_records

_STAGES = {"undecided": 0, "decided": 1, "marked": 2}


def run(text: str, storage: Storage = Storage.ALL_OR_NOTHING) -> str:
    """Return the story with the trace that its commands leave here and now.

    `storage`: ALL_OR_NOTHING is the default broker, with its journal; APART decides first.
    """
    return asyncio.run(_Story(storage).tell(text))


class _Story:
    def __init__(self, storage: Storage) -> None:
        self.world = World(storage=storage)
        self.world.add_topic("b", 1)
        self.world.ensure_internal(TRANSACTION_STATE)
        self.producers: dict[str, ProducerIdentity] = {}
        self.sequences: dict[tuple[ProducerIdentity, TopicPartition], int] = {}
        self.seen_offsets: dict[TopicPartition, int] = {}
        self.stable: dict[TopicPartition, int] = {}
        self.states: dict[str, str] = {}

    async def tell(self, text: str) -> str:
        lines = []
        for line in text.splitlines():
            if line.startswith("    "):
                continue
            lines.append(line)
            if line and not line.startswith("#"):
                lines += [f"    {event}" for event in await self.perform(line)]
        return "\n".join(lines) + "\n"

    async def perform(self, line: str) -> list[str]:
        """Carry out one command; return what it left."""
        command, _, crash = line.partition(";")
        verb, *words = command.split()
        commands: dict[str, Callable[..., Coroutine[Any, Any, str | None]]] = {
            "init": self.init,
            "add": self.add,
            "send1": self.send,
            "send2": self.send,
            "end1": self.end,
            "end2": self.end,
            "restart": self.restart,
            "wait": self.wait,
            "age": self.age,
            "read": self.read,
        }
        try:
            answer = await commands[verb](verb, words, crash.removeprefix(" crash").strip())
        except KafkaError as refusal:
            answer = refusal.code.name
        events = [] if answer is None else [f"= {answer}"]
        if crash:
            events.append("power lost; start again")
        await self.world.settle()
        return events + list(self.changes())

    # Commands.

    def who(self, words: list[str]) -> ProducerIdentity:
        """Return the producer that the words name last, else the latest of the transactional
        id."""
        if "/" in words[-1]:
            producer_id, _, epoch = words.pop().partition("/")
            return ProducerIdentity(int(producer_id), int(epoch))
        return self.producers[words[0]]

    async def init(self, _: str, words: list[str], __: str) -> str:
        claimed = self.who(words) if "/" in words[-1] else None
        (name,) = words
        found = await self.world.until(
            self.world.coordinator.init_producer_id(name, TIMEOUT_MS, claimed)
        )
        self.producers[name] = found
        return shown(found)

    async def add(self, _: str, words: list[str], __: str) -> str:
        identity = self.who(words)
        name, *partitions = words
        await self.world.until(
            self.world.coordinator.holds.add_partitions(
                name, identity, {partition_of(one) for one in partitions}
            )
        )
        return "ok"

    async def send(self, verb: str, words: list[str], _: str) -> str:
        identity = self.who(words)
        name, where, value = words
        partition = partition_of(where)
        coordinator = self.world.coordinator
        sequence = self.sequences.get((identity, partition), 0)
        batch = batch_of(
            value.encode(),
            producer_id=identity.producer_id,
            epoch=identity.producer_epoch,
            sequence=sequence,
            transactional=True,
        )
        log = self.world.logs[partition]
        checked = log.check(batch, self.world.now_ms)
        if verb == "send1":
            coordinator.holds.check_produce(name, *identity, *partition, is_abortable_known=True)
        else:
            coordinator.holds.hold(name, *identity, frozenset({partition}))
        log.append(checked)
        self.sequences[identity, partition] = sequence + 1
        return "ok"

    async def end(self, verb: str, words: list[str], crash: str) -> str | None:
        identity = self.who(words)
        name, outcome = words
        ending = self.world.end(
            name,
            identity,
            commit=outcome == "commit",
            transaction_version=2 if verb == "end2" else 1,
        )
        if crash:
            await self.crash(asyncio.ensure_future(ending), _STAGES[crash])
            return None
        self.producers[name] = await self.world.until(ending)
        return shown(self.producers[name])

    async def crash(self, ending: asyncio.Task[ProducerIdentity], stage: int) -> None:
        """Let an end become durable as far as `stage` says; then lose what is not."""
        world = self.world
        await asyncio.sleep(0)
        for _ in range(8 if stage else 0):
            for partition, executor in world.executors.items():
                if executor.pending and (stage == 2 or partition.topic == TRANSACTION_STATE):
                    executor.step()
            await asyncio.sleep(0)
        assert ending.done() == (stage >= (1 if world.storage is Storage.ALL_OR_NOTHING else 2))
        ending.cancel()
        self.forget_what_is_not_durable()
        await world.restart()

    def forget_what_is_not_durable(self) -> None:
        for partition, log in self.world.logs.items():
            self.seen_offsets[partition] = min(
                self.seen_offsets.get(partition, 0), log.high_watermark
            )

    async def restart(self, _: str, __: list[str], ___: str) -> None:
        self.forget_what_is_not_durable()
        await self.world.restart()

    async def wait(self, _: str, words: list[str], __: str) -> None:
        self.world.now_ms += int(words[0])
        self.world.coordinator.expire_due()

    async def age(self, _: str, words: list[str], __: str) -> str:
        name, epoch = words
        txn = self.world.coordinator.find(name)
        assert txn is not None
        aged = txn._replace(producer_epoch=int(epoch))
        shard = self.world.coordinator.store.shard_of(name)
        shard.append([aged], self.world.now_ms)
        self.producers[name] = aged.identity
        return shown(aged.identity)

    async def read(self, _: str, words: list[str], __: str) -> str:
        reader = self.world.logs[partition_of(words[0])].reader
        found = reader.read(0, 1 << 20, Isolation.READ_COMMITTED)
        assert found is not None
        to_begin = sorted(found.aborted or (), key=lambda one: one.first_offset)
        aborted: set[int] = set()
        values = []
        for header, batch in iterate_batches(found.records):
            while to_begin and to_begin[0].first_offset <= header.base_offset:
                aborted.add(to_begin.pop(0).producer_id)
            if header.is_control:
                aborted.discard(header.producer_id)
            elif header.producer_id not in aborted:
                values += [bytes(one.value or b"").decode() for one in iterate_records(batch)]
        return " ".join(values) or "nothing"

    # The trace.

    def changes(self) -> Iterator[str]:
        """Yield what the logs hold since the last time, coordinator first."""
        for partition in sorted(
            self.world.logs, key=lambda one: (one.topic != TRANSACTION_STATE, one)
        ):
            log = self.world.logs[partition]
            first = self.seen_offsets.get(partition, 0)
            for header, record in records_from(log.reader, first):
                yield self.event(partition, header, record)
            self.seen_offsets[partition] = log.log_end_offset
            if partition.topic != TRANSACTION_STATE:
                stable, before = log.last_stable_offset, self.stable.get(partition, 0)
                if stable != before:
                    yield f"{named(partition)} stable {before} -> {stable}"
                self.stable[partition] = stable

    def event(self, partition: TopicPartition, header: BatchHeader, record: Any) -> str:
        if partition.topic == TRANSACTION_STATE:
            return self.state_event(record.key, record.value)
        producer = f"{header.producer_id}/{header.producer_epoch}"
        if isinstance(record, Marker):
            kind = record.control_type.name
            return f"{named(partition)} {header.base_offset}: marker {kind} {producer}"
        value = bytes(record.value).decode()
        return f"{named(partition)} {record.offset}: {value} {producer}"

    def state_event(self, key: Any, value: Any) -> str:
        name = decode_key(key)
        assert name is not None
        before = self.states.get(name, "new")
        if value is None:
            self.states.pop(name)
            return f"{name} {before} -> forgotten"
        txn = decode_value(name, value)
        self.states[name] = txn.state.name
        held = " ".join(named(one) for one in sorted(txn.partitions))
        rotation = f", then {shown(txn.successor)}" if txn.successor != txn.identity else ""
        named_votes = " ".join(
            f"{vote.transactional_id} {vote.producer_id}/{vote.producer_epoch}"
            for vote in txn.votes
        )
        return (
            f"{name} {before} -> {txn.state.name} {shown(txn.identity)}{rotation}"
            f"{f' [{held}]' if held else ''}{f' votes: {named_votes}' if named_votes else ''}"
        )


def shown(identity: ProducerIdentity) -> str:
    return f"{identity.producer_id}/{identity.producer_epoch}"


def named(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def partition_of(name: str) -> TopicPartition:
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number))
