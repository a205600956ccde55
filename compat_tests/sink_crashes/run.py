"""Random runs of a query while its driver, its tasks and the broker are killed, and the verdict.

A step of the protocol is a request of some API that passes the proxy. Before the request reaches
the broker, or before the answer reaches the client, a process is killed or the answer is lost.
Between two requests the driver itself is killed.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterable

from compat_tests.admin import create_topic
from compat_tests.brokers import Broker
from compat_tests.frame_proxy import Fault, FrameProxy
from compat_tests.pipeline.disturber import Verdict
from compat_tests.pipeline.supervisor import Report
from compat_tests.pipeline.verdict import read_all
from compat_tests.sink_crashes.nursery import Nursery
from compat_tests.sink_crashes.query import PARTITIONS, TASKS, DriverEnded, Query, rows_of

BATCHES = 4
#: Requests of tasks and of the driver: Produce, AddPartitionsToTxn and so on.
_STEPS = {
    "Produce": 0,
    "Metadata": 3,
    "OffsetFetch": 9,
    "FindCoordinator": 10,
    "InitProducerId": 22,
    "AddPartitionsToTxn": 24,
    "AddOffsetsToTxn": 25,
    "EndTxn": 26,
    "TxnOffsetCommit": 28,
    "DescribeConfigs": 32,
    "DescribeTransactions": 65,
    "ListTransactions": 66,
}
_PHASES = ("plan", "task", "commit", "commit log")
_SETTLED_WITHIN_S = 30.0
_RUN_S_MAX = 300.0


class CrashRun:
    """One query on a topic of its own, from a seed to a verdict."""

    def __init__(self, broker: Broker, proxy: FrameProxy, nursery: Nursery, seed: int) -> None:
        self.faults: list[str] = []
        self.done: Counter[str] = Counter()
        self._broker = broker
        self._proxy = proxy
        self._dice = random.Random(seed)
        self._topic = f"sink-{uuid.uuid4().hex[:8]}"
        self._at_broker = threading.Lock()
        self._dies_at: str | None = None
        self.query = Query(nursery, self._options(), self._dice, self._phase)

    def run(self) -> None:
        """Write all batches; `faults` then says what is wrong with the topic."""
        create_topic(self._broker.bootstrap, self._topic, PARTITIONS)
        written, ends_at = 0, time.monotonic() + _RUN_S_MAX
        while written < BATCHES and not self.faults:
            if time.monotonic() > ends_at:
                said = "; ".join(self.query.said[-3:])
                self.faults.append(f"batch {written} is not written in {_RUN_S_MAX} s: {said}")
                break
            self.query.start()
            try:
                while written < BATCHES:
                    self._disturb()
                    self.query.batch(written)
                    written += 1
                    self._proxy.clear()
                    self._judge(written, in_doubt=False)
            except DriverEnded as end:
                self.done[f"driver {end}"] += 1
                self._proxy.clear()
                self._judge(written, in_doubt=True)
                if self._dice.random() < 0.5:
                    self._end_orphans()
        self._end_orphans()

    # What goes wrong

    def _disturb(self) -> None:
        """Let one thing go wrong in the next batch, or nothing."""
        self._dies_at = None
        what = self._dice.choice(
            ("nothing", "driver", "process", "process", "broker", "broker", "answer")
        )
        if what == "nothing":
            return
        if what == "driver":
            self._dies_at = self._dice.choice(_PHASES)
            return
        step = self._dice.choice(list(_STEPS))
        # The driver takes most steps once, the tasks together several times.
        nth = self._dice.choice((1, 1, 2, TASKS + 1))
        if what == "answer":
            self._proxy.on(Fault.LOSE_ANSWER, _STEPS[step], every=nth)
            self.done[f"answer of {step} lost"] += 1
            return
        fault = self._dice.choice((Fault.BEFORE, Fault.AFTER))
        kill = self._restart_broker if what == "broker" else self._kill_process

        def act() -> None:
            kill()
            self.done[f"{what} killed {fault.name.lower()} {step}"] += 1

        self._proxy.on(fault, _STEPS[step], every=nth, action=act)

    def _restart_broker(self) -> None:
        with self._at_broker:
            self._broker.restart(clean=False)

    def _kill_process(self) -> None:
        if running := self.query.running():
            self._dice.choice(running).kill()

    def _phase(self, phase: str) -> None:
        if phase == self._dies_at:
            self._dies_at = None
            if phase == "commit" and self._dice.random() < 0.5:
                self._kill_process()
            raise DriverEnded(f"killed at {phase}")

    def _end_orphans(self) -> None:
        for job in self.query.running():
            job.kill()

    # The verdict

    def _judge(self, written: int, *, in_doubt: bool) -> None:
        """Compare what is visible with what was written: `written` batches, and perhaps one more,
        whole, which a driver that died has decided or not.
        """
        deadline = time.monotonic() + _SETTLED_WITHIN_S
        while True:
            with self._at_broker:
                visible = self._visible()
            wrong = difference(visible, written)
            if in_doubt and wrong:
                # What orphans have open hides what follows it, until it times out.
                wrong = difference(visible, written + 1)
            if not wrong or not in_doubt or time.monotonic() > deadline:
                self.faults.extend(f"{self._topic}: {each}" for each in wrong)
                return
            time.sleep(0.2)

    def _visible(self) -> dict[int, list[str]]:
        """Return the values of each partition, in the order of their offsets."""
        found: dict[int, list[str]] = {partition: [] for partition in range(PARTITIONS)}
        for partition, _, _, value in read_all(
            self._broker.bootstrap, self._topic, PARTITIONS, "read_committed"
        ):
            found[partition].append(value.decode())
        return found

    def _options(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self._proxy.bootstrap,
            "topic": self._topic,
            "queryId": self._topic,
            "brokerTimeoutMs": "20000",
            # What orphans leave open ends soon, and clients look often for a broker that was away.
            "kafka.transaction.timeout.ms": "8000",
            "kafka.message.timeout.ms": "8000",
            "kafka.reconnect.backoff.max.ms": "300",
        }


def crash_runs(broker: Broker, seeds: Iterable[int], report: Report) -> Verdict:
    """Do a run for each seed on a started broker, and judge them all."""
    faults: list[str] = []
    done: Counter[str] = Counter()
    count = 0
    with Nursery() as nursery, FrameProxy(broker.bootstrap, broker.node_count) as proxy:
        for seed in seeds:
            began_at = time.monotonic()
            one = CrashRun(broker, proxy, nursery, seed)
            one.run()
            count += 1
            done.update(one.done)
            faults.extend(f"seed {seed}: {fault}" for fault in one.faults)
            happened = ", ".join(f"{times} {what}" for what, times in one.done.items())
            verdict = "FAULT" if one.faults else "ok"
            report(f"{seed}: {verdict}, {time.monotonic() - began_at:.1f} s; {happened}")
    kinds = ", ".join(f"{times} {what}" for what, times in sorted(done.items()))
    return Verdict(faults, f"{count} runs of {BATCHES} batches; {kinds}")


def difference(visible: dict[int, list[str]], batches: int) -> list[str]:
    """Return what is lost, doubled, of no written batch, or out of order."""
    expected = Counter(
        value
        for batch in range(batches)
        for task in range(TASKS)
        for value, _ in rows_of(batch, task)
    )
    found = Counter(value for values in visible.values() for value in values)
    faults = [f"{value} is lost" for value in sorted(expected - found)]
    faults += [f"{value} is there {found[value]} times" for value in sorted(found - expected)]
    for partition, values in visible.items():
        order = [int(value.split(".")[0]) for value in values]
        if order != sorted(order):
            faults.append(f"partition {partition}: batches out of order: {order}")
    return faults
