"""The shard of a key is the partition that Apache Kafka would choose."""

from __future__ import annotations

import sys

import pytest

from coordinator.partitioning import java_string_hash, partition_for
from coordinator.transactions.joint import coordinator_partition


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


@pytest.mark.parametrize("separator", ["", "~>"])
def test_a_long_name_that_was_asked_for_does_not_stay(separator: str) -> None:
    """Clients may ask for thousands of them, which took half a gigabyte for ever."""
    name = "x" * 32_767
    references = sys.getrefcount(name)
    partition_for(name, 50)
    coordinator_partition(name, separator, 50)
    assert sys.getrefcount(name) == references
