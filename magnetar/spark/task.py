"""One task: it writes its rows in a child transaction of the query. Its commit is a vote.

The child's id is made here and never used again. An attempt number would not do: numbers begin anew
with each run, and a losing attempt may have voted before the driver decides. A task without rows
makes no child.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from magnetar.spark.cluster import Cluster
from magnetar.spark.errors import SinkError, TooManyTasks
from magnetar.spark.options import SinkOptions
from magnetar.spark.progress import PROGRESS_TOPIC
from magnetar.spark.query_parent import QueryParent
from magnetar.spark.rows import send_rows, topics_of

if TYPE_CHECKING:
    import pyarrow

#: Spark's own sink partitions like this, so a key stays in its partition.
_DEFAULTS = {"partitioner": "murmur2_random", "linger.ms": "5", "log_level": "2"}
#: A bound of the rows of one task that wait to be sent.
_QUEUE_KIB_MAX = 64 << 10
_POLL_S = 0.05
#: How long a producer that has ended may take to say why.
_REASON_S = 1.0
_ABORT_S = 1.0
_CONNECT_S = 2.0
_ASK_MS = 2_000
#: As many children of a parent may be open or have voted (docs/joint_transactions.md).
CHILDREN_MAX = 10_000
#: The transaction was ended by another than its producer.
_FENCED = (
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
    KafkaError.INVALID_TXN_STATE,
)


@dataclass(frozen=True)
class Family:
    """A query and its children: how tasks' transactions are named and bounded."""

    query_id: str
    separator: str
    transaction_timeout_ms: int
    session: str = ""
    """The session of the driver. By it a driver that gives up tells its tasks from those of its
    successor, which may be writing the same batch."""

    def child(self, batch_id: int | None, partition: int) -> str:
        """Return a new child's id."""
        return f"{self.prefix(batch_id)}{partition}.{uuid.uuid4().hex}"

    def prefix(self, batch_id: int | None) -> str:
        """Return the prefix of the ids of a batch's children in this session; None: a write without
        a number."""
        number = "" if batch_id is None else batch_id
        return f"{self.query_id}{self.separator}{number}.{self.session}."


@dataclass(frozen=True)
class Place:
    """The task, batch and run in which code runs, as Spark says."""

    partition: int
    spark_query_id: str | None
    run_id: str | None
    batch_id: int | None
    """None outside of streaming queries."""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The message of a task to the driver."""

    child: str | None
    """The child whose vote holds the rows. None: no rows, or at-least-once was asked for."""
    place: Place
    rows: int = 0


def place_of_task() -> Place:
    """Return the place of the calling task."""
    context = TaskContext.get()
    assert context is not None, "called outside of a task"
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    query_id = context.getLocalProperty("sql.streaming.queryId")
    return Place(
        partition=context.partitionId(),
        spark_query_id=query_id,
        # Spark names the jobs of a streaming query after its run.
        run_id=None if query_id is None else context.getLocalProperty("spark.jobGroup.id"),
        batch_id=None if batch_id is None else int(batch_id),
    )


def write_rows(
    batches: Iterable[pyarrow.RecordBatch], options: SinkOptions, family: Family | None
) -> Written:
    """Write a task's rows as a child of `family`; None: at once, visible to every reader.

    SinkError: none of the rows will be visible; without a family any of them may be. Spark then
    repeats the task.
    """
    place = place_of_task()
    batch_id = place.batch_id if options.batch_id is None else options.batch_id
    filled = (batch for batch in batches if batch.num_rows)
    # A child without rows would cost the batch a transaction, and the driver a vote to wait for.
    first = next(filled, None)
    if first is None:
        return Written(None, place)
    child = None if family is None else family.child(batch_id, place.partition)
    # Only then can the children of this batch alone be too many.
    if family is not None and place.partition >= CHILDREN_MAX:
        check_room(options, family, options.broker_timeout_ms)
    rows = 0
    with _Writer(options, family, child) as writer:
        for batch in chain((first,), filled):
            writer.write(batch)
            rows += batch.num_rows
        writer.vote()
    return Written(child, place, rows)


def check_room(options: SinkOptions, family: Family, timeout_ms: int) -> None:
    """Raise TooManyTasks if the query has as many open and voted tasks as a broker takes.

    The next one would wait for a decision that waits for it.
    """
    with Cluster(options.bootstrap_servers, timeout_ms, options.security) as cluster:
        count = len(QueryParent(cluster, family.query_id).undecided())
    if count >= CHILDREN_MAX:
        raise TooManyTasks(
            f"queryId {family.query_id!r} has {count} tasks that write or have written, and a "
            f"broker takes {CHILDREN_MAX} at once. Write fewer partitions, as "
            f"coalesce({CHILDREN_MAX}). Tasks that a dead driver has left count too, until they "
            "expire (joint.vote.timeout.ms)."
        )


class _Writer:
    """A producer for one task, in a transaction if it has an id.

    A context manager: rows without a vote are aborted at its end, also when Spark kills the task.
    """

    def __init__(self, options: SinkOptions, family: Family | None, child: str | None) -> None:
        """Send nothing yet."""
        self._child = child
        self._family = family
        self._is_done = False
        self._began_s = time.monotonic()
        self._options = options
        self._topics: set[str] = set()
        self._failed: SinkError | None = None
        self._has_timed_out = False
        self._timeout_s = options.broker_timeout_ms / 1000
        settings = client_settings(options, family)
        self._transaction_timeout_ms = int(settings.get("transaction.timeout.ms", 0))
        if child is not None:
            settings["transactional.id"] = child
        self._producer = Producer({**settings, "on_delivery": self._on_failure})

    def __enter__(self) -> Self:
        if self._child is not None:
            self._connect()
            self._persist(self._producer.init_transactions)
            self._began_s = time.monotonic()
            self._producer.begin_transaction()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_done:
            self._abandon()
        # The producer holds a callback of this object. In such a cycle it would stay connected
        # until the garbage collector runs.
        del self._producer

    def write(self, batch: pyarrow.RecordBatch) -> None:
        # Checked once per topic: librdkafka would wait out its message timeout for a topic that
        # does not exist.
        if new := topics_of(batch) - self._topics:
            options = self._options
            with Cluster(
                options.bootstrap_servers, options.broker_timeout_ms, options.security
            ) as cluster:
                cluster.check_topics(sorted(new))
            self._topics |= new
        send_rows(batch, self._options.topic, self._send)
        # Callbacks run within poll only: a record that failed is found here, and not after all
        # rows.
        self._serve(self._producer.poll, 0)

    def vote(self) -> None:
        """Return when all rows are durable, and the child has voted for them."""
        # In short steps, so that Spark can kill the task in between.
        while self._serve(self._producer.flush, _POLL_S):
            pass
        if self._child is not None:
            self._persist(self._producer.commit_transaction)
        self._is_done = True

    def _abandon(self) -> None:
        """Abort. If that fails, the driver fences the child, or its timeout aborts it."""
        with suppress(KafkaException):
            if self._child is None:
                self._producer.purge()
            else:
                self._producer.abort_transaction(_ABORT_S)

    def _connect(self) -> None:
        """Wait for the connection to the broker.

        Without one, init_transactions looks for its coordinator only every 500 ms. Two calls,
        because the first is answered on the connection to the bootstrap server, which then ends.
        """
        for _ in range(2):
            with suppress(KafkaException):  # init_transactions waits for a broker that is away.
                self._producer.list_topics(PROGRESS_TOPIC, _CONNECT_S)

    def _send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        partition: int = -1,
        timestamp: int = 0,
        headers: Any = (),
    ) -> None:
        try:
            while True:
                try:
                    self._producer.produce(
                        topic, value, key, partition, timestamp=timestamp, headers=headers or None
                    )
                    return
                # The queue is full: what was delivered in the meantime makes room.
                except BufferError:
                    self._serve(self._producer.poll, _POLL_S)
        except KafkaException as failure:
            error = failure.args[0]
            # If the producer has ended, this raises the reason, which may come a moment later.
            is_over = error.code() == KafkaError._FATAL
            self._serve(self._producer.poll, _REASON_S if is_over else 0)
            size_bytes = len(value or b"") + len(key or b"")
            raise SinkError(_refused(topic, size_bytes, error)) from None

    def _persist(self, step: Callable[[float], None]) -> None:
        """Take a step of the transaction, repeated while it may still succeed."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                step(max(deadline - time.monotonic(), _POLL_S))
                return
            except KafkaException as failure:
                error = failure.args[0]
                if not error.retriable() or time.monotonic() > deadline:
                    self._check()
                    raise self._ended(error) from None

    def _serve(self, wait: Callable[[float], int], timeout_s: float) -> int:
        """Let the producer report what happened to records, and return its count.

        Raises SinkError for a record that failed, or if the producer has ended, for example because
        it was fenced.
        """
        try:
            count = wait(timeout_s)
        except (KafkaException, SystemError) as failure:
            raise self._ended(_kafka_error(failure)) from None
        self._check()
        return count

    def _ended(self, error: KafkaError) -> SinkError:
        if self._child is None:
            return SinkError(f"the producer: {error.str()} ({error.name()})")
        said = f"{self._child}: {error.str()} ({error.name()})."
        if error.code() in _FENCED:
            said += self._fenced()
        return SinkError(said)

    def _fenced(self) -> str:
        """Return why the broker takes no more of this task, as far as a task can know."""
        took_ms = int((time.monotonic() - self._began_s) * 1000)
        if took_ms < self._transaction_timeout_ms:
            return " Its driver, or another one with the same queryId, has given it up."
        return (
            f" The task took {took_ms} ms, and its transaction may take "
            f"{self._transaction_timeout_ms}: the option kafka.transaction.timeout.ms, by default"
            " the broker's transaction.max.timeout.ms. Make the tasks smaller, or raise both."
        )

    def _on_failure(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._failed is None:
            size_bytes = len(message.value() or b"") + len(message.key() or b"")
            self._failed = SinkError(_refused(message.topic() or "", size_bytes, error))
            self._has_timed_out = error.code() == KafkaError._MSG_TIMED_OUT

    def _check(self) -> None:
        if self._failed is None:
            return
        if self._has_timed_out and self._family is not None:
            try:
                check_room(self._options, self._family, _ASK_MS)
            except TooManyTasks as reason:
                raise reason from None
            except SinkError:
                pass  # No broker answers, which is reason enough.
        raise self._failed


def _kafka_error(failure: BaseException) -> KafkaError:
    """Return the error that confluent-kafka raised.

    It calls back while it raises. Then an exception in the callback becomes a SystemError, and the
    original is its cause.
    """
    while not isinstance(failure, KafkaException):
        if failure.__cause__ is None:
            raise failure
        failure = failure.__cause__
    error: KafkaError = failure.args[0]
    return error


def client_settings(options: SinkOptions, family: Family | None) -> dict[str, Any]:
    """Return librdkafka's settings for a task, without its transactional id."""
    of_family: dict[str, str] = {}
    if family is not None:
        of_family["transaction.timeout.ms"] = str(family.transaction_timeout_ms)
    return {
        **_DEFAULTS,
        "queue.buffering.max.kbytes": str(_QUEUE_KIB_MAX),
        **of_family,
        **options.client,
        "bootstrap.servers": options.bootstrap_servers,
        "enable.idempotence": True,
        "delivery.report.only.error": True,
    }


def _refused(topic: str, size_bytes: int, error: KafkaError) -> str:
    """Return the message for a record that was refused."""
    said = f"a record of {size_bytes} bytes for topic {topic}: {error.str()} ({error.name()})"
    if error.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE):
        said += (
            ". The option kafka.message.max.bytes raises the client's limit; the topic has its "
            "own, max.message.bytes"
        )
    return said + "."
