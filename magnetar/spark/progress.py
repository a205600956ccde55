"""The record of a query's progress, and whether it says that a batch is written. Pure.

The record is the offset of partition 0 of `PROGRESS_TOPIC` in the group of the query: the number
of the last batch, with Spark's query id and run in the metadata. It is committed by the very
transaction that makes the batch visible, so the record is never ahead of the data, nor behind.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from magnetar.spark.errors import OtherQuery, SinkError

#: The topic that records of progress name; nothing is written to it. Brokers keep offsets of this
#: topic for ever, whatever offsets.retention.minutes says (`coordinator.groups.offsets.store`).
PROGRESS_TOPIC = "__magnetar_progress"
#: Metadata without this version was written by another program.
_VERSION = 1
_GROUP = "magnetar.spark."


def group_of(query_id: str) -> str:
    """Return the group that holds a query's record."""
    return _GROUP + query_id


@dataclass(frozen=True)
class Progress:
    """A batch of a query, and the Spark query or batch job that writes it."""

    batch_id: int
    spark_query_id: str | None
    """Spark's id of the streaming query, kept in its checkpoint; None for a batch job."""
    run_id: str | None
    topic: str | None
    """The option `topic` of a batch job, which may write one batch to each of two topics."""
    rows: int

    @property
    def writer(self) -> str:
        """The writer, for messages."""
        if self.spark_query_id is None:
            return "a batch job"
        return f"Spark query {self.spark_query_id}"


def encode_metadata(progress: Progress) -> str:
    """Return the metadata of the offset. The offset itself is the batch's number."""
    fields = asdict(progress)
    del fields["batch_id"]
    return json.dumps({"version": _VERSION, **fields}, separators=(",", ":"))


def decode_record(offset: int, metadata: str, query_id: str) -> Progress:
    """Return the record. SinkError: something else was committed in the query's group."""
    try:
        fields = json.loads(metadata)
        if fields.pop("version") != _VERSION:
            raise ValueError("of another version")
        return Progress(batch_id=offset, **fields)
    # TypeError: a field is missing or unknown, which the constructor refuses.
    except (ValueError, TypeError, KeyError, AttributeError):
        raise SinkError(
            f"the group {group_of(query_id)} holds {metadata[:200]!r}, which is no progress of "
            f"this sink. `magnetar groups describe '{group_of(query_id)}'` shows it."
        ) from None


def is_written(recorded: Progress | None, batch: Progress, query_id: str, *, stream: bool) -> bool:
    """Return whether `batch` is written already. OtherQuery: the record is of another history, so
    the batch may be neither written nor skipped.

    Batches come in order. Only the last one is repeated, with the same rows. Batches in a gap of
    the numbers were written elsewhere.
    """
    if recorded is None:
        return False
    # Spark keeps the id in the checkpoint. Another id means other batches under the same numbers.
    if recorded.spark_query_id != batch.spark_query_id:
        raise OtherQuery(_other_query(recorded, batch, query_id))
    if batch.batch_id < recorded.batch_id:
        raise OtherQuery(
            f"batch {batch.batch_id} of queryId {query_id!r} comes after batch "
            f"{recorded.batch_id} was written. Its rows may differ from those written then: was "
            f"the checkpoint set back? {_advice(query_id)}"
        )
    if batch.batch_id > recorded.batch_id:
        return False
    if not stream and batch.topic != recorded.topic:
        raise OtherQuery(
            f"batch {batch.batch_id} of queryId {query_id!r} was written with the topic "
            f"{recorded.topic!r}, now it is {batch.topic!r}: two writes of one batch need two "
            "queryIds, or the second would be taken for a repetition of the first."
        )
    # Skipping the batch as a repetition would lose its new rows.
    if recorded.rows != batch.rows:
        raise OtherQuery(_other_rows(recorded, batch, query_id))
    return True


def repetition(batch: Progress, query_id: str) -> str:
    """Return what to tell of a batch job that was skipped, because its batch is written."""
    return (
        f"batch {batch.batch_id} of queryId {query_id!r} was written before, with {batch.rows} "
        "rows: this job was taken for a repetition, and wrote nothing. If it has other rows, it "
        "needs a queryId of its own, or a higher batchId."
    )


def _other_rows(recorded: Progress, batch: Progress, query_id: str) -> str:
    if batch.spark_query_id is not None:
        return (
            f"batch {batch.batch_id} of queryId {query_id!r} was written with {recorded.rows} rows,"
            f" now it has {batch.rows}: was the checkpoint set back, or does the query not repeat"
            f" its rows? Go on from the checkpoint that has commits/{batch.batch_id}."
            f" {_advice(query_id)}"
        )
    return (
        f"batch {batch.batch_id} of queryId {query_id!r} was written with {recorded.rows} rows, now"
        f" it has {batch.rows}: this is another job under the same name, or its input has changed."
        " Another job needs a queryId of its own, new rows a higher batchId."
        f" {_advice(query_id)}"
    )


def _other_query(recorded: Progress, batch: Progress, query_id: str) -> str:
    return (
        f"queryId {query_id!r} belongs to {recorded.writer}, which has written up to batch "
        f"{recorded.batch_id}; this is {batch.writer} with batch {batch.batch_id}. Two queries "
        "need two queryIds. The same query with a fresh checkpoint would write again what it wrote "
        f"before: go on from the old checkpoint. {_advice(query_id)}"
    )


def _advice(query_id: str) -> str:
    return (
        "To begin anew on purpose, choose another queryId, or delete the record: "
        f"`magnetar groups delete '{group_of(query_id)}'`."
    )
