"""The check of the ledger: compares balances with the writers' journals, and batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from spark_examples.crew import Transaction
from spark_examples.exactly_once import audit, table_of
from spark_examples.ledger_query import SCHEMA
from spark_examples.session import read_topic
from spark_examples.transfers import ACCOUNTS, OPENING_BALANCE, balances, parsed, writer_of

#: An account's balances, each beside the one before it.
_CHANGES = """
SELECT *, balance - lag(balance, 1, {opening}) OVER history AS change,
    lag(batch) OVER history AS batch_before, lag(postings) OVER history AS postings_before
FROM {balances} WINDOW history AS (PARTITION BY account ORDER BY offset)
"""
#: Batches that are written a second time, or after a later one.
_REPEATED = "SELECT * FROM {changes} WHERE batch <= batch_before OR postings <= postings_before"
#: A transfer only moves money, so the changes of a whole batch sum to nothing.
_TORN = "SELECT batch, sum(change) AS over FROM {changes} GROUP BY batch HAVING sum(change) <> 0"
_LATEST = "SELECT account, max_by(balance, offset) AS balance FROM {balances} GROUP BY account"
_UNKNOWN_BUT_VISIBLE = """
SELECT DISTINCT history.writer, history.first_number, history.end_number
FROM {history} history JOIN {transfers} USING (writer, transaction) WHERE outcome = 'unknown'
"""


class Finding(NamedTuple):
    """The result of the check. Without faults, every balance is true and was written once."""

    transfers: int
    accounts: int
    total: int
    batches: int
    #: Records of failed tasks: in the log, and invisible.
    hidden: int
    faults: tuple[str, ...]


def check(
    spark: SparkSession,
    bootstrap_servers: str,
    transfers_topic: str,
    balances_topic: str,
    history: Sequence[Transaction],
) -> Finding:
    """Read both topics and compare them with the journals of the writers."""
    transfers = parsed(read_topic(spark, bootstrap_servers, transfers_topic, "read_committed"))
    transfers.persist()
    known = table_of(spark, history)
    audited = audit(transfers, known)
    unknown = spark.sql(_UNKNOWN_BUT_VISIBLE, history=known, transfers=transfers).collect()
    committed = [each for each in history if each.outcome == "committed"]
    happened = [(each.writer, each.first_number, each.end_number) for each in committed]
    happened += [(row.writer, row.first_number, row.end_number) for row in unknown]
    truth = balances((writer_of(name), first, end) for name, first, end in happened)
    written = _parsed(read_topic(spark, bootstrap_servers, balances_topic, "read_committed"))
    written.persist()
    latest = {row.account: row.balance for row in spark.sql(_LATEST, balances=written).collect()}
    everything = read_topic(spark, bootstrap_servers, balances_topic, "read_uncommitted").count()
    return Finding(
        transfers=audited.visible_records,
        accounts=len(latest),
        total=sum(latest.values()),
        batches=written.select("batch").distinct().count(),
        hidden=everything - written.count(),
        faults=(
            *map(str, audited.faults),
            *faults_of_batches(spark, written),
            *_faults_of_accounts(latest, truth),
        ),
    )


def _parsed(records: DataFrame) -> DataFrame:
    columns = f.from_json(f.col("value").cast("string"), SCHEMA).alias("of")
    return records.select("partition", "offset", columns).select("partition", "offset", "of.*")


def faults_of_batches(spark: SparkSession, written: DataFrame) -> list[str]:
    """Return faults for batches of balances that are there twice, or in part."""
    changes = spark.sql(_CHANGES, balances=written, opening=OPENING_BALANCE)
    repeated = spark.sql(_REPEATED, changes=changes).collect()
    torn = spark.sql(_TORN, changes=changes).collect()
    found = []
    if repeated:
        found.append(f"{len(repeated)} balances written again, the first: {repeated[0]}")
    if torn:
        found.append(f"{len(torn)} batches not whole, the first: {torn[0]}")
    return found


def _faults_of_accounts(latest: dict[int, int], truth: list[int]) -> list[str]:
    wrong = [n for n, balance in enumerate(truth) if latest.get(n, OPENING_BALANCE) != balance]
    if not wrong:
        return []
    account = wrong[0]
    return [
        f"{len(wrong)} of {ACCOUNTS} balances are wrong, the first: account {account} has "
        f"{latest.get(account)}, not {truth[account]}"
    ]
