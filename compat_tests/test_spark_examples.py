"""The examples of spark_examples, in short: each of them runs and finds what it is to find."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from compat_tests.spark import await_end
from magnetar.spark import register
from magnetar.testing import start_broker
from spark_examples import audit, backfill, ledger, ledger_check, sessionize
from spark_examples.change_events import events, sessions
from spark_examples.crew import Crew, Transaction
from spark_examples.exactly_once import audit as audit_of
from spark_examples.exactly_once import table_of
from spark_examples.ledger_query import Order, start_query
from spark_examples.pictures import draw_sessions
from spark_examples.running import Report, Setting, create_topic
from spark_examples.session import read_topic
from spark_examples.transfers import OPENING_BALANCE

pytestmark = pytest.mark.timeout(300)
RECORDS = "topic STRING, partition INT, offset LONG, writer STRING, transaction LONG, number LONG"
PNG = b"\x89PNG"


@pytest.fixture
def setting(spark_session: SparkSession, tmp_path: Path) -> Iterator[Setting]:
    """What an example runs in, with a broker of its own; the session knows the sink."""
    register(spark_session)
    with start_broker(tmp_path / "data") as broker:
        yield Setting(broker, tmp_path, Report(), tmp_path)


def transactions(**outcomes: str) -> list[Transaction]:
    """Make transactions of ten records each, in the order of their names' letters."""
    return [
        Transaction("w", ord(name) - ord("a"), *tens(name), outcome)
        for name, outcome in outcomes.items()
    ]


def tens(name: str) -> tuple[int, int]:
    first = 10 * (ord(name) - ord("a"))
    return first, first + 10


def test_the_audit_names_everything_that_exactly_once_forbids(spark_session: SparkSession) -> None:
    history = transactions(
        a="committed", b="committed", c="committed", d="aborted", e="unknown", f="unknown"
    )
    found = {name: list(range(*tens(name))) for name in "acdfz"}
    found["a"] += [5]
    found["c"] = [29, 20, 21, 22, 23, 24, 25, 26, 27, 28]
    found["f"].remove(57)
    numbers = [(ord(name) - ord("a"), number) for name in found for number in found[name]]
    rows = [("t", 0, offset, "w", *each) for offset, each in enumerate(numbers)]
    records = spark_session.createDataFrame(rows, RECORDS)
    audited = audit_of(records, table_of(spark_session, history))
    witnesses = {fault.kind: fault.witness for fault in audited.faults}
    assert witnesses == {
        "duplicated": "transaction 0 of w (committed, 10 records): 11 records, 10 different ones, "
        "the first in t-0 at 0",
        "lost": "transaction 1 of w (committed, 10 records): none of its records",
        "aborted, but visible": "transaction 3 of w (aborted, 10 records): 10 records, 10 different"
        " ones, the first in t-0 at 21",
        "partly visible": "transaction 5 of w (unknown, 10 records): 9 records, 9 different ones, "
        "the first in t-0 at 31",
        "visible, but never written": "transaction 25 of w (unknown to its writer): 10 records, "
        "10 different ones, the first in t-0 at 40",
        "out of order": "record 5 of w behind its 9 in t-0 at 10",
    }
    assert {fault.kind: fault.times for fault in audited.faults}["out of order"] == 2


def test_audit(spark_session: SparkSession, setting: Setting) -> None:
    size = audit.Size(2, transactions_each=15, transfers_each=20, kills=("writer", "broker"))
    history = audit.write(setting, size)
    found, hidden = audit.read_and_audit(spark_session, setting.broker.bootstrap_servers, history)
    assert audit.told(found, hidden)[-1].startswith("EXACTLY ONCE")
    assert sum(found.transactions.values()) == 30
    assert found.visible_records >= found.records["committed"] > 0


def test_ledger(spark_session: SparkSession, setting: Setting) -> None:
    """The job stops in the middle, its checkpoint stays, and the broker is killed."""
    bootstrap_servers = setting.broker.bootstrap_servers
    for topic in (ledger.TRANSFERS, ledger.BALANCES):
        create_topic(bootstrap_servers, topic, ledger.PARTITIONS)
    books = Order(
        bootstrap_servers=bootstrap_servers,
        transfers_topic=ledger.TRANSFERS,
        balances_topic=ledger.BALANCES,
        sink="magnetar",
        directory=str(setting.directory),
    )
    order = ledger.order_of(setting, ledger.Size(transfers_each=20, pause_s=0.0))
    for transactions_each in (5, 10):
        orders = replace(order, transactions=transactions_each)
        with Crew(orders, 2, setting.report) as crew:
            while crew.keep_running():
                time.sleep(0.05)
            crew.close_transactions()
            history = crew.history()
        setting.broker.kill()
        setting.broker.start()
        await_end(start_query(spark_session, books, availableNow=True))
    found = ledger_check.check(
        spark_session, bootstrap_servers, ledger.TRANSFERS, ledger.BALANCES, history
    )
    assert ledger.told(found)[-1].startswith("EXACTLY ONCE")
    assert (len(history), found.batches) == (20, 2)


def test_the_ledger_is_not_deceived(spark_session: SparkSession, setting: Setting) -> None:
    """A batch that is there twice, and one of which a half is missing."""
    schema = "partition INT, offset LONG, account INT, balance LONG, postings LONG, batch LONG"
    opening = OPENING_BALANCE
    whole = [(0, 0, 1, opening - 5, 1, 0), (0, 1, 2, opening + 5, 1, 0)]
    cases = {
        "written again": [*whole, (0, 2, 1, opening - 5, 1, 0)],
        "not whole": whole[:1],
    }
    for fault, rows in cases.items():
        written = spark_session.createDataFrame(rows, schema)
        (found,) = ledger_check.faults_of_batches(spark_session, written)
        assert fault in found
    written = spark_session.createDataFrame(whole, schema)
    assert ledger_check.faults_of_batches(spark_session, written) == []


def test_sessionize(spark_session: SparkSession, setting: Setting) -> None:
    bootstrap_servers = setting.broker.bootstrap_servers
    _, found = events()
    changes = found[:300]
    for topic in (sessionize.CHANGES, sessionize.SESSIONS):
        create_topic(bootstrap_servers, topic, sessionize.PARTITIONS)
    assert sessionize.write_events(bootstrap_servers, changes) == 100
    stream = sessionize.sessions_of(spark_session, bootstrap_servers, 250)
    queries = sessionize.start_queries(stream, setting.directory, bootstrap_servers, "magnetar")
    sessionize.await_queries(setting, queries)
    there = sessionize.read_back(spark_session, setting.directory, bootstrap_servers)
    expected = sessions(changes, sessionize.GAP_S)
    assert sessionize.faults(there, expected) == []
    assert sessionize.faults({"topic": [*expected, expected[0]]}, expected) != []
    assert draw_sessions(setting.directory, expected).read_bytes().startswith(PNG)


def test_backfill(spark_session: SparkSession, setting: Setting) -> None:
    bootstrap_servers = setting.broker.bootstrap_servers
    create_topic(bootstrap_servers, backfill.TOPIC, backfill.PARTITIONS)
    frame = backfill.lines(spark_session, 5_000)
    reader = backfill.write(setting, frame, ("broker",), frame.count())
    written = read_topic(spark_session, bootstrap_servers, backfill.TOPIC, "read_committed")
    assert backfill.faults(reader, frame, written) == []
    assert backfill.faults(reader, frame, written.union(written.limit(1))) != []
    assert (setting.directory / "backfill.png").read_bytes().startswith(PNG)
