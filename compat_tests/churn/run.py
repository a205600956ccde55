"""One churn: members read, come, go, are killed and stopped, and so is the broker.

The verdict is by what the members told, and by what the coordinator wrote (`history`).
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Collection
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from compat_tests.admin import create_topic
from compat_tests.brokers import Broker
from compat_tests.churn.coverage import Coverage, Place, gaps
from compat_tests.churn.history import read_history
from compat_tests.churn.plan import (
    CONSUMER_GROUP_HEARTBEAT,
    PARTITIONS,
    TOPICS,
    ChurnJob,
    jobs,
    topics,
)
from compat_tests.pipeline.disturber import Disturbances, Disturber, Verdict
from compat_tests.pipeline.supervisor import Report, Supervised
from compat_tests.raw import Connection

DISTURBANCES = Disturbances(
    broker_kill_every_s=30.0,
    pause_every_s=7.0,
    kill_every_s=5.0,
    # Past its members' sessions, most times.
    pause_s=(1.0, 6.0),
)
#: After the last change a group is stable so soon.
STABLE_WITHIN_S = 10.0
#: A member that is not back by then has a client that never will be (docs/clients.md): its process
#: is started again, as an operator would. What keeps a new one away as well is a fault.
_STUCK_AFTER_S = 20.0
_READY_WITHIN_S = 60.0
_READ_WITHIN_S = 60.0
_ANSWER_S = 20.0
_RECORDS_PER_S = 300


class Process(Supervised):
    """A process of members, and what it has told."""

    module = "compat_tests.churn.worker"
    silence_s_max = 30.0

    def __init__(self, job: ChurnJob, report: Report, coverage: Coverage) -> None:
        super().__init__(job, report)
        self.churn_job = job
        self.is_ready = False
        self.last_refusal = ""
        self._coverage = coverage
        self._guard = threading.Lock()

    def start(self) -> None:
        self.is_ready = False
        super().start()

    def on_event(self, event: dict[str, Any]) -> None:
        name = event["event"]
        self.counters[name] += 1
        if name == "read":
            with self._guard:
                for run in event["runs"]:
                    self._coverage.add(*run)
        elif name == "ready":
            self.is_ready = True
        elif name in ("refused", "ended"):
            self.last_refusal = event["why"]


class Churn:
    """Topics, members and disturber of one run on a started broker."""

    def __init__(
        self,
        broker: Broker,
        disturbances: Disturbances,
        report: Report,
        *,
        duration_s: float,
        new_protocol: bool,
        stable_within_s: float,
    ) -> None:
        self.broker = broker
        self.report = report
        self.name = uuid.uuid4().hex[:6]
        self.ends: dict[Place, int] = {}
        self._duration_s = duration_s
        self._stable_within_s = stable_within_s
        self._coverages: dict[str, Coverage] = defaultdict(Coverage)
        self._members: Counter[str] = Counter()
        self._processes: list[Process] = []
        leaves_until_s = time.time() + duration_s
        for job in jobs(broker.bootstrap, self.name, leaves_until_s, new_protocol=new_protocol):
            self._members[job.group] += job.members
            self._processes.append(Process(job, report, self._coverages[job.group]))
        self._disturber = Disturber(broker, self._processes, disturbances)
        self._started_again: list[str] = []
        self._stable_after_s: dict[str, float] = {}

    def run(self) -> Verdict:
        for topic in topics(self.name):
            create_topic(self.broker.bootstrap, topic, PARTITIONS)
        writer = _Writer(self.broker.bootstrap, self.name)
        try:
            for process in self._processes:
                process.start()
            writer.start()
            self._disturber.disturb(self._duration_s, self._tell)
            self._calm()
            faults = self._await_stable()
            self.ends = writer.finish()
            faults += self._await_read()
        finally:
            writer.cancel()
            for process in self._processes:
                process.stop()
        return Verdict(faults, self._summary())

    def _tell(self) -> None:
        told: Counter[str] = Counter()
        for process in self._processes:
            told.update(process.counters)
        read = sum(coverage.read_count() for coverage in self._coverages.values())
        self.report(
            f"{read} records read, {told['left']} members left by themselves; "
            f"{self._disturber.done()}"
        )

    # Ending

    def _calm(self) -> None:
        """Let every process run undisturbed, and wait until its members are about to join."""
        for process in self._processes:
            process.resume()
        deadline = time.monotonic() + _READY_WITHIN_S
        while not all(process.is_ready for process in self._processes):
            self._disturber.tick()
            if time.monotonic() > deadline:
                raise TimeoutError("not every process is back")

    def _await_stable(self) -> list[str]:
        """Return what is wrong with groups that do not settle in time."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap, "log_level": 0})
        began_at = time.monotonic()
        missing: dict[str, str] = dict.fromkeys(self._members, "was never described")
        is_patient = True
        while missing and (elapsed_s := time.monotonic() - began_at) < self._stable_within_s:
            self._disturber.tick()
            for group in list(missing):
                missing[group] = _unsettled(admin, group, self._members[group])
                if not missing[group]:
                    del missing[group]
                    self._stable_after_s[group] = elapsed_s
            if is_patient and elapsed_s > _STUCK_AFTER_S:
                is_patient = False
                self._start_again_who_is_not_in(admin, missing)
        return [
            f"{group} is not stable {self._stable_within_s:.0f} s after the last change: {why}"
            for group, why in missing.items()
        ]

    def _start_again_who_is_not_in(self, admin: AdminClient, groups: Collection[str]) -> None:
        for group in groups:
            described = admin.describe_consumer_groups([group])[group].result(_ANSWER_S)
            found = {member.client_id for member in described.members}
            for process in self._processes:
                job = process.churn_job
                if job.group == group and not found.issuperset(job.client_ids):
                    self._started_again.append(job.worker)
                    process.kill()

    def _await_read(self) -> list[str]:
        """Let the groups come to the end; return what they never read."""
        deadline = time.monotonic() + _READ_WITHIN_S
        faults: list[str] = []
        while True:
            faults = [
                fault
                for group, coverage in self._coverages.items()
                for fault in gaps(group, coverage, self.ends)
            ]
            if not faults or time.monotonic() > deadline:
                return faults
            self._disturber.tick()
            time.sleep(0.2)

    def _summary(self) -> str:
        left = sum(process.counters["left"] for process in self._processes)
        read = ", ".join(
            f"{group.rpartition('-')[0]} read {coverage.read_count()}"
            for group, coverage in self._coverages.items()
        )
        stable = ", ".join(
            f"{group.rpartition('-')[0]} after {after_s:.1f} s"
            for group, after_s in self._stable_after_s.items()
        )
        return (
            f"{sum(self.ends.values())} records written; {read}; {left} left by themselves, "
            f"{self._disturber.done()}; stable: {stable or 'none'}; "
            f"started again: {', '.join(self._started_again) or 'none'}"
        )


class _Writer(threading.Thread):
    """Writes steadily; what is written for sure is what the partitions hold at the end."""

    def __init__(self, bootstrap: str, run: str) -> None:
        super().__init__(daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "log_level": 0})
        self._address = bootstrap
        self._places = [(topic, index) for topic in topics(run) for index in range(PARTITIONS)]
        self._ended = threading.Event()
        self._acknowledged: Counter[Place] = Counter()

    def run(self) -> None:
        for number in itertools.count():
            if self._ended.wait(1 / _RECORDS_PER_S):
                return
            topic, partition = self._places[number % len(self._places)]
            self._producer.produce(
                topic, b"%d" % number, partition=partition, on_delivery=self._on_delivery
            )
            self._producer.poll(0)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            assert topic is not None and partition is not None and offset is not None
            place = topic, partition
            self._acknowledged[place] = max(self._acknowledged[place], offset + 1)

    def cancel(self) -> None:
        """Write no more."""
        self._ended.set()

    def finish(self) -> dict[Place, int]:
        """Write no more; return where the partitions end, which no acknowledgement lies beyond."""
        self.cancel()
        self.join()
        self._producer.flush(_READ_WITHIN_S)
        ends = _ends(self._address, self._places)
        assert all(ends[place] >= end for place, end in self._acknowledged.items())
        return ends


def _ends(bootstrap: str, places: list[Place]) -> dict[Place, int]:
    client = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "log_level": 0})
    try:
        return {
            place: client.get_watermark_offsets(TopicPartition(*place), _ANSWER_S)[1]
            for place in places
        }
    finally:
        client.close()


def _unsettled(admin: AdminClient, group: str, members: int) -> str:
    """Return what keeps the group from being stable with so many members; "" for nothing."""
    try:
        described = admin.describe_consumer_groups([group])[group].result(_ANSWER_S)
    except KafkaException as error:
        return str(error)
    state, found = described.state.name, len(described.members)
    owned = Counter(
        (each.topic, each.partition)
        for member in described.members
        for each in member.assignment.topic_partitions
    )
    if state != "STABLE" or found != members:
        return f"{state}, {found} of {members} members"
    if len(owned) < TOPICS * PARTITIONS:
        return f"{len(owned)} of {TOPICS * PARTITIONS} partitions are owned"
    return ""


def churn(
    broker: Broker,
    disturbances: Disturbances,
    duration_s: float,
    report: Report,
    stable_within_s: float = STABLE_WITHIN_S,
) -> Verdict:
    """Run one churn on a started broker, and judge it by its members and by the coordinator."""
    with Connection(broker.bootstrap) as connection:
        new_protocol = connection.serves(CONSUMER_GROUP_HEARTBEAT)
    verdict = Churn(
        broker,
        disturbances,
        report,
        duration_s=duration_s,
        new_protocol=new_protocol,
        stable_within_s=stable_within_s,
    ).run()
    history = read_history(broker.bootstrap, int(broker.settings["offsets.topic.num.partitions"]))
    wrote = f"{history.generations} generations, {history.reconciliations} reconciliations"
    faults = [*verdict.faults, *history.faults]
    if not history.generations or (new_protocol and not history.reconciliations):
        faults.append(f"the coordinator wrote no history: {wrote}")
    return Verdict(faults, f"{verdict.summary}; {wrote}")
