"""Rows to records: columns that are taken, columns that are refused, and what each row becomes."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from magnetar.spark.errors import BadOptions, SinkError
from magnetar.spark.rows import check_columns, send_rows, topics_of

HEADERS = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))
NOON = datetime.datetime(2026, 1, 2, 12, 0, 0, 1999, tzinfo=datetime.UTC)


def sent(columns: dict[str, Any], topic: str | None = None) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    send_rows(pyarrow.RecordBatch.from_pydict(columns), topic, lambda *record: found.append(record))
    return found


def test_all_columns_of_sparks_own_sink_and_a_timestamp_are_taken() -> None:
    schema = StructType().add("value", BinaryType()).add("key", StringType())
    schema = schema.add("topic", StringType()).add("partition", IntegerType())
    check_columns(schema.add("headers", HEADERS).add("timestamp", TimestampType()), None)
    check_columns(StructType().add("value", StringType()), "orders")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (StructType().add("key", StringType()), "no column 'value', only key"),
        (StructType(), "only none at all"),
        (StructType().add("value", LongType()), "'value' is bigint"),
        (StructType().add("value", StringType()).add("offset", LongType()), "'offset' means"),
        (StructType().add("value", StringType()).add("Key", StringType()), "'Key' means"),
        (StructType().add("value", StringType()).add("value", StringType()), "one name"),
        (StructType().add("value", StringType()), "neither the option topic"),
    ],
)
def test_other_columns_are_refused_by_name(schema: StructType, said: str) -> None:
    with pytest.raises(BadOptions) as refused:
        check_columns(schema, None)
    assert said in str(refused.value)


@pytest.mark.parametrize("kind", [pyarrow.string(), pyarrow.large_string()])
def test_strings_go_as_the_bytes_that_they_are(kind: pyarrow.DataType) -> None:
    wide = pyarrow.large_binary() if kind == pyarrow.large_string() else pyarrow.binary()
    strings = pyarrow.array([b"\xae", b"caf\xc3\xa9", None], wide).view(kind)
    assert sent({"value": strings}, "orders") == [
        ("orders", b"\xae"),
        ("orders", b"caf\xc3\xa9"),
        ("orders", None),
    ]


def test_a_value_alone_goes_to_the_topic_of_the_option() -> None:
    assert sent({"value": [b"a", None]}, "orders") == [("orders", b"a"), ("orders", None)]


def test_every_column_of_a_row_is_sent() -> None:
    headers = [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    columns = {
        "topic": ["audit", None],
        "key": ["k", None],
        "value": ["v", None],
        "partition": pyarrow.array([2, None], pyarrow.int32()),
        "timestamp": pyarrow.array([NOON, None], pyarrow.timestamp("us", tz="UTC")),
        "headers": [headers, None],
    }
    noon_ms = 1_767_355_200_001
    assert sent(columns, "orders") == [
        ("audit", b"v", b"k", 2, noon_ms, [("h", b"1"), ("h", None)]),
        ("orders", None, None, -1, 0, []),
    ]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"value": ["v"], "topic": pyarrow.array([None], pyarrow.string())}, "names no topic"),
        ({"value": ["v"], "topic": ["t"], "partition": [-1]}, "topic t has the partition -1"),
    ],
)
def test_a_row_that_goes_nowhere_is_refused(columns: dict[str, Any], said: str) -> None:
    with pytest.raises(SinkError, match=said):
        sent(columns)


@pytest.mark.parametrize(
    ("timestamp", "before_ms"), [(0, 0), (999, 0), (-1, 1), (-5_000_000, 5000)]
)
def test_a_time_that_no_record_can_have_is_refused_and_not_replaced_by_now(
    timestamp: int, before_ms: int
) -> None:
    times = pyarrow.array([timestamp], pyarrow.timestamp("us", tz="UTC"))
    with pytest.raises(SinkError, match=rf"topic t has a timestamp {before_ms} ms before 1970"):
        sent({"value": ["v"], "timestamp": times}, "t")


@pytest.mark.parametrize("header", [None, {"key": None, "value": b"1"}])
def test_a_header_without_a_key_is_refused(header: dict[str, Any] | None) -> None:
    """The client would call it `None`."""
    headers = [[{"key": "h", "value": b"1"}, header]]
    with pytest.raises(SinkError, match="topic t has a header without a key"):
        sent({"value": ["v"], "headers": headers}, "t")


def test_the_topics_that_rows_name_are_found() -> None:
    batch = pyarrow.RecordBatch.from_pydict({"topic": ["b", None, "a", "b"], "value": [""] * 4})
    assert topics_of(batch) == {"a", "b"}
    assert topics_of(batch.select(["value"])) == set()
