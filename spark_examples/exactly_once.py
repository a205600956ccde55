"""Whether records are there exactly once, asked in Spark SQL: over topics of any size.

Two tables are compared. `records` is what a reader found, one row for each record:

    topic STRING, partition INT, offset LONG, writer STRING, transaction LONG, number LONG

`history` is what the writers know, one row for each transaction that was begun:

    writer STRING, transaction LONG, first_number LONG, end_number LONG, outcome STRING

A writer numbers its records in the order it writes them, and never uses a number twice; a
transaction has those from `first_number` to `end_number`, exclusive. Its outcome is `committed`,
`aborted`, or `unknown` where the writer died before it was answered: then all of its records are
there or none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pyspark.sql import DataFrame, Row, SparkSession

_HISTORY = "writer STRING, transaction LONG, first_number LONG, end_number LONG, outcome STRING"
#: The findings about single transactions.
_TRANSACTIONS = """
WITH visible AS (
    SELECT writer, transaction, count(*) AS found, count(DISTINCT number) AS different,
        min(number) AS lowest, max(number) AS highest,
        min(struct(topic, partition, offset)) AS place
    FROM {records} GROUP BY writer, transaction
), judged AS (
    SELECT writer, transaction, outcome, found, different, end_number - first_number AS expected,
        place, CASE
            WHEN outcome IS NULL THEN 'visible, but never written'
            WHEN found IS NULL AND outcome = 'committed' THEN 'lost'
            WHEN found IS NULL THEN NULL
            WHEN outcome = 'aborted' THEN 'aborted, but visible'
            WHEN found > different THEN 'duplicated'
            WHEN lowest < first_number OR highest >= end_number THEN 'visible, but never written'
            WHEN different < expected THEN 'partly visible'
        END AS fault
    FROM {history} FULL OUTER JOIN visible USING (writer, transaction)
)
SELECT fault, count(*) AS times, min_by(struct(*), struct(writer, transaction)) AS witness
FROM judged WHERE fault IS NOT NULL GROUP BY fault ORDER BY fault
"""
#: Neighbours of one writer in one partition whose numbers fall.
_ORDER = """
WITH neighbours AS (
    SELECT topic, partition, offset, writer, number,
        lag(number) OVER (PARTITION BY topic, partition, writer ORDER BY offset) AS before
    FROM {records}
)
SELECT count(*) AS times, min_by(struct(*), struct(topic, partition, offset)) AS witness
FROM neighbours WHERE number < before
"""
_TOTALS = """
SELECT outcome, count(*) AS transactions, sum(end_number - first_number) AS records
FROM {history} GROUP BY outcome
"""


class Fault(NamedTuple):
    """A breach of exactly-once: its kind, how often it was found, and one witness."""

    kind: str
    times: int
    witness: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.times} times, for example {self.witness}"


class Audit(NamedTuple):
    """The comparison and its faults: without any, everything is there exactly once."""

    visible_records: int
    #: By outcome.
    transactions: dict[str, int]
    #: Records in these transactions, by outcome.
    records: dict[str, int]
    faults: tuple[Fault, ...]


def table_of(spark: SparkSession, history: Iterable[tuple[str, int, int, int, str]]) -> DataFrame:
    """Return the table `history` with these rows."""
    return spark.createDataFrame(list(history), _HISTORY)


def audit(records: DataFrame, history: DataFrame) -> Audit:
    """Compare what a reader found with what the writers know; the tables are described above.

    `records` is read several times: cache it where reading is expensive. Of several faults of one
    transaction the worst is told.
    """
    spark = records.sparkSession
    totals = spark.sql(_TOTALS, history=history).collect()
    wrong = spark.sql(_TRANSACTIONS, records=records, history=history).collect()
    faults = [Fault(row.fault, row.times, _transaction(row.witness)) for row in wrong]
    (order,) = spark.sql(_ORDER, records=records).collect()
    if order.times:
        faults.append(Fault("out of order", order.times, _neighbours(order.witness)))
    return Audit(
        visible_records=records.count(),
        transactions={row.outcome: row.transactions for row in totals},
        records={row.outcome: row.records for row in totals},
        faults=tuple(faults),
    )


def _transaction(witness: Row) -> str:
    found = (
        "none of its records"
        if witness.place is None
        else f"{witness.found} records, {witness.different} different ones, the first in "
        f"{witness.place.topic}-{witness.place.partition} at {witness.place.offset}"
    )
    wrote = (
        "unknown to its writer"
        if witness.outcome is None
        else (f"{witness.outcome}, {witness.expected} records")
    )
    return f"transaction {witness.transaction} of {witness.writer} ({wrote}): {found}"


def _neighbours(witness: Row) -> str:
    return (
        f"record {witness.number} of {witness.writer} behind its {witness.before} in "
        f"{witness.topic}-{witness.partition} at {witness.offset}"
    )
