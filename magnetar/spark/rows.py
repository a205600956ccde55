"""Rows to records: the columns that there may be, and what each becomes. Pure.

The columns are those of Spark's own Kafka sink, and a timestamp. Any other column is an error: it
is not dropped in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any

from magnetar.spark.errors import BadOptions, SinkError

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

_TEXT = ("string", "binary")
_HEADERS = (
    "array<struct<key:string,value:binary>>",
    "array<struct<key:string,value:string>>",
)
#: The types that each column may have, as Spark writes them.
COLUMNS: dict[str, tuple[str, ...]] = {
    "topic": ("string",),
    "key": _TEXT,
    "value": _TEXT,
    "headers": _HEADERS,
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
#: Arrow's types of strings, and the types of the same bytes.
_BYTES_OF = {"string": "binary", "large_string": "large_binary"}
_ANY_PARTITION = -1
_NOW = 0
#: Takes (topic, value, key, partition, timestamp in ms, headers).
Send = Callable[..., None]


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raise BadOptions unless rows of this schema can be written; `topic` is for rows with none."""
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    if len(types) != len(schema.fields):
        raise BadOptions(f"two columns have one name: {', '.join(schema.fieldNames())}.")
    for name, found in types.items():
        if name not in COLUMNS:
            raise BadOptions(
                f"the column {name!r} means nothing to a topic: select some of "
                f"{', '.join(COLUMNS)}."
            )
        if found not in COLUMNS[name]:
            raise BadOptions(
                f"the column {name!r} is {found}: it has to be {' or '.join(COLUMNS[name])}."
            )
    if "value" not in types:
        raise BadOptions(f"there is no column 'value', only {', '.join(types) or 'none at all'}.")
    if "topic" not in types and topic is None:
        raise BadOptions("there is neither the option topic nor a column 'topic': name a topic.")


def send_rows(batch: pyarrow.RecordBatch, topic: str | None, send: Send) -> None:
    """Pass every row to `send`, in order; `topic` is for rows that name none.

    SinkError: a row has no topic, a partition below 0, a timestamp before 1970, or a header without
    a key.
    """
    columns = _columns(batch)
    # The usual frame: no row needs its other columns looked for.
    if columns.keys() == {"value"} and topic is not None:
        for value in columns["value"]:
            send(topic, value)
        return
    for record in _records(columns, topic):
        send(*record)


def topics_of(batch: pyarrow.RecordBatch) -> set[str]:
    """Return the topics that the rows name."""
    if "topic" not in batch.schema.names:
        return set()
    named = batch.column("topic").unique().to_pylist()
    return {name for name in named if name is not None}


def _columns(batch: pyarrow.RecordBatch) -> dict[str, list[Any]]:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    if "timestamp" in columns:
        # Spark's timestamps are in microseconds.
        columns["timestamp"] = columns["timestamp"].cast("int64")
    for name in columns.keys() & {"key", "value"}:
        # Bytes, not text: a string that Spark has read need not be UTF-8.
        column = columns[name]
        columns[name] = column.cast(_BYTES_OF.get(str(column.type), column.type))
    return {name: column.to_pylist() for name, column in columns.items()}


def _records(
    columns: dict[str, list[Any]], topic: str | None
) -> Iterator[tuple[str, Any, Any, int, int, list[Any]]]:
    nothing: Iterable[None] = repeat(None)
    for name, value, key, partition, timestamp, headers in zip(
        columns.get("topic", nothing),
        columns["value"],
        columns.get("key", nothing),
        columns.get("partition", nothing),
        columns.get("timestamp", nothing),
        columns.get("headers", nothing),
        strict=False,
    ):
        where = name if name is not None else topic
        if where is None:
            raise SinkError("a row names no topic, and there is no option topic.")
        if partition is not None and partition < 0:
            raise SinkError(f"a row for topic {where} has the partition {partition}.")
        timestamp_ms = _NOW if timestamp is None else timestamp // 1000
        if timestamp is not None and timestamp_ms <= _NOW:
            # Kafka's records have no timestamps before 1970, and for the client 0 means now.
            raise SinkError(
                f"a row for topic {where} has a timestamp {-timestamp_ms} ms before 1970-01-01 UTC;"
                " a record's timestamp has to be later."
            )
        yield (
            where,
            value,
            key,
            _ANY_PARTITION if partition is None else partition,
            timestamp_ms,
            _headers(where, headers) if headers else [],
        )


def _headers(topic: str, headers: list[dict[str, Any] | None]) -> list[Any]:
    found = []
    for header in headers:
        if header is None or header["key"] is None:
            raise SinkError(f"a row for topic {topic} has a header without a key.")
        found.append((header["key"], header["value"]))
    return found
