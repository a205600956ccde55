"""One churn: everybody reads, comes, goes, is killed and stopped, and so is the broker; then the
verdict of what members told. What the coordinator wrote is judged by `tools.group_history`.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

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
from compat_tests.brokers import Broker, BrokerFailed, MagnetarBroker
from compat_tests.churn.coverage import Coverage, Place, gaps
from compat_tests.churn.plan import PARTITIONS, TOPICS, ChurnJob, jobs, topics
from compat_tests.pipeline.supervisor import Report, Supervised

#: After the last change a group is stable so soon.
STABLE_WITHIN_S = 10.0
_READY_WITHIN_S = 30.0
_READ_WITHIN_S = 60.0
_TOLD_EVERY_S = 10.0
#: A stopped process sleeps past its sessions, most times.
_PAUSE_S = (1.0, 6.0)
_ANSWER_S = 5.0


@dataclass(frozen=True)
class Disturbances:
    """How often each happens, and how many records a second are written."""

    broker_kill_every_s: float = 30.0
    process_pause_every_s: float = 7.0
    process_kill_every_s: float = 5.0
    records_per_s: int = 300


class Verdict(NamedTuple):
    """Empty `faults` is a pass; each is a sentence with a witness."""

    faults: list[str]
    summary: str


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
    ) -> None:
        self.broker = broker
        self.disturbances = disturbances
        self.report = report
        self.name = uuid.uuid4().hex[:6]
        self.ends: dict[Place, int] = {}
        self._duration_s = duration_s
        self._coverages: dict[str, Coverage] = defaultdict(Coverage)
        self._members: Counter[str] = Counter()
        self._processes: list[Process] = []
        leaves_until_s = time.time() + duration_s
        for job in jobs(broker.bootstrap, self.name, leaves_until_s, new_protocol=new_protocol):
            self._members[job.group] += job.members
            self._processes.append(Process(job, report, self._coverages[job.group]))
        self._counters: Counter[str] = Counter()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._ticket = itertools.count()
        self._stable_after_s: dict[str, float] = {}

    def run(self) -> Verdict:
        for topic in topics(self.name):
            create_topic(self.broker.bootstrap, topic, PARTITIONS)
        writer = _Writer(self.broker.bootstrap, self.name, self.disturbances.records_per_s)
        try:
            for process in self._processes:
                process.start()
            writer.start()
            self._disturb(self._duration_s)
            self._calm()
            faults = self._await_stable()
            self.ends = writer.finish()
            faults += self._await_read()
        finally:
            writer.cancel()
            for process in self._processes:
                process.stop()
        return Verdict(faults, self._summary())

    # Disturbing

    def _disturb(self, duration_s: float) -> None:
        """Keep everybody running, and do to them what is due, for so long."""
        began_at = time.monotonic()
        every = self.disturbances
        self._repeat(every.broker_kill_every_s, self._kill_broker)
        self._repeat(every.process_pause_every_s, self._pause_a_process)
        self._repeat(every.process_kill_every_s, self._kill_a_process)
        self._repeat(_TOLD_EVERY_S, self._tell)
        while time.monotonic() < began_at + duration_s:
            self._tick()
            while self._due and self._due[0][0] <= time.monotonic():
                heapq.heappop(self._due)[2]()

    def _tick(self) -> None:
        for process in self._processes:
            process.keep_running()
        if isinstance(self.broker, MagnetarBroker) and self.broker.returncode is not None:
            raise BrokerFailed(f"it ended by itself with {self.broker.returncode}")
        time.sleep(0.05)

    def _after(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + delay_s, next(self._ticket), action))

    def _repeat(self, every_s: float, action: Callable[[], None]) -> None:
        def again() -> None:
            action()
            self._after(every_s, again)

        self._after(every_s, again)

    def _kill_broker(self) -> None:
        self._counters["broker kills"] += 1
        self.broker.restart(clean=False)

    def _pause_a_process(self) -> None:
        self._counters["pauses"] += 1
        paused = random.choice(self._processes)
        paused.pause()
        self._after(random.uniform(*_PAUSE_S), paused.resume)

    def _kill_a_process(self) -> None:
        self._counters["kills"] += 1
        random.choice(self._processes).kill()

    def _tell(self) -> None:
        told: Counter[str] = Counter()
        for process in self._processes:
            told.update(process.counters)
        read = sum(coverage.read_count() for coverage in self._coverages.values())
        done = ", ".join(f"{count} {what}" for what, count in self._counters.items())
        self.report(f"{read} records read, {told['left']} members left by themselves; {done}")

    # Ending

    def _calm(self) -> None:
        """Nobody is disturbed any more; every process runs, and its members are about to join."""
        for process in self._processes:
            process.resume()
        deadline = time.monotonic() + _READY_WITHIN_S
        while not all(process.is_ready for process in self._processes):
            self._tick()
            if time.monotonic() > deadline:
                raise TimeoutError("not every process is back")

    def _await_stable(self) -> list[str]:
        """Return what is wrong with groups that do not settle in time."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap, "log_level": 0})
        began_at = time.monotonic()
        missing: dict[str, str] = dict.fromkeys(self._members, "was never described")
        while missing and time.monotonic() < began_at + STABLE_WITHIN_S:
            self._tick()
            for group in list(missing):
                missing[group] = _unsettled(admin, group, self._members[group])
                if not missing[group]:
                    del missing[group]
                    self._stable_after_s[group] = time.monotonic() - began_at
        return [
            f"{group} is not stable {STABLE_WITHIN_S:.0f} s after the last change: {why}"
            for group, why in missing.items()
        ]

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
            self._tick()
            time.sleep(0.2)

    def _summary(self) -> str:
        done = ", ".join(f"{count} {what}" for what, count in self._counters.items())
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
            f"{done}; stable: {stable or 'none'}"
        )


class _Writer(threading.Thread):
    """Writes steadily; what is written for sure is what the partitions hold at the end."""

    def __init__(self, bootstrap: str, run: str, records_per_s: int) -> None:
        super().__init__(daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "log_level": 0})
        self._address = bootstrap
        self._places = [(topic, index) for topic in topics(run) for index in range(PARTITIONS)]
        self._records_per_s = records_per_s
        self._ended = threading.Event()
        self._acknowledged: Counter[Place] = Counter()

    def run(self) -> None:
        for number in itertools.count():
            if self._ended.wait(1 / self._records_per_s):
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
