"""The files are Kafka's: Kafka's own tools read magnetar's, and magnetar reads a directory of
Kafka's.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests import tool_box
from compat_tests.admin import create_topic
from compat_tests.brokers import Broker, make_broker, running
from compat_tests.client import CODECS, Client, Pair
from compat_tests.clients import CONFLUENT, KAFKA_PYTHON, PYTHON_CLIENTS, client_name
from compat_tests.conftest import StartBroker
from compat_tests.offsets import staged
from compat_tests.raw import Connection
from compat_tests.waiting import eventually

pytestmark = pytest.mark.local_files("Kafka reads files")
PAIRS: list[Pair] = [(b"k%d" % n, b"v%d" % n * 20) for n in range(200)]
#: Their names in Kafka's TransactionState, as its tool prints them.
COMPLETE_COMMIT, COMPLETE_ABORT = '"CompleteCommit"', '"CompleteAbort"'
#: What DumpLogSegments prints when a file is not as it must be.
COMPLAINT = re.compile(
    r"(?i)mismatch|corrupt|non-consecutive|isvalid: false|invalid|exception|could not|error"
)
#: Small segments, so that there are several, with an index entry for almost every batch.
SMALL = {"segment.bytes": "1048576", "index.interval.bytes": "256"}


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A magnetar that wrote every kind of batch and was stopped."""
    with running(make_broker("magnetar", tmp_path_factory.mktemp("files"))) as broker:
        _write_everything(broker.bootstrap)
        broker.stop()
        yield broker


def _write_everything(bootstrap: str) -> None:
    create_topic(bootstrap, "orders", 1, SMALL)
    for codec in CODECS:
        CONFLUENT.produce(bootstrap, "orders", PAIRS, mode="idempotent", codec=codec)
    KAFKA_PYTHON.produce(bootstrap, "orders", PAIRS)
    CONFLUENT.produce(bootstrap, "orders", [(b"big", b"x" * 400_000)] * 8)
    for number in range(6):
        CONFLUENT.produce(
            bootstrap,
            "orders",
            PAIRS,
            mode="transactional",
            transactional_id="files",
            commit=number % 2 == 0,
        )
    for commit in (True, False):
        staged(bootstrap, "orders", f"group-{commit}", "files-offsets")(commit)


def dump(path: Path, *options: str) -> str:
    """Return what Kafka's DumpLogSegments prints of one file. Any complaint fails the test."""
    printed = tool_box.run("DumpLogSegments", "--files", str(path), *options)
    complaints = [line for line in printed.splitlines() if COMPLAINT.search(line)]
    assert not complaints, f"{path.name}: {complaints[:5]}"
    return printed


def files(broker: Broker, topic: str, suffix: str) -> list[Path]:
    found = sorted(broker.partition_directory(topic, 0).glob(f"*{suffix}"))
    assert found, f"no {suffix} for {topic}"
    return found


def test_kafka_reads_the_segments(written: Broker) -> None:
    segments = files(written, "orders", ".log")
    assert len(segments) > 1, "the topic should have rolled"
    printed = "".join(dump(path, "--deep-iteration", "--print-data-log") for path in segments)
    assert len(re.findall(r"payload: v\d", printed)) == len(PAIRS) * (len(CODECS) + 1 + 6)
    assert len(re.findall(r"endTxnMarker: COMMIT", printed)) == 3
    assert len(re.findall(r"endTxnMarker: ABORT", printed)) == 3


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_kafka_finds_the_indexes_sane(written: Broker, suffix: str) -> None:
    filled = [path for path in files(written, "orders", suffix) if path.stat().st_size]
    assert filled, f"every {suffix} is empty"
    for path in filled:
        assert "passed sanity check" in dump(path, "--index-sanity-check")
        dump(path, "--verify-index-only")


def test_kafka_reads_the_aborted_index(written: Broker) -> None:
    printed = "".join(dump(path) for path in files(written, "orders", ".txnindex"))
    assert len(re.findall(r"producerId: \d+", printed)) == 3


def test_kafka_reads_the_producer_snapshots(written: Broker) -> None:
    printed = "".join(dump(path) for path in files(written, "orders", ".snapshot"))
    assert "producerId: " in printed


def test_kafka_reads_the_transaction_log(written: Broker) -> None:
    printed = _dump_internal(written, "__transaction_state", "--transaction-log-decoder")
    assert '"transactionalId":"files"' in printed
    for status in (COMPLETE_COMMIT, COMPLETE_ABORT):
        assert re.search(f'"transactionStatus":({status}),', printed)


def test_kafka_reads_the_offsets_log(written: Broker) -> None:
    printed = _dump_internal(written, "__consumer_offsets", "--offsets-decoder")
    assert "group-True" in printed
    assert "group-False" in printed


def _dump_internal(broker: Broker, topic: str, decoder: str) -> str:
    segments = sorted(broker.log_directory.rglob(f"{topic}-*/*.log"))
    assert segments, f"no segment of {topic}"
    return "".join(dump(path, "--deep-iteration", decoder) for path in segments)


@pytest.fixture(scope="session")
def kafkas_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`foreign-0` as a real Kafka left it: plain, idempotent, committed and aborted batches."""
    with running(make_broker("kafka", tmp_path_factory.mktemp("foreign"))) as kafka:
        create_topic(kafka.bootstrap, "foreign", 1, SMALL)
        CONFLUENT.produce(kafka.bootstrap, "foreign", [(b"k", b"plain")])
        KAFKA_PYTHON.produce(
            kafka.bootstrap, "foreign", [(b"k", b"idempotent")], mode="idempotent", codec="lz4"
        )
        for commit in (True, False, True):
            value = b"committed" if commit else b"aborted"
            CONFLUENT.produce(
                kafka.bootstrap,
                "foreign",
                [(b"k", value)],
                mode="transactional",
                transactional_id="foreign",
                commit=commit,
            )
        KAFKA_PYTHON.consume(kafka.bootstrap, "foreign")
        kafka.stop()
        yield kafka.partition_directory("foreign", 0)


@pytest.fixture(scope="session")
def adopted(kafkas_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A magnetar in whose data directory Kafka's partition was put before it started."""
    # One node takes over what its catalog does not know; several would refuse to start.
    broker = make_broker("magnetar", tmp_path_factory.mktemp("adopted"), workers=1)
    shutil.copytree(kafkas_directory, broker.partition_directory("foreign", 0))
    with running(broker):
        yield broker


@pytest.mark.parametrize("client", PYTHON_CLIENTS, ids=client_name)
def test_a_directory_of_kafkas_is_read_under_both_isolation_levels(
    adopted: Broker, client: Client
) -> None:
    values = [b"plain", b"idempotent", b"committed", b"aborted", b"committed"]
    seen = client.consume(adopted.bootstrap, "foreign", "read_uncommitted")
    assert [value for _, _, value in seen][: len(values)] == values
    committed = [value for _, _, value in client.consume(adopted.bootstrap, "foreign")]
    assert committed[:4] == [value for value in values if value != b"aborted"]


def test_fresh_producer_ids_stay_clear_of_those_in_an_adopted_directory(
    adopted: Broker, kafkas_directory: Path
) -> None:
    printed = "".join(dump(path) for path in sorted(kafkas_directory.glob("*.log")))
    used = {int(found) for found in re.findall(r"producerId: (-?\d+)", printed)}
    with Connection(adopted.bootstrap) as connection:
        fresh = connection.producer("fresh")
        assert fresh.producer_id > max(used)
        connection.write_in_transaction(fresh, "foreign", b"fresh")
        assert connection.end(fresh, commit=True).error_code == 0
    seen = [value for _, _, value in CONFLUENT.consume(adopted.bootstrap, "foreign")]
    assert seen[-1] == b"fresh"


def test_kafka_opens_a_directory_of_magnetars(written: Broker, start_broker: StartBroker) -> None:
    """The other way round: what magnetar wrote, Kafka's recovery takes as its own and serves."""
    kafka = start_broker("kafka")
    create_topic(kafka.bootstrap, "orders", 1, SMALL)
    kafka.stop()
    _give(kafka, "orders", written)
    kafka.start()
    found = CONFLUENT.consume(kafka.bootstrap, "orders")
    assert len(found) == len(PAIRS) * (len(CODECS) + 1 + 3) + 8


def test_kafka_opens_a_new_partition_of_a_killed_magnetar(
    tmp_path: Path, start_broker: StartBroker
) -> None:
    """The partition has no leader-epoch-checkpoint yet: Kafka makes it from the batches."""
    with running(make_broker("magnetar", tmp_path / "killed")) as magnetar:
        create_topic(magnetar.bootstrap, "fresh", 1)
        CONFLUENT.produce(magnetar.bootstrap, "fresh", PAIRS)
        magnetar.kill()
    kafka = start_broker("kafka")
    create_topic(kafka.bootstrap, "fresh", 1)
    # Kafka writes it in the background, and answers before.
    eventually((kafka.partition_directory("fresh", 0) / "partition.metadata").exists)
    kafka.kill()
    _give(kafka, "fresh", magnetar)
    kafka.start()
    assert len(CONFLUENT.consume(kafka.bootstrap, "fresh")) == len(PAIRS)
    CONFLUENT.produce(kafka.bootstrap, "fresh", PAIRS)
    assert len(CONFLUENT.consume(kafka.bootstrap, "fresh")) == 2 * len(PAIRS)
    checkpoint = kafka.partition_directory("fresh", 0) / "leader-epoch-checkpoint"
    first, *_, last = checkpoint.read_text().splitlines()[2:]
    assert first.split()[1] == "0" and last.split()[1] == str(len(PAIRS))


def _give(kafka: Broker, topic: str, magnetar: Broker) -> None:
    """Put magnetar's files of a partition in the place of Kafka's, which does not run."""
    target = kafka.partition_directory(topic, 0)
    metadata = (target / "partition.metadata").read_text()
    shutil.rmtree(target)
    shutil.copytree(magnetar.partition_directory(topic, 0), target)
    (target / "partition.metadata").write_text(metadata)
