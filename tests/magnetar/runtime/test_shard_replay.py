"""What a replay of a coordinator's shard reads, and what it leaves out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from threading import Event
from typing import Any

import pytest

from coordinator.transactions.metadata import State, TransactionMetadata
from coordinator.transactions.records import encode_record
from coordinator.transactions.shard import Shard
from magnetar.runtime.shard import Batch, RunningShard, not_replaced
from magnetar.runtime.transaction_store import FORMAT
from magnetar.storage.topic_names import INTERNAL
from tests.coordinator.transactions.shard_history import History, states
from tests.magnetar.conftest import StartBroker
from wire.errors import WireError
from wire.records import (
    BATCH_OVERHEAD,
    BatchHeader,
    Compression,
    SimpleRecord,
    build_batch,
    build_marker,
)

#: Two parents with their children.
JOINT = ["p", "p~>a", "p~>b", "p~>c", "q", "q~>a"]


def batch(base_offset: int, keys: Sequence[str], is_transactional: bool = False) -> Batch:
    records = [SimpleRecord(key.encode(), b"value", 1_000) for key in keys]
    producer_id = 7 if is_transactional else -1
    data = build_batch(
        records,
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0,
        is_transactional=is_transactional,
    )
    return BatchHeader.parse(data), bytes(data)


def offsets(batches: Sequence[Batch], stable_offset: int = 1_000) -> list[int]:
    return [header.base_offset for header, _ in not_replaced(batches, stable_offset)]


def test_of_batches_with_the_same_keys_the_last_stays() -> None:
    assert offsets([batch(number, ["a"]) for number in range(100)]) == [99]
    pairs = [batch(2 * number, ["a", "b"]) for number in range(100)]
    assert offsets(pairs) == [198]


def test_a_batch_stays_while_one_of_its_records_is_the_last_of_its_key() -> None:
    first = batch(0, ["a", "b"])
    assert offsets([first, batch(2, ["a"]), batch(3, ["a"])]) == [0, 3]
    assert offsets([first, batch(2, ["a"]), batch(3, ["b"])]) == [2, 3]


def test_a_key_twice_in_a_batch_counts_once() -> None:
    assert offsets([batch(0, ["a", "a"]), batch(2, ["a"])]) == [2]
    assert offsets([batch(0, ["a"]), batch(1, ["a", "a"])]) == [1]


def test_the_order_stays_that_of_the_log() -> None:
    batches = [batch(0, ["a"]), batch(1, ["b"]), batch(2, ["a"]), batch(3, ["c"])]
    assert offsets(batches) == [1, 2, 3]


def test_batches_of_transactions_replace_nothing_and_are_not_replaced() -> None:
    marker = bytes(
        build_marker(
            base_offset=2,
            producer_id=7,
            producer_epoch=0,
            coordinator_epoch=1,
            commit=False,
            timestamp_ms=1_000,
        )
    )
    batches = [
        batch(0, ["a"]),
        batch(1, ["a"], is_transactional=True),
        (BatchHeader.parse(marker), marker),
        batch(3, ["b"]),
        batch(4, ["a"], is_transactional=True),
    ]
    assert offsets(batches) == [0, 1, 2, 3, 4]
    assert offsets([*batches, batch(5, ["a"])]) == [1, 2, 3, 4, 5]


def test_nothing_is_left_out_where_a_transaction_may_be_open() -> None:
    batches = [batch(number, ["a"]) for number in range(6)]
    assert offsets(batches, stable_offset=3) == [3, 4, 5]
    assert offsets(batches[:4], stable_offset=3) == [3]
    assert offsets(batches, stable_offset=0) == [0, 1, 2, 3, 4, 5]


def test_compressed_batches_stay() -> None:
    record = SimpleRecord(b"a", b"value", 1_000)
    data = bytes(build_batch([record], compression=Compression.GZIP))
    compressed = BatchHeader.parse(data), data
    assert offsets([compressed, batch(1, ["a"])]) == [0, 1]


def test_batches_that_compaction_has_emptied_stay() -> None:
    header, data = batch(0, ["a"])
    empty = header._replace(record_count=0), data[:BATCH_OVERHEAD]
    assert offsets([empty, batch(1, ["a"])]) == [0, 1]


def test_lengths_that_are_a_lie_are_told() -> None:
    header, data = batch(0, ["a"])
    with pytest.raises(WireError):
        offsets([(header._replace(record_count=2), data)])


class Log:
    """The log of a shard, as far as a replay looks at it."""

    log_start_offset = 0

    def __init__(self, written: Sequence[Sequence[SimpleRecord]]) -> None:
        self._batches: list[Batch] = []
        end_offset = 0
        for records in written:
            data = bytes(build_batch(records, base_offset=end_offset))
            self._batches.append((BatchHeader.parse(data), data))
            end_offset += len(records)
        self.last_stable_offset = end_offset

    @property
    def reader(self) -> Log:
        return self

    def iterate_batches_from(self, _offset: int) -> list[Batch]:
        return self._batches


def replayed(written: Sequence[Sequence[SimpleRecord]]) -> Shard:
    log: Any = Log(written)
    shard = RunningShard(log, Shard(7), FORMAT)
    shard.replay()
    return shard.state


def test_an_id_that_was_forgotten_stays_so_though_its_batch_has_another_one() -> None:
    ended = [
        TransactionMetadata(name, producer_id, 0, 1_000, State.COMPLETE_COMMIT, 1_000)
        for producer_id, name in enumerate(("parent", "child"))
    ]
    forgotten = ended[1]._replace(state=State.DEAD)
    batches = [[*map(encode_record, ended)], [encode_record(forgotten)]]
    assert [*states(replayed(batches))] == ["parent"]


@pytest.mark.parametrize("seed", range(100))
def test_a_replay_ends_in_the_state_of_the_living_shard(seed: int) -> None:
    random, history = Random(seed), History()
    for _ in range(random.randrange(10, 80)):
        kind = random.choice(
            ["init", "add", "add", "commit", "commit", "abort", "expire", "work", "age"]
        )
        later_ms = random.choice([0, 1, 1, 2, 60, 1001])
        history.perform((kind, random.choice(JOINT), random.choice([0, 0, 0, 0, 1]), later_ms))
    shard = replayed(history.log)
    assert states(shard) == states(history.shard)
    assert shard.families == history.shard.families
    assert sorted(shard.work_due()) == sorted(history.shard.work_due())


async def test_the_event_loop_goes_on_while_a_start_replays(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps the lease of a node: a replay of many groups takes longer than that lasts."""
    settings = {"durability": "page-cache"}
    first = await start_broker(settings)
    for name in sorted(INTERNAL):
        first.topics.ensure_internal(name)
    await first.stop()
    loop, replay, replayed = asyncio.get_running_loop(), RunningShard.replay, []

    def watched(shard: RunningShard[Any, Any]) -> None:
        has_turned = Event()
        loop.call_soon_threadsafe(has_turned.set)
        replayed.append(has_turned.wait(2))
        replay(shard)

    monkeypatch.setattr(RunningShard, "replay", watched)
    await start_broker(settings)
    assert replayed == [True] * 4
