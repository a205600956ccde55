"""One disk soak: everyone at work, the broker killed, the disk full more than once; the verdict."""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from compat_tests.admin import create_topic
from compat_tests.brokers import BrokerFailed, MagnetarBroker
from compat_tests.churn.run import DISTURBANCES as CHURN_DISTURBANCES
from compat_tests.churn.run import churn
from compat_tests.disk_soak.administrator import Administrator
from compat_tests.disk_soak.checker import Found, Written, lost, unwanted
from compat_tests.disk_soak.filling import Filling
from compat_tests.disk_soak.memory import Memory
from compat_tests.disk_soak.plan import TOPIC_SETTINGS, WRITERS, BulkJob, jobs
from compat_tests.disk_soak.record import SIZE_BYTES
from compat_tests.pipeline.disturber import Disturbances, Verdict
from compat_tests.pipeline.supervisor import Report, Supervised
from compat_tests.soak.run import DISTURBANCES as TRANSACTION_DISTURBANCES
from compat_tests.soak.run import Soak

KILL_EVERY_S = 20.0
TIMES_FULL = 2
#: When the disk is full for the first time, and how long it stays so: parts of the run.
_FIRST_FULL, _FULL_FOR = 0.33, 0.035
#: Long enough to be killed and started on a full disk.
_FULL_FOR_MIN_S = 25.0
_TICK_S = 0.2
_TOLD_EVERY_S = 10.0
_READ_WITHIN_S = 180.0
_STABLE_WITHIN_S = 60.0
#: What the others do less often than alone: so many clients fill a small machine.
_RARER, _PAUSE_MS = 3, 500
_OTHERS_LONGER_S = 20.0


class BulkProcess(Supervised):
    """A writer or a reader of the bulk topic. A reader is never started again: it has its place."""

    module = "compat_tests.disk_soak.worker"
    silence_s_max = 120.0

    def __init__(
        self, job: BulkJob, report: Report, fold: Callable[[Mapping[str, Any]], None]
    ) -> None:
        super().__init__(job, report)
        self._fold = fold
        self._guard = threading.Lock()

    def on_event(self, event: dict[str, Any]) -> None:
        self.counters[event["event"]] += 1
        if event["event"] in ("refused", "ended") and not self._stopping:
            self._report(f"{self.job.worker} {event['event']}: {event['why']}")
        with self._guard:
            self._fold(event)


class Bulk:
    """The bulk topic, its writers and its readers."""

    def __init__(self, bootstrap: str, records_per_s: float, report: Report) -> None:
        self.run = uuid.uuid4().hex[:6]
        self.topic = f"bulk-{self.run}"
        self.written = Written()
        self.found: list[Found] = []
        self.writers: list[BulkProcess] = []
        self.readers: list[BulkProcess] = []
        self._guard = threading.Lock()
        for job in jobs(bootstrap, self.run, records_per_s):
            if job.partition >= 0:
                self.writers.append(BulkProcess(job, report, self._on_written))
                continue
            keeps_place = not job.kind.startswith("java")
            found = Found(job.worker, not job.worker.endswith("uncommitted"), keeps_place)
            self.found.append(found)
            self.readers.append(BulkProcess(job, report, found.on_event))

    def start(self, bootstrap: str) -> None:
        create_topic(bootstrap, self.topic, len(WRITERS), TOPIC_SETTINGS)
        for each in (*self.readers, *self.writers):
            each.start()

    def keep_running(self) -> None:
        for each in (*self.readers, *self.writers):
            each.keep_running()

    def stop(self) -> None:
        for each in (*self.writers, *self.readers):
            each.stop()

    def finish(self) -> list[str]:
        """End the writers, let the readers come to the end, and judge."""
        for writer in self.writers:
            writer.stop()
        deadline = time.monotonic() + _READ_WITHIN_S
        while any(lost(self.written, found) for found in self.found):
            if time.monotonic() > deadline:
                break
            time.sleep(1)  # The readers go on reading.
        for reader in self.readers:
            reader.stop()
        faults = []
        for found in self.found:
            faults += [*found.faults, *lost(self.written, found), *unwanted(self.written, found)]
        started_again = [each.job.worker for each in self.readers if each.counters["starts"]]
        return [*faults, *(f"{name} ended by itself" for name in started_again)]

    def told(self) -> str:
        """Say how many records each writer has written for sure."""
        with self._guard:
            return f"records of {self.written.counts()}"

    def _on_written(self, event: Mapping[str, Any]) -> None:
        with self._guard:
            self.written.on_event(event)


class Beside(threading.Thread):
    """A soak of its own beside the others, to its verdict."""

    def __init__(self, name: str, work: Callable[[], Verdict]) -> None:
        super().__init__(name=name, daemon=True)
        self.verdict = Verdict([f"{name} came to no verdict"], "not finished")
        self._work = work

    def run(self) -> None:
        try:
            self.verdict = self._work()
        except (BrokerFailed, TimeoutError, OSError, AssertionError) as error:
            self.verdict = Verdict([f"{type(error).__name__}: {error}"], "not finished")


def disk_soak(
    broker: MagnetarBroker, disk: Path, disk_bytes: int, duration_s: float, report: Report
) -> Verdict:
    """Run on a started broker whose data directory lies on `disk`, of `disk_bytes`."""
    rate = disk_bytes / SIZE_BYTES / (duration_s * _FIRST_FULL)
    bulk = Bulk(broker.bootstrap, rate, report)
    full_for_s = max(_FULL_FOR_MIN_S, duration_s * _FULL_FOR)
    filling = Filling(disk, bulk.topic, len(WRITERS), full_for_s, report)
    administrator = Administrator(broker.bootstrap, bulk.run)
    beside = _others(broker, duration_s, report)
    memory = Memory()
    kills = 0
    try:
        bulk.start(broker.bootstrap)
        administrator.start()
        for each in beside:
            each.start()
        kills = _disturb(broker, bulk, filling, memory, duration_s, report)
        administrator.end()
        faults = bulk.finish()
        for each in beside:
            each.join()
    finally:
        bulk.stop()
    for each in beside:
        faults += [f"{each.name}: {fault}" for fault in each.verdict.faults]
    if filling.times_resumed < TIMES_FULL:
        faults.append(f"the disk was full and free again {filling.times_resumed} times")
    grown, told = memory.judge(duration_s)
    summary = (
        f"bulk {bulk.told()}, the disk full {filling.times_full}"
        f" times, {kills} kills of the broker, {told}; topics administered:"
        f" {administrator.topics_done}, given up: {administrator.topics_left}"
    )
    others = "\n".join(f"{each.name}: {each.verdict.summary}" for each in beside)
    return Verdict([*faults, *administrator.faults, *grown], f"{summary}\n{others}")


def _others(broker: MagnetarBroker, duration_s: float, report: Report) -> list[Beside]:
    """Return the soaks of transactions and of groups; they leave the broker alone."""

    def named(name: str) -> Report:
        return lambda line: report(f"{name}: {line}")

    transactions = Soak(
        broker, _clients_only(TRANSACTION_DISTURBANCES), named("transactions"), _PAUSE_MS
    )
    # They end when the broker has been killed, and has come back, for the last time.
    duration_s += _OTHERS_LONGER_S
    return [
        Beside("transactions", lambda: transactions.run(duration_s)),
        Beside(
            "groups",
            lambda: churn(
                broker,
                _clients_only(CHURN_DISTURBANCES),
                duration_s,
                named("groups"),
                _STABLE_WITHIN_S,
            ),
        ),
    ]


def _clients_only(usual: Disturbances) -> Disturbances:
    """Return the same for a busier machine, without kills of the broker."""
    return Disturbances(
        math.inf,
        _RARER * usual.pause_every_s,
        _RARER * usual.kill_every_s,
        usual.pause_s,
    )


def _disturb(
    broker: MagnetarBroker,
    bulk: Bulk,
    filling: Filling,
    memory: Memory,
    duration_s: float,
    report: Report,
) -> int:
    """Kill the broker every 20 s until the time is over; return how often. Raises BrokerFailed."""
    began_at = time.monotonic()
    kills, told_at = 0, began_at
    kill_at = began_at + KILL_EVERY_S
    while (elapsed_s := time.monotonic() - began_at) < duration_s:
        time.sleep(_TICK_S)  # The clients work.
        if broker.returncode is not None:
            raise BrokerFailed(f"it ended by itself with {broker.returncode}")
        memory.sample(elapsed_s, broker.pid)
        if time.monotonic() > kill_at:
            broker.restart(clean=False)
            kills += 1
            kill_at = time.monotonic() + KILL_EVERY_S
        bulk.keep_running()
        filling.look(broker.bootstrap)
        if time.monotonic() > told_at + _TOLD_EVERY_S:
            told_at = time.monotonic()
            report(f"{bulk.told()}; disk {filling.used_share():.0%} used, {kills} kills")
    return kills
