"""What a broker knew, it knows after a stop and after `kill -9`: records, duplicates, outcomes,
offsets.

One broker per kind and way of ending is prepared with everything, ended and started again; each
test then looks at one promise.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse

from compat_tests.admin import create_topic
from compat_tests.brokers import Broker, make_broker
from compat_tests.clients import CONFLUENT, KAFKA_PYTHON
from compat_tests.offsets import committed_offset, staged
from compat_tests.raw import UNSTABLE_OFFSET_COMMIT, Connection, Identity, batch
from compat_tests.waiting import eventually

PAIRS = [(b"k%d" % n, b"v%d" % n) for n in range(50)]


@dataclass
class Aftermath:
    """A broker that was ended and started again, and what was told to it before."""

    broker: Broker
    idempotent: Identity
    committed: Identity
    aborted: Identity
    still_open: Identity
    renewed: tuple[Identity, Identity]
    end_staged: Callable[[bool], None]


def _prepare(broker: Broker) -> Aftermath:
    for topic in ("plain", "duplicates", "outcomes", "left-open", "source"):
        create_topic(broker.bootstrap, topic)
    CONFLUENT.produce(broker.bootstrap, "plain", PAIRS, mode="idempotent", codec="zstd")
    for group, commit in (("committed-group", True), ("aborted-group", False)):
        staged(broker.bootstrap, "source", group, f"{group}-txn")(commit)
        # Kafka may answer before the offsets are there.
        assert committed_offset(broker.bootstrap, group, "source") == (7 if commit else -1001)
    end_staged = staged(broker.bootstrap, "source", "open-group", "open-group-txn")
    staged(broker.bootstrap, "source", "orphaned-group", "orphaned-group-txn")
    with Connection(broker.bootstrap) as connection:
        idempotent = connection.producer(None)
        for n in range(6):
            connection.produce("duplicates", batch([b"v"], idempotent, n))
        committed = _ended(connection, "committed", commit=True)
        aborted = _ended(connection, "aborted", commit=False)
        still_open = connection.producer("still-open")
        connection.write_in_transaction(still_open, "left-open", b"open")
        before = connection.producer("renewed")
        assert before.transactional_id is not None
        _, after = connection.init_producer_id(before.transactional_id, known=before)
        while (seen := connection.fetch("outcomes", 0)).last_stable_offset < seen.high_watermark:
            pass
    renewed = (before, after)
    return Aftermath(broker, idempotent, committed, aborted, still_open, renewed, end_staged)


def _ended(connection: Connection, transactional_id: str, *, commit: bool) -> Identity:
    identity = connection.producer(transactional_id)
    connection.write_in_transaction(identity, "outcomes", transactional_id.encode())
    assert connection.end(identity, commit=commit).error_code == 0
    return identity


@pytest.fixture(scope="session")
def aftermaths(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str, str], Aftermath]]:
    """Return what is left of (kind, way of ending), prepared at its first use."""
    prepared: dict[tuple[str, str], Aftermath] = {}
    with ExitStack() as stack:

        def get(kind: str, ending: str) -> Aftermath:
            if (kind, ending) not in prepared:
                broker = make_broker(kind, tmp_path_factory.mktemp(f"restart-{kind}"))
                stack.callback(broker.kill)
                broker.start()
                prepared[kind, ending] = _prepare(broker)
                broker.restart(clean=ending == "stop")
            return prepared[kind, ending]

        yield get


@pytest.fixture(params=["stop", "kill"])
def aftermath(
    request: pytest.FixtureRequest,
    broker_kind: str,
    aftermaths: Callable[[str, str], Aftermath],
) -> Aftermath:
    return aftermaths(broker_kind, request.param)


def test_every_acknowledged_record_is_there(aftermath: Aftermath) -> None:
    found = KAFKA_PYTHON.consume(aftermath.broker.bootstrap, "plain")
    assert [(key, value) for _, key, value in found] == PAIRS
    assert [offset for offset, _, _ in found] == list(range(50))


def test_an_offset_is_told_with_the_leader_epoch_of_its_record(aftermath: Aftermath) -> None:
    """What is stored was written before the start, what comes is written after it."""
    with Connection(aftermath.broker.bootstrap) as connection:

        def epoch_at(timestamp_ms: int) -> int:
            topics = [("plain", [(0, -1, timestamp_ms)])]
            request = ListOffsetsRequest[7](replica_id=-1, isolation_level=0, topics=topics)
            answer = connection.call(request, ListOffsetsResponse)
            epoch: int = answer.topics[0].partitions[0].leader_epoch
            return epoch

        # Kafka's port answers before it leads the partition.
        eventually(lambda: epoch_at(-2) >= 0)
        assert epoch_at(-2) == epoch_at(0) == epoch_at(-3) < epoch_at(-1)


def test_the_last_duplicate_is_answered_with_its_offset(aftermath: Aftermath) -> None:
    with Connection(aftermath.broker.bootstrap) as connection:
        answer = connection.produce("duplicates", batch([b"v"], aftermath.idempotent, 5))
        assert (answer.error_code, answer.base_offset) == (0, 5)


@pytest.mark.magnetar_only("Kafka remembers one batch across a restart")
def test_any_of_the_last_five_duplicates_is_answered_with_its_offset(aftermath: Aftermath) -> None:
    with Connection(aftermath.broker.bootstrap) as connection:
        for n in range(1, 6):
            answer = connection.produce("duplicates", batch([b"v"], aftermath.idempotent, n))
            assert (answer.error_code, answer.base_offset) == (0, n)


def test_outcomes_are_remembered(aftermath: Aftermath) -> None:
    """The retry of an EndTxn whose answer was lost succeeds; the other outcome is refused."""
    with Connection(aftermath.broker.bootstrap) as connection:
        assert connection.end(aftermath.committed, commit=True).error_code == 0
        assert connection.end(aftermath.aborted, commit=False).error_code == 0
        assert connection.end(aftermath.committed, commit=False).error_code == 48
        assert connection.end(aftermath.aborted, commit=True).error_code == 48
    found = CONFLUENT.consume(aftermath.broker.bootstrap, "outcomes")
    assert [value for _, _, value in found] == [b"committed"]


def test_a_producer_that_was_renewed_may_ask_again(aftermath: Aftermath) -> None:
    """The retry of an InitProducerId that named its identity, and whose answer was lost."""
    before, after = aftermath.renewed
    assert before.transactional_id is not None and after.producer_epoch == before.producer_epoch + 1
    with Connection(aftermath.broker.bootstrap) as connection:
        answer = connection.init_producer_id(before.transactional_id, known=before)
    if aftermath.broker.kind == "magnetar":
        assert answer == (0, after)
    else:
        assert answer[0] == 90, "PRODUCER_FENCED: Kafka forgets the epoch before"


def test_transactional_offsets_are_as_they_were(aftermath: Aftermath) -> None:
    bootstrap = aftermath.broker.bootstrap
    assert committed_offset(bootstrap, "committed-group", "source") == 7
    assert committed_offset(bootstrap, "aborted-group", "source") == -1001


def test_a_pending_offset_is_still_pending_and_can_be_committed(aftermath: Aftermath) -> None:
    bootstrap = aftermath.broker.bootstrap
    with Connection(bootstrap) as connection:
        code, _ = connection.committed_offset("open-group", "source", require_stable=True)
    assert code == UNSTABLE_OFFSET_COMMIT
    aftermath.end_staged(True)
    assert committed_offset(bootstrap, "open-group", "source") == 7


def test_a_pending_offset_goes_with_its_producer_when_another_takes_over(
    aftermath: Aftermath,
) -> None:
    """Unstable until then: no member begins before a transaction that may still be committed."""
    bootstrap = aftermath.broker.bootstrap
    with Connection(bootstrap) as connection:
        code, _ = connection.committed_offset("orphaned-group", "source", require_stable=True)
        assert code == UNSTABLE_OFFSET_COMMIT
        connection.producer("orphaned-group-txn")
    assert committed_offset(bootstrap, "orphaned-group", "source") == -1001


def test_an_open_transaction_is_still_open_and_goes_on(aftermath: Aftermath) -> None:
    with Connection(aftermath.broker.bootstrap) as connection:
        seen = connection.fetch("left-open", 0, isolation=1)
        assert (seen.last_stable_offset, seen.high_watermark) == (0, 1)
        more = batch([b"more"], aftermath.still_open, 1)
        answer = connection.produce("left-open", more, transactional_id="still-open")
        assert (answer.error_code, answer.base_offset) == (0, 1)
        assert connection.end(aftermath.still_open, commit=True).error_code == 0
    found: list[bytes | None] = []
    while len(found) < 2:
        found = [
            value for _, _, value in CONFLUENT.consume(aftermath.broker.bootstrap, "left-open")
        ]
    assert found == [b"open", b"more"]


def test_producer_ids_go_on_above_the_old_ones(aftermath: Aftermath) -> None:
    old = {aftermath.idempotent, aftermath.committed, aftermath.aborted, aftermath.still_open}
    with Connection(aftermath.broker.bootstrap) as connection:
        fresh = connection.producer(f"fresh-{uuid.uuid4().hex}")
    assert fresh.producer_id > max(identity.producer_id for identity in old)
