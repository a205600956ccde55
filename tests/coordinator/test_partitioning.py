"""The shard of a key is the partition that Apache Kafka would choose."""

from __future__ import annotations

import pytest

from coordinator.partitioning import java_string_hash, partition_for


@pytest.mark.parametrize(
    ("text", "signed_hash"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("ä", 228),
        ("polygenelubricants", -(2**31)),
        ("orders-etl-3", -405761253),
        ("😀", 1772899),  # two surrogates, each a UTF-16 code unit of its own
    ],
)
def test_hash_is_java_string_hash_code(text: str, signed_hash: int) -> None:
    assert java_string_hash(text) == signed_hash % 2**32


@pytest.mark.parametrize(
    ("key", "partition_count", "partition"),
    [
        ("hello", 50, 22),
        ("orders-etl-3", 50, 3),  # a negative hash: -405761253
        ("polygenelubricants", 50, 0),  # the one hash that has no positive counterpart
        ("hello", 1, 0),
    ],
)
def test_partition_is_that_of_the_hash_without_its_sign(
    key: str, partition_count: int, partition: int
) -> None:
    assert partition_for(key, partition_count) == partition
