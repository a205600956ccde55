"""Drivers of one query that get in each other's way, and what others have left of a batch.

A driver that is stopped somewhere in its commit, replaced, and goes on; votes of a run that named
its tasks otherwise. Whatever they are told, each row is visible once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from compat_tests.brokers import Broker
from compat_tests.client import TIMEOUT_S
from compat_tests.confluent_client import producer
from compat_tests.conftest import MakeTopic, StartBroker
from compat_tests.frame_proxy import Fault, FrameProxy
from compat_tests.pipeline.verdict import read_all
from compat_tests.sink_crashes.nursery import Job, Nursery
from compat_tests.sink_crashes.roles import Task

pytestmark = pytest.mark.magnetar_only(reason="it has joint transactions")
PARTITIONS = 2
#: Of each task of a batch.
ROWS: tuple[list[tuple[str, int]], ...] = ([("a", 0), ("b", 1)], [("c", 0)], [])
SEPARATOR = "joint.transactions.separator"


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
        planned = self.nursery.start("plan", self.options).wait()
        assert planned.kind == "ok", planned
        jobs = [
            self.nursery.start("write", planned.value, Task("query", self.name, 0, task, 0), rows)
            for task, rows in enumerate(ROWS)
        ]
        outcomes = [job.wait() for job in jobs]
        assert all(outcome.kind == "ok" for outcome in outcomes), outcomes
        return [outcome.value for outcome in outcomes]

    def commit(self, messages: list[bytes]) -> Job:
        return self.nursery.start("commit", self.options, messages, 0)

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
    with FrameProxy(broker.bootstrap) as proxy:
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


def test_a_broker_that_allows_only_short_transactions_is_written_to(
    broker_kind: str, start_broker: StartBroker, topic_on: MakeTopic, nursery: Nursery
) -> None:
    broker = start_broker(broker_kind, {"transaction.max.timeout.ms": "30000"})
    run = Run(nursery, broker.bootstrap, topic_on(broker, "short", partitions=PARTITIONS), "only")
    outcome = run.commit(run.write()).wait()
    assert outcome.kind == "ok", outcome
    assert run.visible() == [b"a", b"b", b"c"]


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
    refused = nursery.start("plan", options).wait()
    assert refused.kind == "refused" and "votes for 'parent'" in refused.value, refused


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
