"""The data source `magnetar` as Spark calls it.

Spark makes a writer when it plans a batch. Its tasks call `write` in processes of their own. It
calls `commit` or `abort` in yet another process, for a stream on a new writer, for a batch job on
the pickled one. So a writer holds only its options and what the brokers promised.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, Producer
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from magnetar.spark.cluster import Cluster, Promises
from magnetar.spark.committing import commit_batch
from magnetar.spark.errors import BadOptions, SinkError
from magnetar.spark.options import Guarantee, SinkOptions, check_separated, parse_options
from magnetar.spark.progress import Progress, is_written, repetition
from magnetar.spark.query_parent import QueryParent
from magnetar.spark.rows import check_columns
from magnetar.spark.task import (
    Family,
    Written,
    client_settings,
    place_of_task,
    write_rows,
)

if TYPE_CHECKING:
    import pyarrow

#: librdkafka's longest timeout.
_TRANSACTION_TIMEOUT_MS_MAX = 2**31 - 1
_BATCH_JOB = -1
#: Hexadecimal digits: enough for the drivers of one query that may be alive at once.
_SESSION_LENGTH = 12
#: Spark's `spark.python.task.killTimeout` is 2 s by default.
_KILLED_WITHIN_S = 3.0

_log = logging.getLogger("magnetar.spark")


class MagnetarDataSource(DataSource):
    """`format("magnetar")`: a sink, exactly once on magnetar."""

    #: The session that it is registered with (`of_session`).
    session = ""

    @classmethod
    def name(cls) -> str:
        return "magnetar"

    def writer(self, schema: StructType, overwrite: bool) -> SinkWriter:
        if overwrite:
            raise BadOptions('a topic can only be appended to: mode("append").')
        options = _checked(self.options, schema)
        if options.query_id is None and options.batch_id is None:
            # A random name: no repetition can be told from a new write, so each gets its own.
            query_id = f"spark-write-{uuid.uuid4().hex}"
            return SinkWriter(options, query_id, self.session, stream=False)
        if options.query_id is None or options.batch_id is None:
            raise BadOptions(
                "a batch write has queryId and batchId, which tell a repetition (foreachBatch "
                "needs both), or neither: then each run is a new write."
            )
        return SinkWriter(options, options.query_id, self.session, stream=False)

    def streamWriter(self, schema: StructType, overwrite: bool) -> SinkWriter:
        # Output mode `complete` asks to overwrite; this sink appends, as Spark's own sink does.
        options = _checked(self.options, schema)
        if options.batch_id is not None:
            raise BadOptions("the option batchId is for batch writes; a stream counts its own.")
        if options.query_id is None and options.guarantee is Guarantee.EXACTLY_ONCE:
            raise BadOptions(
                "the option queryId is missing: the name under which the stream's progress is "
                "kept, the same for the same query, also when it is started again."
            )
        return SinkWriter(options, options.query_id or "", self.session, stream=True)


def of_session() -> type[MagnetarDataSource]:
    """Return a data source for one session, by which its tasks are known.

    Spark sends the class to each process that plans, writes, commits or aborts, and nothing else
    that these processes have in common tells one driver from another.
    """

    class Registered(MagnetarDataSource):
        session = uuid.uuid4().hex[:_SESSION_LENGTH]

    return Registered


def _checked(given: Any, schema: StructType) -> SinkOptions:
    options = parse_options(given)
    check_columns(schema, options.topic)
    return options


class SinkWriter(DataSourceStreamWriter, DataSourceArrowWriter):
    """Writes the batches of a stream or of a batch job; rows come as Arrow's batches, uncopied."""

    def __init__(self, options: SinkOptions, query_id: str, session: str, *, stream: bool) -> None:
        """Ask the brokers for their promises. SinkError: the batch cannot be written as asked."""
        self._options = options
        self._query_id = query_id
        self._stream = stream
        self._family: Family | None = None
        with self._cluster() as cluster:
            if options.topic is not None:
                cluster.check_topics([options.topic])
            if options.guarantee is Guarantee.EXACTLY_ONCE:
                self._family = self._prepared(cluster, session)
        # On the driver, so that a mistake fails the query at once and not each of its tasks.
        _check_client_settings(options, self._family)

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Written:
        if not self._stream and self._family is not None:
            _check_place(self._options)
        return write_rows(iterator, self._options, self._family)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = _BATCH_JOB) -> None:
        written = [message for message in messages if isinstance(message, Written)]
        # Spark never calls `write` for a continuous stream, and commits its epochs all the same.
        if self._stream and messages and not written:
            raise BadOptions(
                "trigger(continuous=...) is not supported: this sink writes in batches, and has "
                "written nothing. Use trigger(processingTime=...) or trigger(availableNow=True)."
            )
        if self._family is None:
            return
        # A lost message could be a vote that is not counted: the batch would miss rows in silence.
        if not written or len(written) != len(messages):
            raise SinkError(
                f"{len(messages) - len(written)} of {len(messages)} tasks sent no message."
            )
        batch = self._batch(written, batchId)
        with self._cluster() as cluster:
            judge = partial(is_written, batch=batch, query_id=self._query_id, stream=self._stream)
            parent = self._parent(cluster, self._family)
            is_new = commit_batch(parent, batch, _children(written), judge)
        # Streams repeat their last batch after a restart. A job may be another than it looks like.
        if not is_new and batch.spark_query_id is None:
            _log.warning(repetition(batch, self._query_id))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = _BATCH_JOB) -> None:
        """Fence the batch's children of this driver, those of killed tasks included.

        Otherwise their open transactions would hold back readers until they time out. Children of
        another session are left alone: a successor of this driver may be writing the same batch.
        """
        if self._family is None:
            return
        # The names of children tell their batch, so children of a later batch are left alone.
        left = self._family.prefix(self._batch_number(batchId))
        with self._cluster() as cluster:
            parent = self._parent(cluster, self._family)
            parent.fence(_children(messages) | _named(left, parent.undecided()))
            if messages.count(None) > 1:
                # Tasks beside the one that failed are being killed now. Until they are, they may
                # begin a transaction, or vote.
                time.sleep(_KILLED_WITHIN_S)
                parent.fence(_named(left, parent.undecided()))

    def _batch(self, written: Sequence[Written], batch_id: int) -> Progress:
        place = written[0].place
        return Progress(
            batch_id=self._batch_number(batch_id) or 0,
            spark_query_id=place.spark_query_id,
            run_id=place.run_id,
            topic=None if self._stream else self._options.topic,
            rows=sum(message.rows for message in written),
        )

    def _batch_number(self, batch_id: int) -> int | None:
        """Return Spark's number of a stream's batch, or the option of a batch job."""
        return batch_id if self._stream else self._options.batch_id

    def _cluster(self) -> Cluster:
        options = self._options
        return Cluster(options.bootstrap_servers, options.broker_timeout_ms, options.security)

    def _parent(self, cluster: Cluster, family: Family) -> QueryParent:
        return QueryParent(
            cluster,
            self._query_id,
            timeout_ms_max=family.transaction_timeout_ms,
            keeps_record=self._options.query_id is not None,
        )

    def _prepared(self, cluster: Cluster, session: str) -> Family:
        promises = cluster.promises()
        check_separated(self._query_id, promises.separator)
        cluster.provide_progress_topic()
        timeout_ms = _transaction_timeout_ms(promises)
        family = Family(self._query_id, promises.separator, timeout_ms, session)
        # Before tasks begin: votes that a dead driver sealed let no new ones in.
        self._parent(cluster, family).end_abandoned()
        return family


def _named(prefix: str, children: Set[str]) -> set[str]:
    return {child for child in children if child.startswith(prefix)}


def _children(messages: Iterable[WriterCommitMessage | None]) -> set[str]:
    """Return the children whose votes hold the rows."""
    return {
        message.child
        for message in messages
        if isinstance(message, Written) and message.child is not None
    }


def _transaction_timeout_ms(promises: Promises) -> int:
    return min(promises.transaction_timeout_ms_max, _TRANSACTION_TIMEOUT_MS_MAX)


def _check_client_settings(options: SinkOptions, family: Family | None) -> None:
    try:
        # librdkafka checks its settings when a producer is made. It connects to nothing before it
        # is used.
        Producer(client_settings(options, family))
    except KafkaException as failure:
        raise BadOptions(f"the options kafka.*: {failure.args[0].str()}.") from None


def _check_place(options: SinkOptions) -> None:
    """Refuse a batch write inside a streaming query, which only a task can see."""
    place = place_of_task()
    if place.batch_id is None or place.batch_id == options.batch_id:
        return
    if options.batch_id is None:
        raise BadOptions(
            "this is a write in foreachBatch, which may be repeated: it needs the options queryId "
            "and batchId, the latter with the number that foreachBatch was given."
        )
    raise BadOptions(
        f"the option batchId is {options.batch_id}, but Spark is writing batch {place.batch_id}."
    )
