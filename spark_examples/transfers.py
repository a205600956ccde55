"""Bank transfers: the n-th transfer of a writer, computed from its number alone.

A record names its writer, its transaction and its number among the writer's, and so can be told
from every other; the accounts and the amount follow from writer and number alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

ACCOUNTS = 200
OPENING_BALANCE = 10_000
#: A record's value, as comma-separated columns.
SCHEMA = "writer STRING, transaction LONG, number LONG, debited INT, credited INT, amount LONG"
_SPREAD = 2_654_435_761  # Knuth's multiplier: neighbouring numbers fall far apart.


class Transfer(NamedTuple):
    """`amount` goes from account `debited` to account `credited`, which is another one."""

    debited: int
    credited: int
    amount: int


def transfer(writer: int, number: int) -> Transfer:
    """Return transfer `number` of a writer."""
    mixed = (number * _SPREAD + writer * 40_503) & 0xFFFF_FFFF
    debited = mixed % ACCOUNTS
    credited = (debited + 1 + (mixed >> 8) % (ACCOUNTS - 1)) % ACCOUNTS
    return Transfer(debited, credited, 1 + (mixed >> 16) % 100)


def name_of(writer: int) -> str:
    return f"writer-{writer}"


def writer_of(name: str) -> int:
    return int(name.removeprefix("writer-"))


def value_of(writer: int, transaction: int, number: int) -> bytes:
    """Return the record of a transfer."""
    debited, credited, amount = transfer(writer, number)
    return b"writer-%d,%d,%d,%d,%d,%d" % (writer, transaction, number, debited, credited, amount)


def parsed(records: DataFrame) -> DataFrame:
    """Return records read by Spark as the columns of SCHEMA, with topic, partition and offset."""
    columns = f.from_csv(f.col("value").cast("string"), SCHEMA).alias("transfer")
    return records.select("topic", "partition", "offset", columns).select(
        "topic", "partition", "offset", "transfer.*"
    )


def postings(transfers: DataFrame) -> DataFrame:
    """Return two rows (account, change) for each transfer."""
    both: Column = f.explode(
        f.array(
            f.struct(f.col("debited").alias("account"), (-f.col("amount")).alias("change")),
            f.struct(f.col("credited").alias("account"), f.col("amount").alias("change")),
        )
    )
    return transfers.select(both.alias("posting")).select("posting.*")


def balances(ranges: Iterable[tuple[int, int, int]]) -> list[int]:
    """Return the balance of each account after the transfers of (writer, first, end) ranges."""
    found = [OPENING_BALANCE] * ACCOUNTS
    for writer, first_number, end_number in ranges:
        for number in range(first_number, end_number):
            debited, credited, amount = transfer(writer, number)
            found[debited] -= amount
            found[credited] += amount
    return found
