"""Spark's driver of one streaming query, and its checkpoint: batches in order, each repeated until
it was committed; tasks tried again, and speculated.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from multiprocessing.connection import wait

from compat_tests.client import TIMEOUT_S
from compat_tests.sink_crashes.nursery import Job, Nursery, Outcome
from compat_tests.sink_crashes.roles import Task

PARTITIONS = 3
TASKS = 3
_ROWS_MAX = 12
_ATTEMPTS_MAX = 4
_SPECULATED, _KILLED = 0.2, 0.5


class DriverEnded(Exception):
    """The query is over, and has to be started again from its checkpoint."""


def rows_of(batch_id: int, task: int) -> list[tuple[str, int]]:
    """Return the rows of a task: the same whenever it is repeated; of some none."""
    count = random.Random(f"{batch_id}/{task}").choice((0, 1, 5, _ROWS_MAX))
    return [(f"{batch_id}.{task}.{row}", row % PARTITIONS) for row in range(count)]


class Query:
    """A query with `options`. `at_phase` is called where Spark itself may be killed; it raises
    DriverEnded to do so.
    """

    def __init__(
        self,
        nursery: Nursery,
        options: dict[str, str],
        dice: random.Random,
        at_phase: Callable[[str], None],
    ) -> None:
        self.spark_query_id = str(uuid.uuid4())
        self.jobs: list[Job] = []
        """All that were ever started; orphans of a killed driver among them."""
        self.said: list[str] = []
        """What the sink refused."""
        self._nursery = nursery
        self._options = options
        self._dice = dice
        self._at_phase = at_phase
        self._run_id = ""

    def start(self) -> None:
        """A new run, as after a restart of the driver."""
        self._run_id = uuid.uuid4().hex

    def batch(self, batch_id: int) -> None:
        """Write a batch; returns when it is committed. DriverEnded: it may be, or not."""
        self._at_phase("plan")
        writer = self._must(self._start("plan", self._options, self._run_id).wait())
        messages = self._tasks(writer, batch_id)
        self._at_phase("commit")
        outcome = self._start("commit", self._options, self._run_id, messages, batch_id).wait()
        if outcome.kind == "refused":
            self._start("abort", self._options, self._run_id, messages, batch_id).wait()
        self._must(outcome)
        self._at_phase("commit log")

    def running(self) -> list[Job]:
        return [job for job in self.jobs if job.is_running]

    def _tasks(self, writer: bytes, batch_id: int) -> list[bytes]:
        """Return the message of the first attempt of each task that succeeds."""
        messages: dict[int, bytes] = {}
        attempts = Counter[int]()
        running: dict[Job, int] = {}

        def begin(task: int) -> None:
            place = Task(self.spark_query_id, self._run_id, batch_id, task, attempts[task])
            running[self._start("write", writer, place, rows_of(batch_id, task))] = task
            attempts[task] += 1

        for task in range(TASKS):
            begin(task)
            if self._dice.random() < _SPECULATED:
                begin(task)
        while len(messages) < TASKS:
            for job in _ended(running):
                task, outcome = running.pop(job), job.wait()
                self._at_phase("task")
                if outcome.kind == "ok":
                    messages.setdefault(task, outcome.value)
                elif task in messages or task in running.values():
                    continue
                elif attempts[task] < _ATTEMPTS_MAX:
                    begin(task)
                else:
                    self._fail(messages, batch_id, outcome)
        self._let_go(running)
        return [messages[task] for task in range(TASKS)]

    def _let_go(self, losers: Iterable[Job]) -> None:
        """Spark kills those whose task another attempt has done; not all of them hear it."""
        for loser in losers:
            if self._dice.random() < _KILLED:
                loser.kill()

    def _fail(self, messages: dict[int, bytes], batch_id: int, outcome: Outcome) -> None:
        listed = [messages.get(task) for task in range(TASKS)]
        self._start("abort", self._options, self._run_id, listed, batch_id).wait()
        self._must(outcome)

    def _start(self, role: str, *arguments: object) -> Job:
        job = self._nursery.start(role, *arguments)
        self.jobs.append(job)
        return job

    def _must(self, outcome: Outcome) -> bytes:
        if outcome.kind != "ok":
            if outcome.kind == "refused":
                self.said.append(outcome.value)
            raise DriverEnded(outcome.kind)
        value: bytes = outcome.value
        return value


def _ended(running: dict[Job, int]) -> list[Job]:
    by_connection = {job.connection: job for job in running}
    ready = wait(list(by_connection), timeout=TIMEOUT_S * 4)
    assert ready, "tasks work for too long"
    return [by_connection[each] for each in ready]  # type: ignore[index]  # what was given to wait
