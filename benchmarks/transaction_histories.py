"""What a long history of transactions costs: aborted ones in a fetch, recovery, ids and partitions
in an EndTxn.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median

from benchmarks.frames import (
    NOT_YET,
    Frames,
    Identity,
    add_partitions,
    end,
    end_request,
    fetch_request,
    fetched,
    new_producers,
    produce_request,
    produced,
)
from benchmarks.subjects import cpu_seconds
from benchmarks.table import Row
from compat_tests.admin import create_topic
from compat_tests.brokers import Broker
from compat_tests.client import TIMEOUT_S
from wire.messages.end_txn import EndTxnResponse
from wire.messages.fetch import FetchRequest
from wire.messages.produce import ProduceResponse
from wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

#: So many producers abort together; the next ones begin after their markers.
_TOGETHER = 50
#: So many rounds of them are sent before the answers to the first are read.
_ROUNDS_AHEAD = 4
_CONNECTIONS = 32
_RECORDS_EACH = 100
_EVERYTHING_BYTES = 50 << 20
_SAMPLES = 100
_START_TIMEOUT_S = 120.0

#: Produce before it adds partitions, and the first that does; EndTxn that bumps the epoch.
_PRODUCE_1 = 11
_PRODUCE_2 = 12
_END_TXN_2 = 5


def aborted(broker: Broker, count: int) -> dict[Row, float]:
    """Abort `count` transactions in one partition; fetch few and many, the oldest and the newest.

    What a fetch costs should follow the transactions in what it returns, not those around it.
    """
    create_topic(broker.bootstrap, "aborted")
    found: dict[Row, float] = {}
    with Frames(broker.bootstrap) as connection:
        _abort_many(connection, count)
        _, whole = fetched(connection, fetch_request("aborted", 0, _EVERYTHING_BYTES))
        (partition,) = whole.responses[0].partitions
        # A broker may end an answer before it names too many of them.
        bytes_each = len(partition.records or b"") // len(partition.aborted_transactions or ())
        end_offset = partition.high_watermark
        assert end_offset == partition.last_stable_offset == 2 * count
        for size in (_TOGETHER, 20 * _TOGETHER):
            named = 0
            for where, first in (("first", 0), ("last", end_offset - 2 * size)):
                request = fetch_request("aborted", first, size * bytes_each)
                took_ms, names = _fetch_often(connection, request)
                named = max(named, names)
                label = f"fetch over the {where} {size:,} of {count:,} aborted transactions, p50"
                found[Row(label, "ms", False)] = took_ms
            row = Row(f"aborted transactions named to a fetch over {size:,}", "entries", False)
            found[row] = named
    return found


def _abort_many(connection: Frames, count: int) -> None:
    """Leave `count` aborted transactions of one record, of 50 producers, all in one partition.

    Each producer has one transaction at its coordinator; markers from outside, as an operator's
    tool sends them, end its data in the partition again and again.
    """
    producers = new_producers([connection], [f"aborts-{n}" for n in range(_TOGETHER)])
    for who in producers:
        add_partitions(connection, who, "aborted", [0])
    ends = WriteTxnMarkersRequest(markers=[_abort_marker(who) for who in producers])
    rounds = count // _TOGETHER
    for number in range(rounds + _ROUNDS_AHEAD):
        if number < rounds:
            batches = [produce_request("aborted", who, number, [b"x"]) for who in producers]
            connection.send(_PRODUCE_1, *batches)
            connection.send(1, ends)
        if number >= _ROUNDS_AHEAD:
            for _ in producers:
                answer = connection.receive(ProduceResponse, _PRODUCE_1)
                assert produced(answer) == 0, answer
            for marker in connection.receive(WriteTxnMarkersResponse, 1).markers:
                assert marker.topics[0].partitions[0].error_code == 0, marker


def _abort_marker(who: Identity) -> WritableTxnMarker:
    return WritableTxnMarker(
        producer_id=who.producer_id,
        producer_epoch=who.producer_epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name="aborted", partition_indexes=[0])],
    )


def _fetch_often(connection: Frames, request: FetchRequest) -> tuple[float, int]:
    """Return p50 in ms, and how many aborted transactions the answer names."""
    took: list[float] = []
    names = 0
    for _ in range(_SAMPLES):
        took_ms, answer = fetched(connection, request)
        took.append(took_ms)
        (partition,) = answer.responses[0].partitions
        assert partition.error_code == 0 and partition.records, partition
        names = len(partition.aborted_transactions or ())
    return median(took), names


def recovery(broker: Broker, transactions: int) -> dict[Row, float]:
    """Fill a partition with transactions of 100 records, kill the broker; then stop it cleanly.

    Times run from the start of the process.
    """
    create_topic(broker.bootstrap, "history")
    _transact_many(broker, transactions)
    found: dict[Row, float] = {}
    for how, clean in (("kill -9", False), ("a clean stop", True)):
        if clean:
            broker.stop()
        else:
            broker.kill()
        answers_ms, reads_ms = _start_again(broker, transactions)
        after = f"{transactions:,} transactions of {_RECORDS_EACH} records after {how}"
        found[Row(f"{after}: start to first answer", "ms", False)] = answers_ms
        found[Row(f"{after}: start to first committed read", "ms", False)] = reads_ms
        found[Row(f"{after}: CPU until then", "s", False)] = cpu_seconds(broker.pid)
    return found


def _transact_many(broker: Broker, count: int) -> None:
    """Run `count` transactions of version 2 in partition 0, one in ten of them aborted."""
    with ExitStack() as stack:
        connections = [stack.enter_context(Frames(broker.bootstrap)) for _ in range(_CONNECTIONS)]
        producers = new_producers(connections, [f"history-{n}" for n in range(_CONNECTIONS)])
        values = [b"x" * 100] * _RECORDS_EACH
        for start in range(0, count, _CONNECTIONS):
            number = min(_CONNECTIONS, count - start)
            _produce_all(connections[:number], producers, values)
            commit = start // _CONNECTIONS % 10 != 0
            producers[:number] = _end_all(connections[:number], producers, commit=commit)
        # Kafka has answered before the last markers are there.
        request = fetch_request("history", 0, 1)
        deadline = time.monotonic() + TIMEOUT_S
        while _stable_offset(connections[0], request) < count * (_RECORDS_EACH + 1):
            assert time.monotonic() < deadline, "the last markers are missing"
            time.sleep(0.01)


def _stable_offset(connection: Frames, request: FetchRequest) -> int:
    _, answer = fetched(connection, request)
    stable: int = answer.responses[0].partitions[0].last_stable_offset
    return stable


def _produce_all(
    connections: Sequence[Frames], producers: Sequence[Identity], values: list[bytes]
) -> None:
    waiting = list(zip(connections, producers, strict=False))
    deadline = time.monotonic() + TIMEOUT_S
    while waiting:
        for connection, who in waiting:
            connection.send(_PRODUCE_2, produce_request("history", who, 0, values))
        again = []
        for connection, who in waiting:
            code = produced(connection.receive(ProduceResponse, _PRODUCE_2))
            if code in NOT_YET:
                again.append((connection, who))
            else:
                assert code == 0, code
        waiting = again
        assert time.monotonic() < deadline, "never accepted"


def _end_all(
    connections: Sequence[Frames], producers: Sequence[Identity], *, commit: bool
) -> list[Identity]:
    for connection, who in zip(connections, producers, strict=False):
        connection.send(_END_TXN_2, end_request(who, commit=commit))
    following = []
    for connection, who in zip(connections, producers, strict=False):
        answer = connection.receive(EndTxnResponse, _END_TXN_2)
        assert answer.error_code == 0, answer
        following.append(Identity(who.transactional_id, answer.producer_id, answer.producer_epoch))
    return following


def _start_again(broker: Broker, transactions: int) -> tuple[float, float]:
    """Start the process; return the ms to its first answer, and to a committed read of the end."""
    end_offset = transactions * (_RECORDS_EACH + 1)
    request = fetch_request("history", end_offset - 1, 1 << 20)
    began_at = time.perf_counter()
    broker.spawn()
    answers_ms = 0.0
    while time.perf_counter() - began_at < _START_TIMEOUT_S:
        try:
            with Frames(broker.bootstrap) as connection:
                _, answer = fetched(connection, request)
        except OSError:
            time.sleep(0.002)
            continue
        now_ms = (time.perf_counter() - began_at) * 1000
        answers_ms = answers_ms or now_ms
        (partition,) = answer.responses[0].partitions
        # Killed, Kafka may write markers a second time: then there are more.
        if partition.error_code == 0 and partition.last_stable_offset >= end_offset:
            return answers_ms, now_ms
        time.sleep(0.002)
    raise AssertionError(f"never read what was committed:\n{broker.output()}")


def end_txn(broker: Broker, known_ids: int, partitions: int) -> dict[Row, float]:
    """EndTxn beside one and `known_ids` transactional ids; with 1 to `partitions` partitions."""
    create_topic(broker.bootstrap, "wide", partitions)
    found: dict[Row, float] = {}
    with ExitStack() as stack:
        connections = [stack.enter_context(Frames(broker.bootstrap)) for _ in range(_CONNECTIONS)]
        connection = connections[0]
        (who,) = new_producers([connection], ["ends"])
        _end_often(connection, who, 1)  # A JVM compiles what it runs often: let it.
        row = Row("EndTxn, 1 transactional id known, p50", "ms", False)
        found[row], _ = _end_often(connection, who, 1)
        new_producers(connections, [f"known-{n}" for n in range(known_ids)])
        row = Row(f"EndTxn, {known_ids:,} transactional ids known, p50", "ms", False)
        found[row], _ = _end_often(connection, who, 1)
        wide = 1
        while wide <= partitions:
            _, through_ms = _end_often(connection, who, wide)
            label = f"EndTxn of {wide:,} partition{'s' * (wide > 1)} until the next begins, p50"
            found[Row(label, "ms", False)] = through_ms
            wide *= 10
    return found


def _end_often(connection: Frames, who: Identity, partitions: int) -> tuple[float, float]:
    """Return p50 of EndTxn's answer, and of EndTxn until the next transaction has begun, in ms."""
    answered, begun = [], []
    add_partitions(connection, who, "wide", range(partitions))
    for number in range(_SAMPLES if partitions < 1000 else _SAMPLES // 5):
        began_at = time.perf_counter()
        answered.append(end(connection, who, commit=number % 2 == 0))
        add_partitions(connection, who, "wide", [0])
        begun.append((time.perf_counter() - began_at) * 1000)
        add_partitions(connection, who, "wide", range(partitions))
    end(connection, who, commit=True)
    return median(answered), median(begun)
