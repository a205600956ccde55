"""`magnetar topics`, `configs`, `produce` and `consume`: on both brokers, with one outcome."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from compat_tests import confluent_client, raw
from compat_tests.brokers import MAGNETAR, Broker
from compat_tests.client import TIMEOUT_S
from compat_tests.clients import CONFLUENT, KAFKA_PYTHON
from compat_tests.command_line import environment, output, printed, refusal, run
from compat_tests.conftest import MakeName, MakeTopic
from compat_tests.offsets import committed_offset
from compat_tests.transaction_ends import await_end
from compat_tests.waiting import eventually


def test_a_topic_is_created_listed_changed_and_deleted(broker: Broker, name: MakeName) -> None:
    topic = name("life")
    created = output(broker, "topics", "create", topic, "-p", "2", "-c", "retention.ms=60000")
    assert created.decode() == f"{topic}: created\n"
    assert f"topic {topic}: TOPIC_ALREADY_EXISTS" in refusal(broker, "topics", "create", topic)
    again = output(broker, "topics", "create", topic, "--if-not-exists")
    assert again.decode() == f"{topic}: exists already\n"
    eventually(lambda: topic in topics_of(broker))
    listed = topics_of(broker)
    assert listed[topic]["partitions"] == 2
    changes = ("-p", "3", "--unset", "retention.ms", "-c", "segment.bytes=1048576")
    run(broker, "topics", "alter", topic, *changes)
    eventually(lambda: topics_of(broker)[topic]["partitions"] == 3)
    (described,) = printed(broker, "topics", "describe", topic)
    assert described["topic_id"] == listed[topic]["topic_id"]
    assert described["configs"] == {"segment.bytes": "1048576"}
    assert [each["partition"] for each in described["partitions"]] == [0, 1, 2]
    assert "INVALID_PARTITIONS" in refusal(broker, "topics", "alter", topic, "-p", "1")
    run(broker, "topics", "delete", topic)
    eventually(lambda: topic not in topics_of(broker))
    assert "UNKNOWN_TOPIC_OR_PARTITION" in refusal(broker, "topics", "delete", topic)
    assert output(broker, "topics", "delete", topic, "--if-exists").endswith(b": not there\n")


def topics_of(broker: Broker) -> dict[str, Any]:
    """Return what is listed. Kafka answers before a change has come to where it is asked."""
    return {each["topic"]: each for each in printed(broker, "topics", "list")}


def test_a_dry_run_creates_nothing_and_a_bad_name_or_setting_is_refused(
    broker: Broker, name: MakeName
) -> None:
    topic = name("dry")
    run(broker, "topics", "create", topic, "--dry-run")
    assert "UNKNOWN_TOPIC" in refusal(broker, "topics", "describe", topic)
    assert "INVALID_TOPIC_EXCEPTION" in refusal(broker, "topics", "create", "a/b")
    said = refusal(broker, "topics", "create", topic, "-c", "no.such.setting=1")
    assert "INVALID_CONFIG" in said and "no.such.setting" in said


def test_a_description_shows_where_a_transaction_holds_readers_back(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    orders = topic("orders")
    output(broker, "produce", orders, stdin=b"plain\n")
    with raw.Connection(broker.bootstrap) as connection:
        identity = connection.producer(name("open"))
        connection.write_in_transaction(identity, orders, b"a", b"b")
        (described,) = printed(broker, "topics", "describe", orders)[0]["partitions"]
        offsets = [
            described[each] for each in ("log_start_offset", "last_stable_offset", "high_watermark")
        ]
        assert offsets == [0, 1, 3]
        assert described["size_bytes"] > 100
        assert connection.end(identity, commit=False).error_code == 0


def test_settings_are_set_shown_with_their_source_and_unset(
    broker: Broker, topic: MakeTopic
) -> None:
    of = ("--topic", topic("configured"))
    run(broker, "configs", "set", *of, "retention.ms=60000", "cleanup.policy=compact,delete")
    # Kafka applies after it answers.
    eventually(lambda: output(broker, "configs", "get", *of, "retention.ms") == b"60000\n")
    sources = {each["name"]: each["source"] for each in printed(broker, "configs", "list", *of)}
    assert sources["retention.ms"] == "topic"
    assert sources["index.interval.bytes"] == "default"
    run(broker, "configs", "unset", *of, "retention.ms")
    eventually(lambda: output(broker, "configs", "get", *of, "retention.ms") == b"604800000\n")
    assert "retention.ms" in refusal(broker, "configs", "set", *of, "retention.ms=soon")
    # Brokers accept the second and the third, and do nothing.
    for command in (
        ("configs", "get", *of, "nonsense"),
        ("configs", "unset", *of, "nonsense"),
        ("topics", "alter", of[1], "--unset", "nonsense"),
    ):
        assert "has no setting nonsense" in refusal(broker, *command)
    named = {(each["type"], each["name"]) for each in printed(broker, "configs", "list")}
    assert {("topic", of[1]), ("broker", "1")} <= named
    shown = {each["name"] for each in printed(broker, "configs", "list", "--broker", "1")}
    assert {"num.partitions", "log.retention.hours"} <= shown


LINES = b"".join(b"key %d:value %d\n" % (n, n) for n in range(40))


def test_lines_become_records_where_java_would_put_them(broker: Broker, topic: MakeTopic) -> None:
    keyed, reference = topic("keyed", partitions=5), topic("reference", partitions=5)
    report = printed(broker, "produce", keyed, "-K", ":", stdin=LINES)
    assert sum(each["records"] for each in report) == 40
    assert len(report) > 1
    producer = confluent_client.producer(broker.bootstrap, partitioner="murmur2")
    for number in range(40):
        producer.produce(reference, b"value %d" % number, b"key %d" % number)
    producer.flush(TIMEOUT_S)
    wanted = ("-e", "-f", "%p %k %s\\n")
    ours, theirs = (output(broker, "consume", each, *wanted) for each in (keyed, reference))
    assert sorted(ours.splitlines()) == sorted(theirs.splitlines())


def test_every_codec_is_read_by_others_and_others_by_us(broker: Broker, topic: MakeTopic) -> None:
    compressed = topic("compressed")
    codecs = ("gzip", "snappy", "lz4", "zstd")
    for codec in codecs:
        run(broker, "produce", compressed, "-z", codec, stdin=f"{codec}\n".encode() * 1000)
    KAFKA_PYTHON.produce(broker.bootstrap, compressed, [(b"k", b"theirs")] * 1000, codec="gzip")
    values = [each.value for each in CONFLUENT.consume(broker.bootstrap, compressed)]
    assert values == [word.encode() for word in (*codecs, "theirs") for _ in range(1000)]
    assert output(broker, "consume", compressed, "--exit").splitlines() == values


def test_a_misspelt_topic_is_not_created(broker: Broker, name: MakeName) -> None:
    typo = name("typo")
    assert "--create makes it" in refusal(broker, "produce", typo, stdin=b"a\n")
    assert typo not in {each["topic"] for each in printed(broker, "topics", "list")}
    run(broker, "produce", typo, "--create", stdin=b"a\n")
    assert output(broker, "consume", typo, "-e") == b"a\n"


def test_where_to_begin_and_when_to_stop(broker: Broker, topic: MakeTopic) -> None:
    numbers = topic("numbers")
    run(broker, "produce", numbers, stdin=b"".join(b"%d\n" % number for number in range(10)))

    def read(*options: str) -> list[int]:
        return [int(line) for line in output(broker, "consume", numbers, *options).split()]

    assert read("-e") == read("-e", "-o", "beginning") == list(range(10))
    assert read("-e", "-o", "7") == [7, 8, 9]
    assert read("-e", "-o", "-4") == [6, 7, 8, 9]
    assert read("-e", "-o", "-40", "-c", "3") == [0, 1, 2]
    assert read("-e", "-o", "end") == []
    first, *_ = json.loads(b"[" + output(broker, "consume", numbers, "-c", "1", "--json") + b"]")
    assert read("-e", "-o", f"s@{first['timestamp']}") == list(range(10))
    assert read("-e", "-o", f"s@{first['timestamp'] + 3_600_000}") == []
    assert read("-o", "-1h", "--until", "end") == list(range(10))
    assert read("-o", "2", "--until", "-3") == [2, 3, 4, 5, 6]
    pattern = f"^{numbers}$"
    assert output(broker, "consume", pattern, "-u", "1") == b"0\n"
    said = refusal(broker, "consume", numbers, "-e", "-o", "99")
    assert "has no offset 99: it begins at 0 and ends before 10" in said


def test_formats_headers_nulls_and_bytes(broker: Broker, topic: MakeTopic, tmp_path: Path) -> None:
    shaped = topic("shaped")
    run(broker, "produce", shaped, "-K", "=", "-Z", "-H", "from=cli", stdin=b"k=v\nk=\n=w\n")
    shown = output(
        broker, "consume", shaped, "-e", "-Z", "-f", "%t-%p@%o %k/%K %s/%S %h 100%%\\n"
    ).decode()
    assert shown.splitlines() == [
        f"{shaped}-0@0 k/1 v/1 from=cli 100%",
        f"{shaped}-0@1 k/1 NULL/-1 from=cli 100%",
        f"{shaped}-0@2 NULL/-1 w/1 from=cli 100%",
    ]
    path = tmp_path / "bytes"
    path.write_bytes(b"\xff\x00\n")
    run(broker, "produce", shaped, str(path), "-k", "key of a file")
    lines = output(broker, "consume", shaped, "-e", "--json")
    copy = topic("copy")
    run(broker, "produce", copy, "--from-json", stdin=lines)
    before, after = (
        [(each.key, each.value) for each in CONFLUENT.consume(broker.bootstrap, copied)]
        for copied in (shaped, copy)
    )
    assert before == after
    assert after[-1] == (b"key of a file", b"\xff\x00\n")
    assert json.loads(lines.splitlines()[0])["headers"] == [["from", "cli"]]
    binary = {"value": "v", "headers": [["bytes", {"base64": "/wA="}]]}
    run(broker, "produce", copy, "--from-json", stdin=json.dumps(binary).encode())
    last = output(broker, "consume", copy, "-e", "-o", "-1", "--json")
    assert json.loads(last)["headers"] == binary["headers"]


def test_input_in_a_transaction_is_seen_as_one_or_not_at_all(
    broker: Broker, topic: MakeTopic, name: MakeName, tmp_path: Path
) -> None:
    orders, transactional_id = topic("orders", partitions=2), name("txn")
    option = ("--transactional-id", transactional_id)
    run(broker, "produce", orders, *option, "-K", ":", stdin=LINES)
    await_end(broker.bootstrap, transactional_id)
    assert len(output(broker, "consume", orders, "-e").splitlines()) == 40
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(b"small")
    large.write_bytes(b"x" * 3_000_000)
    said = refusal(broker, "produce", orders, *option, str(small), str(large))
    assert "MESSAGE_TOO_LARGE" in said
    assert "The transaction is aborted: read_committed readers see none of it." in said
    await_end(broker.bootstrap, transactional_id)
    assert b"small" not in output(broker, "consume", orders, "-e")
    everything = output(broker, "consume", orders, "-e", "--isolation", "read_uncommitted")
    assert b"small" in everything
    run(broker, "produce", orders, *option, stdin=b"")  # An empty one is no transaction.
    run(broker, "produce", orders, *option, stdin=b"last\n")
    await_end(broker.bootstrap, transactional_id)
    assert b"last" in output(broker, "consume", orders, "-e")


def test_a_group_goes_on_where_it_was(broker: Broker, topic: MakeTopic, name: MakeName) -> None:
    orders, group = topic("orders"), name("group")
    run(broker, "produce", orders, stdin=b"1\n2\n3\n4\n")
    member = ("consume", orders, "-g", group)
    assert output(broker, *member, "-c", "2") == b"1\n2\n"
    assert committed_offset(broker.bootstrap, group, orders) == 2
    assert output(broker, *member, "-e") == b"3\n4\n"
    assert output(broker, *member, "-e") == b""
    fresh = ("consume", orders, "-g", name("fresh"), "-o", "end", "-e")
    assert output(broker, *fresh) == b""


def test_members_share_partitions_and_leave_when_interrupted(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    orders, group = topic("orders", partitions=2), name("group")
    command = [str(MAGNETAR), "consume", orders, "-g", group, "-f", "%p %s\\n"]
    members = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(broker),
            preexec_fn=_heed_interruptions,
        )
        for _ in range(2)
    ]
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while len(members_of(broker, group)) < 2 or not all(members_of(broker, group)):
            assert time.monotonic() < deadline, "two members never shared the group"
            time.sleep(0.1)
        for partition in range(2):
            run(broker, "produce", orders, "-p", str(partition), stdin=b"a\nb\n")
        seen = []
        for member in members:
            assert member.stdout is not None
            seen += [member.stdout.readline(), member.stdout.readline()]
        assert sorted(seen) == [b"0 a\n", b"0 b\n", b"1 a\n", b"1 b\n"]
        assert len({line[:1] for line in seen[:2]}) == 1, "one partition each"
        for member in members:
            member.send_signal(signal.SIGINT)
        assert [member.wait(TIMEOUT_S) for member in members] == [130, 130]
        assert members_of(broker, group) == []
        for partition in range(2):
            assert offset_of(broker, group, orders, partition) == 2
    finally:
        for member in members:
            member.kill()
            member.communicate()


def _heed_interruptions() -> None:
    """For a child: tests in the background ignore SIGINT, and their children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def members_of(broker: Broker, group: str) -> list[int]:
    """Return how many partitions each member of a group has."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    described = admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
    return [len(member.assignment.topic_partitions) for member in described.members]


def offset_of(broker: Broker, group: str, topic: str, partition: int) -> int:
    reader = confluent_client.consumer(broker.bootstrap, group)
    try:
        (found,) = reader.committed([TopicPartition(topic, partition)], TIMEOUT_S)
        offset: int = found.offset
        return offset
    finally:
        reader.close()
