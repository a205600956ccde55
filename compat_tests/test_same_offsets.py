"""The same script leaves the same log on magnetar and on Kafka: offsets, epochs, markers,
watermarks.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from compat_tests.admin import create_topic
from compat_tests.brokers import Broker
from compat_tests.client import TIMEOUT_S
from compat_tests.layout import Layout, layout
from compat_tests.raw import Connection, Identity, batch, unique

Script = Callable[[Connection, str], None]


def _end(connection: Connection, identity: Identity, *, commit: bool) -> None:
    """End a transaction and wait until its markers are written.

    Kafka answers the first EndTxn before; its retry is refused as concurrent until they are.
    """
    for _ in range(2):
        assert connection.end(identity, commit=commit).error_code == 0


def _plain(connection: Connection, topic: str) -> None:
    for values in ([b"a"], [b"b", b"c"], [b"d"] * 10):
        assert connection.produce(topic, batch(values)).error_code == 0


def _idempotent(connection: Connection, topic: str) -> None:
    identity = connection.producer(None)
    for sequence, values in ((0, [b"a", b"b"]), (2, [b"c"]), (2, [b"c"]), (3, [b"d"])):
        assert connection.produce(topic, batch(values, identity, sequence)).error_code == 0


def _committed_and_aborted(connection: Connection, topic: str) -> None:
    identity = connection.producer(unique("txn"))
    for sequence, commit in ((0, True), (2, False), (4, True)):
        assert connection.add_partitions(identity, topic) == [0]
        for offset in (0, 1):
            records = batch([b"v%d" % (sequence + offset)], identity, sequence + offset)
            answer = connection.produce(topic, records, transactional_id=identity.transactional_id)
            assert answer.error_code == 0
        _end(connection, identity, commit=commit)


def _interleaved(connection: Connection, topic: str) -> None:
    first, second = (connection.producer(unique("txn")) for _ in range(2))
    for identity in (first, second):
        assert connection.add_partitions(identity, topic) == [0]
    for sequence in range(3):
        for identity in (first, second):
            records = batch([b"x"], identity, sequence)
            answer = connection.produce(topic, records, transactional_id=identity.transactional_id)
            assert answer.error_code == 0
        assert connection.produce(topic, batch([b"plain"])).error_code == 0
    _end(connection, second, commit=False)
    assert connection.produce(topic, batch([b"between"])).error_code == 0
    _end(connection, first, commit=True)


def _left_open(connection: Connection, topic: str) -> None:
    identity = connection.producer(unique("txn"))
    assert connection.produce(topic, batch([b"before"])).error_code == 0
    connection.write_in_transaction(identity, topic, b"open")
    assert connection.produce(topic, batch([b"after"])).error_code == 0


def _empty_transactions(connection: Connection, topic: str) -> None:
    """A partition that was added and not written to gets its marker all the same."""
    identity = connection.producer(unique("txn"))
    for commit in (True, False):
        assert connection.add_partitions(identity, topic) == [0]
        _end(connection, identity, commit=commit)


def _fenced(connection: Connection, topic: str) -> None:
    """A new incarnation aborts what the old one left open; its marker carries the bumped epoch."""
    transactional_id = unique("txn")
    for value in (b"old", b"new"):
        identity = connection.producer(transactional_id)
        connection.write_in_transaction(identity, topic, value)
    _end(connection, identity, commit=True)


SCRIPTS: tuple[Script, ...] = (
    _plain,
    _idempotent,
    _committed_and_aborted,
    _interleaved,
    _left_open,
    _empty_transactions,
    _fenced,
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__.strip("_"))
def test_a_script_leaves_the_same_log_on_both(
    both_brokers: tuple[Broker, Broker], script: Script
) -> None:
    layouts = []
    for broker in both_brokers:
        topic = unique("same")
        create_topic(broker.bootstrap, topic)
        with Connection(broker.bootstrap) as connection:
            script(connection, topic)
        layouts.append(settled_layout(broker.bootstrap, topic, script is _left_open))
    ours, theirs = layouts
    differing = [
        pair for pair in zip(ours.batches, theirs.batches, strict=False) if len(set(pair)) > 1
    ]
    assert not differing
    assert ours == theirs


def settled_layout(bootstrap: str, topic: str, open_is_expected: bool) -> Layout:
    """Kafka answers EndTxn before its markers are there: look again until none is missing."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        seen = layout(bootstrap, topic)
        if open_is_expected or seen.last_stable_offset == seen.high_watermark:
            return seen
        assert time.monotonic() < deadline, seen
