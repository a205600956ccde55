"""Drivers of one query that get in each other's way, and what others have left of a batch.

A driver that is stopped somewhere in its commit, replaced, and goes on; votes of a run that named
its tasks otherwise. Whatever they are told, each row is visible once.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from compat_tests import open_transactions
from compat_tests.brokers import Broker
from compat_tests.client import TIMEOUT_S
from compat_tests.command_line import printed
from compat_tests.confluent_client import producer
from compat_tests.conftest import MakeTopic, StartBroker
from compat_tests.frame_proxy import Fault, FrameProxy
from compat_tests.pipeline.verdict import read_all
from compat_tests.raw import Connection
from compat_tests.sink_crashes.nursery import Job, Nursery, Outcome
from compat_tests.sink_crashes.roles import Task
from magnetar.spark.task import CHILDREN_MAX

pytestmark = pytest.mark.magnetar_only(reason="it has joint transactions")
PARTITIONS = 2
#: Transactions that are begun by requests under way at the same time; they divide CHILDREN_MAX.
CHILDREN_AT_ONCE = 200
#: Of each task of a batch.
ROWS: tuple[list[tuple[str, int]], ...] = ([("a", 0), ("b", 1)], [("c", 0)], [])
SEPARATOR = "joint.transactions.separator"
_NO_OTHER_SEPARATOR = "over nodes a start with another separator is refused: docs/not_supported.md"


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


class Run(NamedTuple):
    """One run of the query that is named after its topic."""

    nursery: Nursery
    bootstrap: str
    topic: str
    name: str

    @property
    def options(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.bootstrap,
            "topic": self.topic,
            "queryId": self.topic,
        }

    def write(self) -> list[bytes]:
        """Return what the tasks of batch 0 say when they have voted."""
        planned = self.nursery.start("plan", self.options, self.name).wait()
        assert planned.kind == "ok", planned
        jobs = [
            self.nursery.start("write", planned.value, Task("query", self.name, 0, task, 0), rows)
            for task, rows in enumerate(ROWS)
        ]
        outcomes = [job.wait() for job in jobs]
        assert all(outcome.kind == "ok" for outcome in outcomes), outcomes
        return [outcome.value for outcome in outcomes]

    def commit(self, messages: list[bytes]) -> Job:
        return self.nursery.start("commit", self.options, self.name, messages, 0)

    def abort(self) -> Job:
        """Give up batch 0 without a word of its tasks, as a driver whose tasks were killed."""
        return self.nursery.start("abort", self.options, self.name, [None] * len(ROWS), 0)

    def visible(self) -> list[bytes]:
        found = read_all(self.bootstrap, self.topic, PARTITIONS, "read_committed")
        return sorted(value for _, _, _, value in found)


@pytest.mark.parametrize(
    ("api_key", "nth", "outcome"),
    [
        pytest.param(9, 2, "refused", id="its record is read"),
        pytest.param(65, 2, "refused", id="other votes are looked for"),
        pytest.param(25, 1, "refused", id="the votes are sealed"),
        pytest.param(28, 1, "refused", id="the batch is recorded"),
        pytest.param(66, 1, "refused", id="the votes are listed"),
        pytest.param(65, 3, "refused", id="the votes are compared"),
        pytest.param(26, 1, "ok", id="the batch is decided"),
    ],
)
def test_a_driver_that_was_stopped_and_replaced_adds_nothing(
    broker: Broker, topic: MakeTopic, nursery: Nursery, api_key: int, nth: int, outcome: str
) -> None:
    target = topic("stopped", partitions=PARTITIONS)
    with FrameProxy(broker.bootstrap, broker.node_count) as proxy:
        old = Run(nursery, proxy.bootstrap, target, "old")
        new = Run(nursery, broker.bootstrap, target, "new")
        messages = old.write()
        is_known, is_stopped = threading.Event(), threading.Event()

        def stop() -> None:
            is_known.wait()
            os.kill(stopped.pid, signal.SIGSTOP)
            is_stopped.set()

        proxy.on(Fault.AFTER, api_key, every=nth, action=stop)
        stopped = old.commit(messages)
        is_known.set()
        assert is_stopped.wait(timeout=60), stopped.wait()
        replaced = new.commit(new.write()).wait()
        os.kill(stopped.pid, signal.SIGCONT)
        assert (stopped.wait().kind, replaced.kind) == (outcome, "ok")
    assert new.visible() == [b"a", b"b", b"c"]


def test_a_driver_that_gives_up_leaves_the_tasks_of_its_successor_alone(
    broker: Broker, topic: MakeTopic, nursery: Nursery
) -> None:
    """And it ends its own, which would hold back readers until they expire."""
    target = topic("dying", partitions=PARTITIONS)
    old, new = (Run(nursery, broker.bootstrap, target, name) for name in ("01d", "2e3"))
    old.write()
    messages = new.write()
    assert old.abort().wait().kind == "ok"
    voted = printed(
        broker, "transactions", "list", "--state", "Voted", "--pattern", f"{target}~>.*"
    )
    assert len(voted) == 2 and all(".2e3." in each["transactional_id"] for each in voted)
    assert new.commit(messages).wait().kind == "ok"
    assert new.visible() == [b"a", b"b", b"c"]


def test_a_batch_job_that_is_taken_for_a_repetition_says_so(
    broker: Broker, topic: MakeTopic, nursery: Nursery
) -> None:
    target = topic("jobs", partitions=PARTITIONS)
    run = Run(nursery, broker.bootstrap, target, "")
    options = {**run.options, "batchId": "7"}

    def job(rows: list[tuple[str, int]]) -> Outcome:
        planned = nursery.start("plan_job", options).wait()
        written = nursery.start("write", planned.value, Task(None, "", 0, 0, 0), rows).wait()
        return nursery.start("commit_job", planned.value, [written.value]).wait()

    assert job([("a", 0)]) == Outcome("ok", [])
    outcome = job([("b", 0)])
    assert outcome.kind == "ok"
    (told,) = outcome.value
    assert f"batch 7 of queryId '{target}' was written before, with 1 rows" in told
    refused = job([("b", 0), ("c", 1)])
    assert refused.kind == "refused" and "this is another job" in refused.value
    assert run.visible() == [b"a"]


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_a_continuous_stream_is_refused(
    broker: Broker, topic: MakeTopic, nursery: Nursery, guarantee: str
) -> None:
    """Spark runs no task of it and commits its epochs all the same: nothing is ever written."""
    run = Run(nursery, broker.bootstrap, topic("continuous"), "")
    options = {**run.options, "deliveryGuarantee": guarantee}
    refused = nursery.start("commit", options, "", [None, None], 0).wait()
    assert refused.kind == "refused"
    assert "trigger(continuous=...) is not supported" in refused.value


def test_a_task_that_takes_longer_than_its_transaction_may_says_so(
    broker: Broker, topic: MakeTopic, nursery: Nursery
) -> None:
    target = topic("slow", partitions=PARTITIONS)
    run = Run(nursery, broker.bootstrap, target, "only")
    options = {**run.options, "kafka.transaction.timeout.ms": "1000"}
    planned = nursery.start("plan", options, "only").wait()
    task = Task("query", "only", 0, 0, 0)
    slow = nursery.start("write", planned.value, task, [("a", 0), ("b", 0)], 3.0).wait()
    assert slow.kind == "refused"
    told = re.search(r"took (\d+) ms, .*kafka\.transaction\.timeout\.ms", slow.value)
    assert told is not None and int(told[1]) >= 1000, slow.value
    assert run.visible() == []


@pytest.mark.timeout(900)  # 20,000 requests
def test_more_tasks_than_a_broker_takes_are_told_so(
    own_broker: Broker, topic_on: MakeTopic, nursery: Nursery
) -> None:
    """They would wait for the decision, which waits for them: the driver for all its tasks."""
    target = topic_on(own_broker, "many", partitions=PARTITIONS)
    with Connection(own_broker.bootstrap) as connection:
        for first in range(0, CHILDREN_MAX, CHILDREN_AT_ONCE):
            children = [f"{target}~>0.{first + each}" for each in range(CHILDREN_AT_ONCE)]
            open_transactions.begin(connection, children, target, timeout_ms=900_000)
    run = Run(nursery, own_broker.bootstrap, target, "only")
    options = {**run.options, "kafka.message.timeout.ms": "3000"}
    planned = nursery.start("plan", options, "only").wait()
    for partition in (0, CHILDREN_MAX):
        task = Task("query", "only", 0, partition, 0)
        refused = nursery.start("write", planned.value, task, [("a", 0)]).wait()
        assert refused.kind == "refused"
        assert f"a broker takes {CHILDREN_MAX} at once" in refused.value


def test_a_broker_that_allows_only_short_transactions_is_written_to(
    broker_kind: str, start_broker: StartBroker, topic_on: MakeTopic, nursery: Nursery
) -> None:
    broker = start_broker(broker_kind, {"transaction.max.timeout.ms": "30000"})
    run = Run(nursery, broker.bootstrap, topic_on(broker, "short", partitions=PARTITIONS), "only")
    outcome = run.commit(run.write()).wait()
    assert outcome.kind == "ok", outcome
    assert run.visible() == [b"a", b"b", b"c"]


@pytest.mark.one_node(_NO_OTHER_SEPARATOR)
def test_a_query_that_votes_for_somebody_else_is_refused(
    broker_kind: str, start_broker: StartBroker, topic_on: MakeTopic, nursery: Nursery
) -> None:
    """Its id was a child's at the time of another separator: what it commits is a vote."""
    broker = start_broker(broker_kind, {SEPARATOR: "/"})
    target = topic_on(broker, "voter", partitions=PARTITIONS)
    client = producer(broker.bootstrap, transactional_id=f"parent/{target}")
    client.init_transactions(TIMEOUT_S)
    del broker.settings[SEPARATOR]
    broker.restart(clean=True)
    run = Run(nursery, broker.bootstrap, target, "only")
    options = {**run.options, "queryId": f"parent/{target}"}
    refused = nursery.start("plan", options, "0").wait()
    assert refused.kind == "refused" and "votes for 'parent'" in refused.value, refused


@pytest.mark.one_node(_NO_OTHER_SEPARATOR)
def test_votes_of_the_time_of_another_separator_are_not_committed(
    own_broker: Broker, topic_on: MakeTopic, nursery: Nursery
) -> None:
    """They are still those of the query, and wait for its decision."""
    target = topic_on(own_broker, "separated", partitions=PARTITIONS)
    Run(nursery, own_broker.bootstrap, target, "killed").write()
    own_broker.settings[SEPARATOR] = "/"
    own_broker.restart(clean=False)
    again = Run(nursery, own_broker.bootstrap, target, "again")
    outcome = again.commit(again.write()).wait()
    assert outcome.kind == "ok", outcome
    assert again.visible() == [b"a", b"b", b"c"]
