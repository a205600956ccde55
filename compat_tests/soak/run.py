"""One soak: everybody at work, the broker and its clients killed and stopped, then the verdict."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from compat_tests.admin import create_topic
from compat_tests.brokers import Broker
from compat_tests.pipeline.disturber import Disturbances, Disturber, Verdict
from compat_tests.pipeline.supervisor import Report, Supervised
from compat_tests.pipeline.verdict import read_all
from compat_tests.raw import Connection
from compat_tests.soak.checker import Copy, Visible, copy_faults, transaction_faults
from compat_tests.soak.entry import entry_of
from compat_tests.soak.histories import Transaction, fold, outcomes
from compat_tests.soak.plan import (
    COPIES_PARTITIONS,
    ENTRIES_PARTITIONS,
    GROUPS,
    PAUSE_MS,
    SoakJob,
    copiers,
    copies_topic,
    entries_topic,
    writers,
)

DISTURBANCES = Disturbances(
    broker_kill_every_s=20.0,
    pause_every_s=4.0,
    kill_every_s=7.0,
    # Past its transaction's and its session's timeout.
    pause_s=(3.5, 6.0),
)
#: One of several nodes is killed so often: what it leads is back in half a second.
NODE_DISTURBANCES = replace(DISTURBANCES, broker_kill_every_s=5.0)
#: After the last client has gone, every last stable offset reaches its high watermark so soon.
STABLE_WITHIN_S = 10.0
_COPIED_WITHIN_S = 120.0


class Participant(Supervised):
    """A client of the soak, with all it has told."""

    module = "compat_tests.soak.worker"
    silence_s_max = 60.0

    def __init__(self, job: SoakJob, report: Report) -> None:
        super().__init__(job, report)
        self.soak_job = job
        self.events: list[dict[str, Any]] = []
        self.last_error = ""

    def on_event(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self.counters[event["event"]] += 1
        if event["event"] == "ended":
            self.last_error = event["trace"]


class Soak:
    """Topics, participants and disturber of one run on a started broker."""

    def __init__(
        self,
        broker: Broker,
        disturbances: Disturbances,
        report: Report,
        pause_ms: int = PAUSE_MS,
    ) -> None:
        self.broker = broker
        self.report = report
        self.name = uuid.uuid4().hex[:6]
        everywhere = ",".join(broker.node_addresses)
        jobs = writers(everywhere, self.name, pause_ms)
        self.writers = [Participant(job, report) for job in jobs]
        self.copiers = [Participant(job, report) for job in copiers(everywhere, self.name)]
        self.faults: list[str] = []
        self._has_topics = False
        self._disturber = Disturber(broker, [*self.writers, *self.copiers], disturbances)

    def make_topics(self) -> None:
        """Make the topics. `run` does so too, but perhaps while something disturbs the broker."""
        self._has_topics = True
        create_topic(self.broker.bootstrap, entries_topic(self.name), ENTRIES_PARTITIONS)
        for group in range(GROUPS):
            create_topic(self.broker.bootstrap, copies_topic(self.name, group), COPIES_PARTITIONS)

    def run(self, duration_s: float) -> Verdict:
        """Disturb and judge; return what came of it."""
        if not self._has_topics:
            self.make_topics()
        try:
            for each in (*self.writers, *self.copiers):
                each.start()
            self._disturber.disturb(duration_s, self._tell)
            self._end(self.writers)
            self._await_stable([(entries_topic(self.name), ENTRIES_PARTITIONS)])
            visible = self._visible()
            self._await_copied(visible)
            self._end(self.copiers)
        finally:
            for each in (*self.writers, *self.copiers):
                each.stop()
        self._await_stable(self._all_topics())
        return self._judge(visible)

    def _tell(self) -> None:
        totals: Counter[str] = Counter()
        for each in self.writers:
            totals.update(each.counters)
        copied = sum(each.counters["committed"] for each in self.copiers)
        self.report(
            f"{totals['committed']} commits, {totals['aborted']} aborts, "
            f"{totals['fenced']} times fenced; {copied} commits of groups; "
            f"{self._disturber.done()}"
        )

    # Ending

    def _end(self, participants: Iterable[Participant]) -> None:
        for each in (*self.writers, *self.copiers):
            each.resume()
        for each in participants:
            each.stop()

    def _all_topics(self) -> list[tuple[str, int]]:
        copies = [(copies_topic(self.name, group), COPIES_PARTITIONS) for group in range(GROUPS)]
        offsets = int(self.broker.settings["offsets.topic.num.partitions"])
        return [
            (entries_topic(self.name), ENTRIES_PARTITIONS),
            *copies,
            ("__consumer_offsets", offsets),
        ]

    def _await_stable(self, topics: Iterable[tuple[str, int]]) -> None:
        """Wait until open transactions are aborted, by timeout at the latest: no writer is left."""
        behind = {(topic, index) for topic, count in topics for index in range(count)}
        began_at = time.monotonic()
        with ExitStack() as opened:
            connections = [
                opened.enter_context(Connection(address)) for address in self.broker.node_addresses
            ]
            while True:
                behind = {each for each in behind if _lag(connections, *each)}
                waited_s = time.monotonic() - began_at
                if not behind:
                    self.report(f"every last stable offset is at its end after {waited_s:.1f} s")
                    return
                if waited_s > STABLE_WITHIN_S:
                    break
                time.sleep(0.05)
            topic, index = min(behind)
            lag = _lag(connections, topic, index)
        self.faults.append(
            f"{len(behind)} last stable offsets did not reach their high watermark within "
            f"{STABLE_WITHIN_S:.0f} s; the first: {topic}-{index} is {lag} behind"
        )

    def _await_copied(self, visible: Iterable[Visible]) -> None:
        """Let the groups come to the end of what is visible."""
        ends = dict[int, int]()
        for each in visible:
            ends[each.partition] = max(each.offset + 1, ends.get(each.partition, 0))
        deadline = time.monotonic() + _COPIED_WITHIN_S
        groups = {each.soak_job.group for each in self.copiers}
        while groups := {group for group in groups if not self._has_copied(group, ends)}:
            if time.monotonic() > deadline:
                self.faults.append(
                    f"groups not at the end after {_COPIED_WITHIN_S:.0f} s: {sorted(groups)}"
                )
                return
            for copier in self.copiers:
                copier.keep_running()
            time.sleep(0.2)

    def _has_copied(self, group: str, ends: dict[int, int]) -> bool:
        consumer = Consumer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "group.id": group,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        topic = entries_topic(self.name)
        try:
            found = consumer.committed([TopicPartition(topic, each) for each in ends], 5.0)
        except KafkaException:
            return False
        finally:
            consumer.close()
        return all(each.offset >= ends[each.partition] for each in found)

    # Judging

    def _visible(self) -> list[Visible]:
        # A reader of many partitions gets them in any order.
        found = sorted(self._read(entries_topic(self.name), ENTRIES_PARTITIONS))
        return [
            Visible(partition, offset, entry_of(value)) for partition, offset, _, value in found
        ]

    def _read(self, topic: str, partitions: int) -> list[tuple[int, int, bytes, bytes]]:
        return read_all(self.broker.bootstrap, topic, partitions, "read_committed")

    def _judge(self, visible: list[Visible]) -> Verdict:
        transactions = fold(event for each in self.writers for event in each.events)
        faults = [*self.faults, *transaction_faults(transactions, visible)]
        if self._visible() != visible:
            faults.append("the entries changed after their writers had gone")
        copied = 0
        for group in range(GROUPS):
            found = self._read(copies_topic(self.name, group), COPIES_PARTITIONS)
            copied += len(found)
            copies = [_copy(key, value) for *_, key, value in found]
            faults += copy_faults(f"group {group}", visible, copies)
        faults += self._idle()
        return Verdict(faults, self._summary(transactions, visible, copied))

    def _idle(self) -> list[str]:
        """Return the writers' transactional ids, and the groups, that never committed anything."""
        commits: Counter[str] = Counter()
        errors: dict[str, str] = {}
        for each in self.writers:
            commits[each.soak_job.transactional_id] += each.counters["committed"]
            errors[each.soak_job.transactional_id] = each.last_error
        for each in self.copiers:
            commits[each.soak_job.group] += each.counters["committed"]
            errors[each.soak_job.group] = each.last_error
        return [
            f"nothing was ever committed by {name}: {errors[name]}"
            for name, count in commits.items()
            if not count
        ]

    def _summary(
        self, transactions: dict[str, Transaction], visible: list[Visible], copied: int
    ) -> str:
        ended = ", ".join(f"{count} {what}" for what, count in outcomes(transactions).items())
        return (
            f"{len(transactions)} transactions ({ended}), {len(visible)} visible records, "
            f"{copied} copies; {self._disturber.done()}, "
            f"{self._disturber.told_starts()}"
        )


def _copy(key: bytes, value: bytes) -> Copy:
    partition, offset = json.loads(key)
    return Copy(partition, offset, value)


def _lag(connections: Sequence[Connection], topic: str, partition: int) -> int:
    """Return how far the last stable offset is behind the high watermark; -1 where unknown.

    Of the nodes that `connections` lead to, the one that leads the partition says it.
    """
    for connection in connections:
        found = []
        for isolation in (0, 1):
            code, _, offset = connection.list_offset(
                topic, -1, partition=partition, isolation=isolation
            )
            if not code:
                found.append(offset)
        if len(found) == 2:
            return found[0] - found[1]
    return -1
