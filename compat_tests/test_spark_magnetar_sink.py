"""The sink `magnetar`: exactly once on magnetar, and an error in words where that cannot be."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

from compat_tests.brokers import Broker
from compat_tests.client import TIMEOUT_S
from compat_tests.command_line import printed
from compat_tests.confluent_client import producer, send
from compat_tests.conftest import MakeName, MakeTopic
from compat_tests.spark import Spark, await_end, positions
from compat_tests.waiting import eventually
from magnetar.spark import register
from magnetar.testing import start_broker

pytestmark = pytest.mark.timeout(300)
EXACTLY_ONCE = pytest.mark.magnetar_only(reason="it has joint transactions")
Write = Callable[..., None]
Stream = Callable[..., None]


@pytest.fixture
def sink(spark: Spark) -> Spark:
    """The session, which knows the sink."""
    register(spark.session)
    return spark


@pytest.fixture
def write(sink: Spark) -> Write:
    """Write a frame; options by name, and as `kafka_x_y` for kafka.x.y."""

    def save(frame: DataFrame, **options: Any) -> None:
        writer = frame.write.format("magnetar").mode("append")
        writer.options(**sink.named(options)).save()

    return save


@pytest.fixture
def stream(sink: Spark, tmp_path: Path) -> Stream:
    """Run a query over what there is now, to its end."""

    def run(frame: DataFrame, checkpoint: str = "checkpoint", **options: Any) -> None:
        writer = frame.writeStream.format("magnetar").options(**sink.named(options))
        writer = writer.option("checkpointLocation", str(tmp_path / checkpoint))
        await_end(writer.trigger(availableNow=True).start())

    return run


class Copied:
    """Numbers that a query copies from a topic of the test's own to another."""

    def __init__(
        self, sink: Spark, broker: Broker, stream: Stream, topic: MakeTopic, query: str
    ) -> None:
        self.source, self.target, self.query = topic("source"), topic("target", 2), query
        self._sink, self._broker, self._stream = sink, broker, stream

    def fill(self, count: int, start: int = 0) -> None:
        fill(self._broker, self.source, count, start)

    def numbers(self, per_batch: int) -> DataFrame:
        """Return what there is to copy, as a stream of so many in each batch."""
        return numbers_of(self._sink, self.source, per_batch)

    def run(self, per_batch: int, checkpoint: str = "checkpoint") -> None:
        """Copy what there is now."""
        options = {"topic": self.target, "queryId": self.query}
        self._stream(self.numbers(per_batch), checkpoint, **options)

    def values(self) -> list[int]:
        """Return what has been copied, sorted."""
        return values(self._sink, self.target)


@pytest.fixture
def copied(sink: Spark, broker: Broker, stream: Stream, topic: MakeTopic, name: MakeName) -> Copied:
    return Copied(sink, broker, stream, topic, name("query"))


def values(spark: Spark, topic: str) -> list[int]:
    """Return the visible values of a topic, sorted."""
    frame = spark.read(subscribe=topic, kafka_isolation_level="read_committed")
    return sorted(int(row.value) for row in frame.select("value").collect())


def counted(spark: Spark, count: int, start: int = 0) -> DataFrame:
    return spark.session.range(start, start + count, numPartitions=2).selectExpr(
        "CAST(id AS string) AS value"
    )


def numbers_of(spark: Spark, topic: str, per_batch: int) -> DataFrame:
    """Return a stream of a topic's values, so many in each batch."""
    return spark.read_stream(
        subscribe=topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=per_batch,
        kafka_isolation_level="read_committed",
    ).select("value")


def fill(broker: Broker, topic: str, count: int, start: int = 0) -> None:
    pairs = [(None, b"%d" % number) for number in range(start, start + count)]
    send(producer(broker.bootstrap), topic, pairs)


@EXACTLY_ONCE
def test_rows_become_records(sink: Spark, topic: MakeTopic, write: Write) -> None:
    # Old records, which retention takes when it looks: every five minutes.
    first, second = topic("rows", 2, retention_ms="-1"), topic("rows", retention_ms="-1")
    schema = "topic string, partition int, key string, value binary, timestamp timestamp, headers "
    schema += "array<struct<key: string, value: binary>>"
    rows = [
        (first, 1, "k", bytearray(b"v"), None, [("h", bytearray(b"1")), ("h", None)]),
        (None, 0, None, None, None, None),
        (second, None, "k", bytearray(b""), None, []),
    ]
    frame = sink.session.createDataFrame(rows, schema).selectExpr(
        *("topic", "partition", "key", "value", "headers"),
        "timestamp_millis(1500000000123) AS timestamp",
    )
    write(frame, topic=first)
    found = sink.read(
        subscribe=f"{first},{second}", includeHeaders="true", kafka_isolation_level="read_committed"
    )
    assert positions(found) == sorted([(first, 0, 0), (first, 1, 0), (second, 0, 0)])
    columns = ("topic", "partition", "CAST(key AS string)", "value", "headers")
    for row in found.selectExpr(*columns, "unix_millis(timestamp) AS ms").collect():
        (wanted,) = (
            each
            for each in rows
            if ((each[0] or first), each[1] or 0) == (row.topic, row.partition)
        )
        assert (row.key, row.value, row.ms) == (wanted[2], wanted[3], 1_500_000_000_123)
        assert [tuple(header) for header in row.headers or []] == (wanted[5] or [])


@EXACTLY_ONCE
def test_a_thread_finds_the_sink_once_the_session_is_its_own(
    sink: Spark, topic: MakeTopic, write: Write
) -> None:
    """Spark looks in the active session of the thread that writes; a new thread has none."""
    target = topic("threads")
    frame = counted(sink, 3)

    def take_the_session_and_write() -> None:
        sink.session.createDataFrame([], "value string")
        write(frame, topic=target)

    with ThreadPoolExecutor(1) as thread:
        with pytest.raises(Py4JJavaError, match="DATA_SOURCE_NOT_FOUND"):
            thread.submit(write, frame, topic=target).result(TIMEOUT_S)
        thread.submit(take_the_session_and_write).result(TIMEOUT_S)
    assert values(sink, target) == [0, 1, 2]


@EXACTLY_ONCE
def test_a_batch_job_writes_anew_each_time_unless_the_batch_has_a_name(
    sink: Spark, topic: MakeTopic, name: MakeName, write: Write
) -> None:
    # The parent of its tasks is found by a pattern, in which these mean themselves.
    target, query = topic("job", partitions=2), name("a (1) [+*.]{2}|\\d ü #&")
    for _ in range(2):
        write(counted(sink, 3), topic=target)
    for _ in range(2):
        write(counted(sink, 3, 10), topic=target, queryId=query, batchId="7")
    write(counted(sink, 0), topic=target, queryId=query, batchId="8")
    write(counted(sink, 1, 20), topic=target, queryId=query, batchId="9")
    assert values(sink, target) == [0, 0, 1, 1, 2, 2, 10, 11, 12, 20]
    with pytest.raises(PySparkException, match=r"batch 8 .* after batch 9"):
        write(counted(sink, 1), topic=target, queryId=query, batchId="8")
    with pytest.raises(PySparkException, match="two queryIds"):
        write(counted(sink, 1), topic=topic("other"), queryId=query, batchId="9")


@EXACTLY_ONCE
def test_a_stream_goes_on_where_it_was(copied: Copied) -> None:
    copied.fill(10)
    for _ in range(2):
        copied.run(4)
    copied.fill(3, start=10)
    copied.run(4)
    assert copied.values() == list(range(13))


@EXACTLY_ONCE
def test_a_batch_that_spark_forgot_to_have_committed_is_written_once(
    copied: Copied, tmp_path: Path
) -> None:
    copied.fill(6)
    copied.run(2)
    forgotten = [tmp_path / "checkpoint" / "commits" / each for each in ("2", ".2.crc")]
    for path in forgotten:
        path.unlink()
    copied.fill(1, start=6)
    copied.run(2)
    assert forgotten[0].exists()
    assert copied.values() == list(range(7))


@EXACTLY_ONCE
def test_a_checkpoint_of_before_the_last_batch_is_refused_if_there_is_more_to_read_now(
    copied: Copied, tmp_path: Path
) -> None:
    """The batch of that number would be skipped as written, and what is new in it lost."""
    copied.fill(4)
    copied.run(4)
    for log in ("offsets", "commits"):
        for each in ("0", ".0.crc"):
            (tmp_path / "checkpoint" / log / each).unlink()
    copied.fill(2, start=4)
    with pytest.raises(PySparkException, match=r"batch 0 .* with 4 rows, now it has 6: .*set back"):
        copied.run(10)
    assert copied.values() == [0, 1, 2, 3]


@EXACTLY_ONCE
def test_a_second_query_under_the_same_id_is_refused_and_both_are_named(copied: Copied) -> None:
    copied.fill(4)
    copied.run(2)
    with pytest.raises(PySparkException) as refused:
        copied.run(2, "fresh")
    said = str(refused.value)
    assert "written up to batch 1; this is Spark query" in said
    assert f"magnetar groups delete 'magnetar.spark.{copied.query}'" in said
    assert copied.values() == [0, 1, 2, 3]


@EXACTLY_ONCE
def test_foreach_batch_writes_each_batch_once(
    sink: Spark, copied: Copied, write: Write, tmp_path: Path
) -> None:
    """The function fails after its write, so Spark repeats the batch."""
    copied.fill(6)
    fails = {1}

    def each(batch: DataFrame, batch_id: int) -> list[int]:
        write(batch, topic=copied.target, queryId=copied.query, batchId=str(batch_id))
        if batch_id in fails:
            fails.discard(batch_id)
            raise ValueError("after the write")
        return []

    def run() -> None:
        sink.micro_batches(copied.numbers(2), tmp_path / "foreach", each)

    with pytest.raises(PySparkException, match="after the write"):
        run()
    run()
    assert copied.values() == list(range(6))

    def unnamed(batch: DataFrame, batch_id: int) -> list[int]:
        write(batch, topic=copied.target)
        return []

    with pytest.raises(PySparkException, match="needs the options queryId and batchId"):
        sink.micro_batches(copied.numbers(2), tmp_path / "unnamed", unnamed)
    assert copied.values() == list(range(6))


@EXACTLY_ONCE
def test_a_job_that_fails_leaves_nothing(
    sink: Spark, topic: MakeTopic, name: MakeName, write: Write
) -> None:
    """A record is too large, in the client's eyes and in the broker's; a row has no topic."""
    small = topic("small", **{"max.message.bytes": "2000"})
    large = sink.session.range(4, numPartitions=2).selectExpr(
        "IF(id = 3, repeat('x', 3000000), '1') AS value"
    )
    with pytest.raises(PySparkException, match=r"3000000 bytes .*kafka\.message\.max\.bytes"):
        write(large, topic=small)
    too_large = large.selectExpr("substr(value, 1, 5000) AS value")
    with pytest.raises(PySparkException, match=rf"{small}: .*MSG_SIZE_TOO_LARGE.*max\.message"):
        write(too_large, topic=small)
    lost = counted(sink, 2).selectExpr("value", "CAST(NULL AS string) AS topic")
    with pytest.raises(PySparkException, match="names no topic"):
        write(lost)
    gone = counted(sink, 2).selectExpr("value", f"'{name('gone')}' AS topic")
    with pytest.raises(PySparkException, match="topic gone-.*UNKNOWN_TOPIC"):
        write(gone)
    assert values(sink, small) == []


@EXACTLY_ONCE
def test_a_task_that_is_overtaken_while_it_writes_says_so(
    sink: Spark, broker: Broker, topic: MakeTopic, name: MakeName, write: Write, tmp_path: Path
) -> None:
    """Another producer begins under the id of the task, as a second driver of the query would."""
    target, query, overtaken = topic("target"), name("query"), tmp_path / "overtaken"

    def held(value: str) -> str:
        while value == "50000" and not overtaken.exists():
            time.sleep(0.01)  # In a process of Spark's: a file is all that both can see.
        return value

    def overtake() -> str:
        children: list[dict[str, str]] = []

        def is_open() -> bool:
            children[:] = printed(
                broker, "transactions", "list", "--open", "--pattern", f"{query}~>.*"
            )
            return bool(children)

        eventually(is_open)
        child = children[0]["transactional_id"]
        producer(broker.bootstrap, transactional_id=child).init_transactions(TIMEOUT_S)
        overtaken.touch()
        return child

    rows = counted(sink, 60_000).coalesce(1).select(udf(held, "string")("value").alias("value"))
    with ThreadPoolExecutor() as pool:
        meanwhile = pool.submit(overtake)
        with pytest.raises(PySparkException) as failed:
            write(rows, topic=target, queryId=query, batchId="1")
    assert f"SinkError: {meanwhile.result()}: " in str(failed.value)
    assert values(sink, target) == []


@EXACTLY_ONCE
def test_a_batch_of_a_stream_that_fails_leaves_no_transaction_open(
    sink: Spark, copied: Copied, broker: Broker, stream: Stream
) -> None:
    """The commit runs in another process than the tasks: it knows their session all the same."""
    copied.fill(200)
    rows = (
        copied.numbers(200)
        .repartition(4)
        .selectExpr("IF(value = '100', repeat('x', 3000000), value) AS value")
    )
    with pytest.raises(PySparkException, match="3000000 bytes"):
        stream(rows, topic=copied.target, queryId=copied.query)
    pattern = f"{copied.query}~>.*"
    assert printed(broker, "transactions", "list", "--pattern", pattern)
    assert printed(broker, "transactions", "list", "--open", "--pattern", pattern) == []


@EXACTLY_ONCE
@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (["CAST(id AS string) AS key"], {}, "no column 'value', only key"),
        (["'v' AS value", "id"], {}, "the column 'id' means nothing"),
        (["id AS value"], {}, "'value' is bigint: it has to be string or binary"),
        (["'v' AS value"], {"partitions": "3"}, "unknown option 'partitions'"),
        (["'v' AS value"], {"topic": "there-is-none"}, "topic there-is-none: UNKNOWN_TOPIC"),
        (["'v' AS value"], {"queryId": "q"}, "queryId and batchId"),
        (["'v' AS value"], {"queryId": "a~>b", "batchId": "1"}, "contains '~>'"),
        (["'v' AS value"], {"queryId": "q", "batchId": "-1"}, "batchId is '-1'"),
        (["'v' AS value"], {"kafka_no_such": "1"}, "no.such"),
        (["'v' AS value"], {"kafka_acks": "1"}, "kafka.acks is the sink's own"),
        (["'v' AS value"], {"deliveryGuarantee": "maybe"}, "'maybe'; it takes exactly-once or"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is(
    sink: Spark,
    topic: MakeTopic,
    write: Write,
    columns: list[str],
    options: dict[str, str],
    said: str,
) -> None:
    frame = sink.session.range(2).selectExpr(*columns)
    with pytest.raises(PySparkException) as refused:
        write(frame, **{"topic": topic("unused"), **options})
    assert said in str(refused.value)


def test_without_joint_transactions_it_writes_only_if_told_so(
    sink: Spark, broker: Broker, topic: MakeTopic, write: Write
) -> None:
    target = topic("target")
    if broker.kind == "kafka":
        with pytest.raises(PySparkException, match="is not magnetar.*at-least-once"):
            write(counted(sink, 3), topic=target)
        assert values(sink, target) == []
    write(counted(sink, 3), topic=target, deliveryGuarantee="at-least-once")
    assert values(sink, target) == [0, 1, 2]


@EXACTLY_ONCE
def test_a_stream_is_written_exactly_once_although_the_broker_is_killed(
    spark_session: SparkSession, own_broker: Broker, topic_on: MakeTopic, tmp_path: Path
) -> None:
    """Killed in mid-stream, and started again: a batch waits for it, or fails and is repeated."""
    source, target = topic_on(own_broker, "source"), topic_on(own_broker, "target", partitions=2)
    count = 60
    fill(own_broker, source, count)
    spark = Spark(spark_session, own_broker.bootstrap)
    register(spark_session)

    def run() -> bool:
        """Return whether the query came to its end."""
        frame = numbers_of(spark, source, 10)
        options = spark.named({"topic": target, "queryId": target})
        writer = frame.writeStream.format("magnetar").options(**options)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        try:
            await_end(writer.trigger(availableNow=True).start())
        except PySparkException:
            return False
        return True

    def kill_twice() -> None:
        for pause_s in (2.0, 2.5):
            time.sleep(pause_s)
            own_broker.restart(clean=False)

    killer = threading.Thread(target=kill_twice)
    killer.start()
    ended = run()
    killer.join()
    while not ended:
        ended = run()
    assert values(spark, target) == list(range(count))


@EXACTLY_ONCE
def test_rows_reach_a_broker_by_tls_and_a_login(sink: Spark) -> None:
    with start_broker(tls=True, users={"ada": "pw"}, mechanism="SCRAM-SHA-512") as secured:
        settings = secured.confluent_settings()
        admin = AdminClient(settings)
        (created,) = admin.create_topics([NewTopic("orders", 2)]).values()
        created.result(TIMEOUT_S)
        # The names are those of Spark's own connector: Kafka's.
        options = {f"kafka.{name}": value for name, value in secured.client_settings().items()}
        writer = counted(sink, 10).write.format("magnetar").mode("append").options(**options)
        writer.options(topic="orders", queryId="secured", batchId="1").save()
        consumer = Consumer({**settings, "group.id": "readers", "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        seen = sorted(int(each.value() or b"") for each in consumer.consume(10, TIMEOUT_S))
        consumer.close()
        assert seen == list(range(10))
