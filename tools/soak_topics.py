"""Retention and compaction while everything is at work: a long run of `tools.soak_run`.

The cleaner and retention of the broker hardly rest, and it is killed every 15 s. Transactional
writers commit and abort, each on keys of its own, in a compacted topic, a deleted one, and one that
is both; readers read the compacted one from its start over and over. At the end nothing is lost
that the policies keep, no record has changed its offset, no aborted record was seen, and the logs
have become small.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from compat_tests.admin import create_topic
from compat_tests.brokers import Broker
from compat_tests.confluent_client import consumer, producer
from compat_tests.pipeline.disturber import Verdict
from compat_tests.pipeline.supervisor import Report

SETTINGS = {
    "log.cleaner.backoff.ms": "200",
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "500",
}
RETENTION_MS = 20_000
_ROLLING = {"segment.ms": "1000", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.1"}
TOPICS = {
    "compacted": {**_ROLLING, "cleanup.policy": "compact", "delete.retention.ms": "2000"},
    "deleted": {**_ROLLING, "cleanup.policy": "delete", "retention.ms": str(RETENTION_MS)},
    "both": {**_ROLLING, "cleanup.policy": "compact,delete", "retention.ms": str(RETENTION_MS)},
}
_WRITERS, _READERS = 3, 2
_KEYS = 200
_KILL_EVERY_S = 15.0
_TOLD_EVERY_S = 10.0
_CALL_S = 60.0
#: A commit without an answer for longer than this is a fault.
_PATIENCE_S = 120.0


@dataclass
class Ledger:
    """What the writers know. A record's number is unique among the records of its writer."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    #: By key: number of its last committed record, and whether that is a tombstone.
    committed: dict[bytes, tuple[int, bool]] = field(default_factory=dict)
    #: By key: numbers of records whose transaction has an unknown outcome.
    unknown: dict[bytes, set[int]] = field(default_factory=dict)
    aborted: set[bytes] = field(default_factory=set)
    #: Value of each committed record, and when it was acknowledged.
    acknowledged: dict[bytes, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    written: int = 0
    passes: int = 0

    def fault(self, text: str) -> None:
        with self.lock:
            if len(self.faults) < 20:
                self.faults.append(text)


class Writer(threading.Thread):
    """Writes transactions, one after the other, on keys of its own."""

    def __init__(self, number: int, broker: Broker, ledger: Ledger, stop: threading.Event) -> None:
        super().__init__(name=f"writer-{number}")
        self._id = number
        self._broker = broker
        self._ledger = ledger
        self._stopping = stop
        self._random = random.Random(number)
        self._number = 0

    def run(self) -> None:
        client = self._begin()
        while not self._stopping.is_set():
            records = [self._record() for _ in range(self._random.randint(5, 60))]
            if not self._transact(client, records, commit=self._random.random() < 0.7):
                client = self._begin()

    def _begin(self) -> Producer:
        while True:
            client = producer(
                self._broker.bootstrap,
                transactional_id=f"soak-{self._id}",
                linger_ms=1,
                transaction_timeout_ms=30_000,
            )
            try:
                client.init_transactions(_CALL_S)
                return client
            except KafkaException:
                time.sleep(0.5)

    def _record(self) -> tuple[bytes, int, bytes | None]:
        self._number += 1
        key = b"%d-%d" % (self._id, self._random.randrange(_KEYS))
        value = b"%d:%d:" % (self._id, self._number) + b"x" * 200
        return key, self._number, value if self._random.random() < 0.9 else None

    def _transact(
        self, client: Producer, records: list[tuple[bytes, int, bytes | None]], *, commit: bool
    ) -> bool:
        """Return whether the client may go on. The outcome of the transaction is in the ledger."""
        outcome = "unknown"
        try:
            client.begin_transaction()
            for topic in TOPICS:
                for key, number, value in records:
                    client.produce(topic, value, key, headers=[("number", b"%d" % number)])
            outcome = self._end(client, commit=commit)
        except (KafkaException, BufferError):
            outcome = "unknown"
        self._note(records, outcome)
        return outcome != "unknown"

    def _end(self, client: Producer, *, commit: bool) -> str:
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            try:
                if commit:
                    client.commit_transaction(_CALL_S)
                    return "committed"
                client.abort_transaction(_CALL_S)
                return "aborted"
            except KafkaException as failed:
                error = failed.args[0]
                if error.txn_requires_abort():
                    commit = False
                elif not error.retriable():
                    return "unknown"
        self._ledger.fault(f"{self.name}: no end of a transaction for {_PATIENCE_S:.0f} s")
        return "unknown"

    def _note(self, records: list[tuple[bytes, int, bytes | None]], outcome: str) -> None:
        ledger = self._ledger
        with ledger.lock:
            ledger.written += len(records)
            for key, number, value in records:
                if outcome == "committed":
                    ledger.committed[key] = number, value is None
                    ledger.unknown.pop(key, None)
                    if value is not None:
                        ledger.acknowledged[value] = time.time()
                elif outcome == "unknown":
                    ledger.unknown.setdefault(key, set()).add(number)
                elif value is not None:
                    ledger.aborted.add(value)


@dataclass
class View:
    """One reading of a partition from its start: the last record of each key, and all values."""

    last: dict[bytes, tuple[int, bool]] = field(default_factory=dict)
    values: set[bytes] = field(default_factory=set)
    by_offset: dict[int, int] = field(default_factory=dict)


def read_all(bootstrap: str, topic: str) -> View | None:
    """Return the committed records up to the present end of the log; None if the broker went away.

    Waits for the end of transactions that are open before the log's end.
    """
    place = TopicPartition(topic, 0, 0)
    client = consumer(bootstrap, isolation_level="read_committed", enable_partition_eof=True)
    view = View()
    deadline = time.monotonic() + 60
    try:
        end_offset = _end_offset(bootstrap, place)
        client.assign([place])
        while time.monotonic() < deadline:
            message = client.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    if (message.offset() or 0) >= end_offset:
                        return view
                elif error.code() != KafkaError.OFFSET_OUT_OF_RANGE:
                    return None
                continue
            _add(view, message)
    except KafkaException:
        return None
    finally:
        client.close()
    return None


def _end_offset(bootstrap: str, place: TopicPartition) -> int:
    """Return the end of the log, open transactions included."""
    client = consumer(bootstrap, isolation_level="read_uncommitted")
    try:
        return client.get_watermark_offsets(place, _CALL_S)[1]
    finally:
        client.close()


def _add(view: View, message: object) -> None:
    offset, key, value = message.offset(), message.key(), message.value()  # type: ignore[attr-defined]  # untyped
    number = int(dict(message.headers())["number"])  # type: ignore[attr-defined]  # untyped
    view.last[key] = number, value is None
    view.by_offset[offset] = hash((key, number, value))
    if value is not None:
        view.values.add(value)


class Reader(threading.Thread):
    """Reads the compacted topic from its start, over and over."""

    def __init__(self, number: int, broker: Broker, ledger: Ledger, stop: threading.Event) -> None:
        super().__init__(name=f"reader-{number}")
        self._broker = broker
        self._ledger = ledger
        self._stopping = stop
        self._seen: dict[int, int] = {}

    def run(self) -> None:
        while not self._stopping.is_set():
            with self._ledger.lock:
                before = dict(self._ledger.committed)
            view = read_all(self._broker.bootstrap, "compacted")
            if view is None:
                continue
            self._ledger.passes += 1
            check_compacted(self._ledger, view, before, self.name)
            for offset, content in view.by_offset.items():
                if self._seen.setdefault(offset, content) != content:
                    self._ledger.fault(f"{self.name}: offset {offset} has another record now")


def check_compacted(
    ledger: Ledger, view: View, committed: dict[bytes, tuple[int, bool]], who: str
) -> None:
    """Check that each record committed before the reading, or a later one of its key, was read."""
    with ledger.lock:
        aborted = view.values & ledger.aborted
    if aborted:
        ledger.fault(f"{who}: aborted and seen: {min(aborted)[:40]!r}")
    for key, (number, is_tombstone) in committed.items():
        found = view.last.get(key)
        if found is None and is_tombstone:
            continue
        if found is None or found[0] < number:
            with ledger.lock:
                later = ledger.committed.get(key)
            if later is not None and later[0] > number and later[1] and found is None:
                continue  # The key was deleted meanwhile, and the tombstone expired.
            ledger.fault(f"{who}: {key!r} has {found}, {number} was committed before")


def check_final(broker: Broker, ledger: Ledger) -> str:
    """Compare all three topics with what the writers know; return a summary."""
    began = time.time()
    views = {topic: read_all(broker.bootstrap, topic) for topic in TOPICS}
    for topic, view in views.items():
        if view is None:
            ledger.fault(f"{topic} cannot be read")
            return "not finished"
    compacted, deleted, both = views["compacted"], views["deleted"], views["both"]
    assert compacted is not None and deleted is not None and both is not None
    check_compacted(ledger, compacted, ledger.committed, "in the end")
    for key, found in compacted.last.items():
        expected = ledger.committed.get(key)
        if found != expected and found[0] not in ledger.unknown.get(key, ()):
            ledger.fault(f"in the end: {key!r} has {found}, committed was {expected}")
    # Half the retention time is a margin for the time that the reading took.
    young = {
        value for value, at in ledger.acknowledged.items() if at > began - RETENTION_MS / 1000 / 2
    }
    if young - deleted.values:
        ledger.fault(f"{len(young - deleted.values)} young records are missing in `deleted`")
    latest = {
        key
        for key, (number, is_tombstone) in ledger.committed.items()
        if not is_tombstone and any(v.startswith(_prefix(key, number)) for v in young)
    }
    if latest - set(both.last):
        ledger.fault(f"{len(latest - set(both.last))} keys are missing in `both`")
    kept = len(compacted.by_offset)
    if kept > ledger.written / 2 or len(deleted.by_offset) > ledger.written:
        ledger.fault(f"{kept} of {ledger.written} records are left: nothing was compacted")
    return (
        f"{ledger.written} records to each topic; left: compacted {kept}, deleted"
        f" {len(deleted.by_offset)}, both {len(both.by_offset)}; {ledger.passes} readings"
    )


def _prefix(key: bytes, number: int) -> bytes:
    return b"%s:%d:" % (key.partition(b"-")[0], number)


def soak(broker: Broker, duration_s: float, report: Report) -> Verdict:
    """Run writers, readers and kills for `duration_s` on a started broker, and judge them."""
    for topic, configs in TOPICS.items():
        create_topic(broker.bootstrap, topic, 1, configs)
    ledger, stop = Ledger(), threading.Event()
    threads: list[threading.Thread] = [
        *(Writer(number, broker, ledger, stop) for number in range(_WRITERS)),
        *(Reader(number, broker, ledger, stop) for number in range(_READERS)),
    ]
    for thread in threads:
        thread.start()
    ends_at = time.monotonic() + duration_s
    kill_at = time.monotonic() + _KILL_EVERY_S
    tell_at, kills = 0.0, 0
    while time.monotonic() < ends_at and not ledger.faults:
        time.sleep(0.2)
        if time.monotonic() > kill_at:
            broker.kill()
            broker.start()
            kills += 1
            kill_at = time.monotonic() + _KILL_EVERY_S
        if time.monotonic() > tell_at:
            report(f"{ledger.written} records, {ledger.passes} readings, {kills} kills")
            tell_at = time.monotonic() + _TOLD_EVERY_S
    stop.set()
    for thread in threads:
        thread.join(2 * _PATIENCE_S)
    summary = check_final(broker, ledger)
    return Verdict(ledger.faults, f"{summary}, {kills} kills of the broker")
