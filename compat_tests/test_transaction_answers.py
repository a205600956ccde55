"""What producers are told of a duplicate, a refused batch, a stale epoch, a transaction that their
id's next producer has aborted: both brokers answer alike, in every field.

Of what `test_coordinator_answers` leaves out: it took sequences of requests to find these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kafka.protocol.admin import DescribeTransactionsRequest
from kafka.protocol.producer import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
)

from compat_tests.answers import Fields, Script, Topic, differences
from compat_tests.brokers import Broker
from compat_tests.conftest import MakeName
from compat_tests.raw import Identity, batch
from compat_tests.waiting import eventually

CONCURRENT_TRANSACTIONS = "error_code': 51"
#: A moment of 2001: what is answered for it is not the time of the request.
CREATED_MS = 1_000_000_000_000
#: Produce adds its partitions to the transaction.
ADDS_SINCE = 12
PRODUCE_VERSIONS = (3, 5, 8, 11, 12)


class _Producer:
    """One transactional id, and what its producers ask."""

    def __init__(self, script: Script, orders: Topic, suffix: object) -> None:
        self.script = script
        self.orders = orders
        self.id = f"{orders.name}-{suffix}"

    def init(self, known: Identity | None = None) -> Identity:
        who = known or Identity(self.id, -1, -1)
        answer = self._ask(
            InitProducerIdRequest, 4, transaction_timeout_ms=60_000, **self._fields(who)
        )
        return Identity(self.id, answer.producer_id, answer.producer_epoch)

    def add(self, who: Identity, version: int = 3, *, verify_only: bool = False) -> None:
        """Add partition 0, or ask whether the transaction holds it (version 4 and later)."""
        fields = self._fields(who)
        fields["topics"] = [{"name": self.orders.name, "partitions": [0]}]
        self._ask(
            AddPartitionsToTxnRequest,
            version,
            transactions=[fields | {"verify_only": verify_only}],
            **{f"v3_and_below_{name}": each for name, each in fields.items()},
        )

    def end(self, who: Identity, version: int, *, commit: bool) -> None:
        self._ask(EndTxnRequest, version, committed=commit, **self._fields(who))

    def describe(self) -> None:
        """Ask for the state of the id, once it is none of Kafka's Prepare*."""
        self._ask(DescribeTransactionsRequest, 0, transactional_ids=[self.id])

    def _ask(self, request: Any, version: int, **fields: Any) -> Any:
        """Ask until Kafka's markers of the last transaction are written; that is all it waits."""

        answers: list[Any] = []

        def is_settled() -> bool:
            answers.append(self.script.ask(request, version, **fields))
            heard = repr(answers[-1].to_dict())
            is_now = CONCURRENT_TRANSACTIONS not in heard and "'Prepare" not in heard
            if not is_now:
                self.script.answers.pop()
            return is_now

        eventually(is_settled)
        return answers[-1]

    def _fields(self, who: Identity) -> Fields:
        return {
            "transactional_id": self.id,
            "producer_id": who.producer_id,
            "producer_epoch": who.producer_epoch,
        }


def at(who: Identity, lead: int) -> Identity:
    return Identity(who.transactional_id, who.producer_id, who.producer_epoch + lead)


def verifications(script: Script, orders: Topic) -> None:
    """Does the transaction hold the partition? Asked by stale epochs, and by ones to come."""
    for version in (4, 5):
        producer = _Producer(script, orders, version)
        producer.init()
        now = producer.init()
        for commit in (True, False):
            for lead in (-1, 0, 1):
                producer.add(at(now, lead), version, verify_only=True)
            producer.add(now)
            for lead in (-1, 0, 1):
                producer.add(at(now, lead), version, verify_only=True)
            producer.end(now, 3, commit=commit)


def batches(script: Script, orders: Topic) -> None:
    """Duplicates and batches that are refused, of the id's producer and of older ones."""
    for version in PRODUCE_VERSIONS:
        producer = _Producer(script, orders, version)
        zombie = producer.init()
        now = producer.init()
        for sequence, who in ((0, now), (1, now), (0, now), (1, now), (5, now), (1, zombie)):
            _produce(script, version, orders, _batch(who, sequence))
        # Too large, empty, damaged.
        damaged = _batch(now, 2)[:-1] + b"x"
        for flawed in (batch([b"v" * 1_100_000]), b"", damaged):
            _produce(script, version, orders, flawed)
        producer.add(now)
        held = _batch(now, 2, is_transactional=True)
        for _ in range(2):
            _produce(script, version, orders, held, producer.id)
        for sequence, who in ((9, now), (2, zombie), (2, at(now, 1))):
            records = _batch(who, sequence, is_transactional=True)
            _produce(script, version, orders, records, producer.id)
        # Outside the transaction that its producer has open here. In version 12 Kafka remembers
        # the sequence of what it refused above, and asks for that one first.
        if version < ADDS_SINCE:
            _produce(script, version, orders, _batch(now, 3))
        producer.end(now, 3, commit=True)


def _batch(who: Identity, sequence: int, *, is_transactional: bool = False) -> bytes:
    named = Identity(
        who.transactional_id if is_transactional else None, who.producer_id, who.producer_epoch
    )
    return batch([b"v"], named, sequence, timestamp_ms=CREATED_MS)


def _produce(
    script: Script, version: int, orders: Topic, records: bytes, named: str | None = None
) -> Any:
    part = orders.part(partition_data=[{"index": 1, "records": records}])
    return script.ask(
        ProduceRequest,
        version,
        transactional_id=named,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[part],
    )


def beginnings(script: Script, orders: Topic) -> None:
    """After InitProducerId an EndTxn finds no outcome to repeat."""
    for version in (3, 5):
        for names_itself in (False, True):
            for commit in (None, True, False):
                _begin(script, orders, version, names_itself, commit)


def _begin(
    script: Script, orders: Topic, version: int, names_itself: bool, commit: bool | None
) -> None:
    producer = _Producer(script, orders, f"{version}-{names_itself}-{commit}")
    first = producer.init()
    producer.add(first)
    # None: the transaction is open when the next producer comes.
    if commit is not None:
        producer.end(first, 5, commit=commit)
    now = producer.init(first if names_itself else None)
    producer.describe()
    if commit is not None:
        producer.end(first, 5, commit=commit)
    for ends_by in (True, False):
        producer.end(now, version, commit=ends_by)
    producer.describe()
    producer.init(first if names_itself else None)


SCRIPTS = [verifications, batches, beginnings]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_producers_are_answered_alike(
    both_brokers: tuple[Broker, Broker], name: MakeName, script: Callable[[Script, Topic], None]
) -> None:
    assert differences(both_brokers, name("orders"), script) == []
