"""Brokers that fail on demand: processes, and what tests learn of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from magnetar.testing import (
    Api,
    Broker,
    BrokerGone,
    BrokerProcess,
    FaultNeverFired,
    NotReady,
    Snapshot,
    SnapshotRefused,
    start_broker,
)


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with start_broker() as broker:
        yield broker


@pytest.fixture
def broker(shared: Broker) -> Iterator[Broker]:
    yield shared
    shared.reset()


def send(broker: Broker, topic: str, *values: bytes, **settings: object) -> None:
    quick = {"retry.backoff.ms": 10, "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50}
    producer = Producer({**broker.confluent_settings(), **quick, "log_level": 0, **settings})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def test_a_fault_says_how_often_it_has_happened_and_waits_for_it(broker: Broker) -> None:
    topic = broker.topic()
    fault = broker.fail(Api.PRODUCE, "NOT_ENOUGH_REPLICAS", topic=topic, times=2)
    assert fault.hits == 0
    with pytest.raises(FaultNeverFired, match=r"topic=\S+: 0 of 1 times within 0\.01 s"):
        fault.wait(timeout_s=0.01)
    send(broker, topic, b"x")
    assert fault.wait(2) == 2
    broker.check_faults()
    broker.assert_once(topic, [b"x"])


def test_a_fault_that_has_not_happened_is_told_at_the_end_of_its_block(broker: Broker) -> None:
    never = pytest.raises(FaultNeverFired, match="lose_answer Fetch: never fired")
    with never, broker.lose_answer(Api.FETCH):
        pass
    broker.check_faults()  # It has been told.
    with pytest.raises(ZeroDivisionError), broker.lose_answer(Api.FETCH):
        raise ZeroDivisionError
    topic = broker.topic()
    too_few = pytest.raises(FaultNeverFired, match="1 of 2 times fired")
    with too_few, broker.fail(Api.PRODUCE, "NOT_ENOUGH_REPLICAS", topic=topic, times=2):
        producer = Producer({**broker.confluent_settings(), "retries": 0, "log_level": 0})
        producer.produce(topic, b"refused")
        producer.flush(20)


def test_a_fault_that_could_not_fire_is_refused(broker: Broker) -> None:
    for times in (0, -3):
        with pytest.raises(ValueError, match=f"times={times}: a fault happens once at least"):
            broker.fail(Api.PRODUCE, "NOT_LEADER_OR_FOLLOWER", times=times)
    with pytest.raises(ValueError, match="seconds=-1: a request cannot wait"):
        broker.delay(Api.PRODUCE, seconds=-1)
    with pytest.raises(ValueError, match="skip=-1: no fewer requests than none"):
        broker.fail(Api.PRODUCE, "NOT_LEADER_OR_FOLLOWER", skip=-1)
    with pytest.raises(ValueError, match="api=0 is no name: give text"):
        broker.fail(0, "NOT_LEADER_OR_FOLLOWER")  # type: ignore[arg-type]  # as meant
    broker.check_faults()


def test_time_passes_forward_and_not_beyond_what_timestamps_hold(broker: Broker) -> None:
    for seconds in (-1, 1e14):
        with pytest.raises(ValueError, match="time passes by 0 to 2\\^53 ms"):
            broker.advance(seconds)
    topic = broker.topic()
    producer = Producer({**broker.confluent_settings(), "log_level": 0})
    producer.produce(topic, b"still served")
    assert producer.flush(20) == 0
    assert broker.values(topic) == [b"still served"]


def test_faults_outlive_the_process(broker: Broker) -> None:
    topic = broker.topic()
    fault = broker.fail(Api.PRODUCE, "NOT_ENOUGH_REPLICAS", topic=topic, times=2)
    producer = Producer({**broker.confluent_settings(), "retries": 0, "log_level": 0})
    producer.produce(topic, b"refused")
    producer.flush(20)
    assert fault.hits == 1
    broker.kill()
    assert fault.hits == 1
    broker.start()
    assert fault.hits == 1
    send(broker, topic, b"x")
    assert fault.hits == 2
    broker.assert_once(topic, [b"x"])


@pytest.mark.parametrize("point", ["produce.appended", "produce.handled", "produce.answered"])
def test_a_broker_dies_where_it_is_told_to(broker: Broker, point: str) -> None:
    topic = broker.topic()
    death = broker.kill_at(point, topic=topic)
    producer = Producer({**broker.confluent_settings(), "enable.idempotence": True, "log_level": 0})
    producer.produce(topic, b"x")
    producer.poll(0)
    assert death.wait() == 1
    assert not broker.is_running
    broker.start()
    assert producer.flush(30) == 0
    broker.assert_once(topic, [b"x"])


def test_requests_that_went_by_before_a_restart_are_not_let_by_again(broker: Broker) -> None:
    topic = broker.topic()
    fault = broker.fail(Api.PRODUCE, "NOT_ENOUGH_REPLICAS", topic=topic, skip=2)
    send(broker, topic, b"1")
    broker.stop()
    broker.start()
    send(broker, topic, b"2")
    assert fault.hits == 0
    broker.kill()
    broker.start()
    send(broker, topic, b"3")
    assert fault.wait() == 1
    fault.remove()
    assert fault.hits == 1


def test_a_broker_that_was_to_die_and_does_not_is_told(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.testing.broker.STOP_TIMEOUT_SECONDS", 0.01)
    broker.kill_at("end_txn.decided")
    with pytest.raises(TimeoutError, match=r"it was to meet: kill_at end_txn\.decided"):
        broker.start()


def test_a_broker_that_does_not_run_or_stands_still_says_so(broker: Broker) -> None:
    with broker.frozen(), pytest.raises(BrokerGone, match="stands still"):
        broker.fail(Api.FETCH, "NOT_CONTROLLER")
    broker.kill()
    with pytest.raises(BrokerGone, match="does not run: start it first"):
        broker.fail(Api.FETCH, "NOT_CONTROLLER")
    with pytest.raises(BrokerGone, match="does not run"):
        start_broker().disk.fill()


def test_a_failed_sync_ends_the_broker_and_nothing_acknowledged_is_lost(broker: Broker) -> None:
    topic = broker.topic()
    send(broker, topic, b"acknowledged")
    broker.disk.fail_sync()
    producer = Producer({**broker.confluent_settings(), "message.timeout.ms": 300, "log_level": 0})
    producer.produce(topic, b"not acknowledged")
    producer.flush(20)
    assert broker.wait() == 1
    assert "a fault of the test" in broker.log
    broker.start()
    assert b"acknowledged" in broker.values(topic)
    send(broker, topic, b"later")


def test_the_librarys_own_client_outlives_its_connections(broker: Broker) -> None:
    topic = broker.topic()
    assert broker.values(topic) == []
    broker.disconnect()
    assert broker.values(topic) == []


def test_a_reset_brings_a_broker_back_whatever_has_become_of_it(broker: Broker) -> None:
    broker.fail(Api.METADATA, "LEADER_NOT_AVAILABLE", times=None)
    broker.disk.fill()
    broker.freeze()
    broker.reset()
    send(broker, broker.topic(), b"x")
    os.kill(broker.pid, signal.SIGKILL)  # as an out-of-memory killer
    broker.reset()
    send(broker, broker.topic(), b"x")


def test_members_are_given_up_by_client_and_groups_are_waited_for(broker: Broker) -> None:
    topic = broker.topic(partitions=2)
    settings = {**broker.confluent_settings(), "group.id": topic, "client.id": "only"}
    consumer = Consumer({**settings, "heartbeat.interval.ms": 100, "session.timeout.ms": 6000})
    try:
        consumer.subscribe([topic])
        consumer.poll(0.1)
        with pytest.raises(TimeoutError, match=r"has [01] members, \w+, and 9 were waited for"):
            broker.wait_for_group(topic, members=9, timeout_s=0.01)
        consumer.poll(5)
        assert broker.wait_for_group(topic, members=1) == ["only"]
        with pytest.raises(ValueError, match="no member of client 'other'"):
            broker.expire(group=topic, client_id="other")
        broker.expire(group=topic, client_id="only")
        assert broker.wait_for_group(topic, members=0) == []
    finally:
        consumer.close()
    with pytest.raises(ValueError, match="expire"):
        broker.expire()


def test_an_interruption_is_for_the_tests_and_not_for_their_broker() -> None:
    script = (
        "import time\n"
        "from magnetar.testing import start_broker\n"
        "with start_broker() as broker:\n"
        "    try:\n"
        "        print('ready', flush=True)\n"
        "        time.sleep(600)\n"
        "    except KeyboardInterrupt:\n"
        "        print(broker.values(broker.topic()))\n"
    )
    # A group of its own, as of a terminal's foreground.
    run = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, process_group=0
    )
    assert run.stdout is not None
    with run, run.stdout as output:
        assert output.readline() == "ready\n"
        os.killpg(run.pid, signal.SIGINT)
        assert output.read() == "[]\n"


def test_what_was_recorded_ends_with_its_process(broker: Broker) -> None:
    topic = broker.topic()
    with pytest.raises(BrokerGone, match="has recorded the requests"), broker.requests() as seen:
        send(broker, topic, b"x")
        assert "Produce" in seen.apis
        broker.kill()
        broker.start()
        send(broker, topic, b"y")
    for end in (broker.freeze, broker.kill, lambda: os.kill(broker.pid, signal.SIGKILL)):
        with pytest.raises(ZeroDivisionError), broker.requests():
            end()
            raise ZeroDivisionError
        broker.reset()


def test_what_a_fault_has_met_is_known_of_a_broker_that_stood_still_to_its_end(
    broker: Broker,
) -> None:
    topic = broker.topic()
    fault = broker.fail(Api.PRODUCE, "NOT_ENOUGH_REPLICAS", topic=topic)
    send(broker, topic, b"x")
    broker.freeze()
    broker.kill()
    broker.start()
    assert fault.hits == 1


@pytest.mark.parametrize("later", ["reset", "thaw", "kill", "block"])
def test_a_fault_that_is_removed_while_the_broker_stands_still_meets_no_later_request(
    broker: Broker, later: str
) -> None:
    topic = broker.topic()
    fault = broker.fail(Api.PRODUCE, "NOT_ENOUGH_REPLICAS", times=None)
    send(broker, topic, b"refused", retries=0)
    if later == "block":
        with broker.frozen():
            fault.remove()
    else:
        broker.freeze()
        fault.remove()
        getattr(broker, later)()
    if later == "kill":
        broker.start()
    send(broker, topic, b"x", retries=0)
    assert (broker.values(topic), fault.hits) == ([b"x"], 1)


def test_a_full_disk_is_full_after_a_restart_too(broker: Broker) -> None:
    topic = broker.topic()
    with broker.disk.full():
        broker.kill()
        broker.start()
        settings = {"message.timeout.ms": 300, "log_level": 0}
        producer = Producer({**broker.confluent_settings(), **settings})
        producer.produce(topic, b"refused")
        producer.flush(20)
    broker.kill()
    broker.start()
    send(broker, topic, b"taken")
    assert broker.values(topic) == [b"taken"]


def test_a_node_of_one_is_ended_by_kill(broker: Broker) -> None:
    with pytest.raises(ValueError, match=r"one node: kill\(\) ends it"):
        broker.kill_node(1)
    assert broker.is_running


def test_a_test_run_that_is_killed_leaves_no_broker_behind(tmp_path: Path) -> None:
    script = (
        "import os, sys, time\n"
        "from magnetar.testing import start_broker\n"
        f"broker = start_broker({str(tmp_path / 'data')!r})\n"
        "broker.start()\n"
        "print(broker.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    run = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    with run.stdout as output:
        pid = int(output.readline())
        run.kill()
        run.wait()
    deadline = time.monotonic() + 60
    while _runs(pid):
        assert time.monotonic() < deadline, "the broker lives on"
        time.sleep(0.02)  # Another process ends when it does.


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_an_unknown_release_is_told_with_those_that_there_are() -> None:
    with pytest.raises(NotReady, match=r"no release '3\.99'\. Choose one of 2\.8"):
        start_broker(as_version="3.99").start()


# --- snapshots


def test_a_snapshot_of_a_running_broker_has_what_was_acknowledged_and_no_more(
    broker: Broker, tmp_path: Path
) -> None:
    topic = broker.topic()
    producer = Producer({**broker.confluent_settings(), "transactional.id": topic, "log_level": 0})
    producer.init_transactions(20)
    send(broker, topic, b"given")
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(20)
    snapshot = broker.snapshot(tmp_path / "seed")
    producer.abort_transaction(20)
    send(broker, topic, b"later")

    broker.restore(snapshot)
    assert broker.values(topic) == [b"given"]
    assert broker.values(topic, committed=False) == [b"given", b"open"]
    send(broker, topic, b"another way")
    # What has been written since has not changed the snapshot.
    broker.restore(tmp_path / "seed")
    assert broker.values(topic, committed=False) == [b"given", b"open"]


def test_segments_that_are_complete_are_linked(tmp_path: Path) -> None:
    with start_broker(tmp_path / "data") as broker:
        topic = broker.topic(configs={"segment.bytes": str(1 << 20)})
        values = [bytes([number]) * 500_000 for number in range(6)]
        send(broker, topic, *values, **{"batch.size": 1, "message.max.bytes": 2_000_000})
        snapshot = broker.snapshot(tmp_path / "seed")
        linked = [path for path in snapshot.path.rglob("*.log") if path.stat().st_nlink > 1]
        assert linked
        send(broker, topic, *values, **{"batch.size": 1, "message.max.bytes": 2_000_000})
        broker.restore(snapshot)
        broker.assert_once(topic, values)


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        (None, "is no snapshot: it has no readable snapshot.json"),
        ("{", "is no snapshot"),
        ("[]", "is no snapshot"),
        ('{"magnetar": "0.0.1", "format": 1}', r"a snapshot of magnetar 0\.0\.1 \(format 1\)"),
        ('{"magnetar": "0.1.0", "format": 99}', r"format 99\), and this is 0\.1\.0 \(format 1\)"),
    ],
)
def test_a_snapshot_of_another_version_is_refused(
    tmp_path: Path, facts: str | None, told: str
) -> None:
    if facts is not None:
        (tmp_path / "snapshot.json").write_text(facts)
    with pytest.raises(SnapshotRefused, match=told):
        Snapshot(tmp_path)
    with pytest.raises(SnapshotRefused, match=told):
        start_broker(snapshot=tmp_path)


def test_a_snapshot_that_was_deleted_takes_no_data_away(broker: Broker) -> None:
    topic = broker.topic()
    send(broker, topic, b"kept")
    snapshot = broker.snapshot()
    snapshot.delete()
    with pytest.raises(SnapshotRefused, match="is no snapshot"):
        broker.restore(snapshot)
    with pytest.raises(SnapshotRefused, match="is no snapshot"):
        start_broker(snapshot=snapshot)
    assert broker.values(topic) == [b"kept"]


# --- what topics hold


def test_records_have_all_that_was_sent(broker: Broker) -> None:
    topic = broker.topic(partitions=2)
    producer = Producer(broker.confluent_settings())
    producer.produce(topic, b"v", key=b"k", partition=1, headers=[("h", b"1")], timestamp=1_000)
    producer.produce(topic, None, key=b"k", partition=0)
    assert producer.flush(20) == 0
    tombstone, record = broker.records(topic)
    assert (tombstone.partition, tombstone.offset, tombstone.value) == (0, 0, None)
    assert record == (1, 0, 1_000, b"k", b"v", (("h", b"1"),))
    with pytest.raises(AssertionError, match=r"missing: b'w'; not expected: None"):
        broker.assert_once(topic, [b"v", b"w"])
    broker.assert_once(topic)


def test_a_production_broker_has_no_door(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as production:
        maps = Path(f"/proc/{production.pid}/cmdline").read_bytes()
        assert b"serve" in maps
        assert b"faults" not in maps
    script = "import sys, magnetar.cli.serve, magnetar.broker; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert "magnetar.faults" not in loaded
