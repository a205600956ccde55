"""One run from an empty broker to a verdict, with a kill at each of several points of progress."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from compat_tests.admin import create_topic
from compat_tests.brokers import Broker
from compat_tests.pipeline.corpus import count_words, records
from compat_tests.pipeline.evidence import evidence
from compat_tests.pipeline.job import INPUT_PARTITIONS, OUTPUT_PARTITIONS, WORKERS, Job
from compat_tests.pipeline.supervisor import Report, Supervised, Team
from compat_tests.pipeline.verdict import Truth, Verdict, judge

BROKER = "broker"
#: At least and at most. A session has 3 s, and a worker that is silent for 7 s is killed.
_PAUSE_S = (0.5, 6.0)
_BETWEEN_PAUSES_S = (0.2, 2.0)


@dataclass(frozen=True)
class Plan:
    """`kills` happen in random order, spread over the progress of the run. With `pauses` workers
    also stand still now and then, mostly for longer than their sessions."""

    words_max: int | None = None
    kills: tuple[str, ...] = (*WORKERS, BROKER, BROKER)
    batch_records: int = 200
    deadline_s: float = 240.0
    pauses: bool = False


class Unfinished(AssertionError):
    """The run did not come to its end before its deadline."""


class Pipeline:
    """Topics, producer, team and killer of one run on a started broker."""

    def __init__(self, broker: Broker, plan: Plan, report: Report) -> None:
        self.broker = broker
        self.plan = plan
        self.report = report
        self.truth = Truth()
        run = uuid.uuid4().hex[:6]
        self.jobs = [Job(name, broker.bootstrap, run, plan.batch_records) for name in WORKERS]
        self.job = self.jobs[0]
        self.killed: list[str] = []
        self._produced = threading.Event()
        self._failure: Exception | None = None

    def run(self) -> Verdict:
        """Produce, count, kill, wait until all is counted, judge. Raises Unfinished when late."""
        bootstrap = self.broker.bootstrap
        create_topic(bootstrap, self.job.text_topic, INPUT_PARTITIONS)
        create_topic(bootstrap, self.job.counts_topic, OUTPUT_PARTITIONS)
        create_topic(bootstrap, self.job.inputs_topic, 1)
        producing = threading.Thread(target=self._produce, daemon=True)
        producing.start()
        with Team(self.jobs, self.report) as team:
            self._drive(team)
        producing.join()
        self._abort_what_is_open()
        return judge(self.job, self.truth)

    def _abort_what_is_open(self) -> None:
        """Take every worker's id over: a killed one's open transaction would hide what follows
        it.
        """
        for job in self.jobs:
            successor = Producer(
                {
                    "bootstrap.servers": job.bootstrap,
                    "transactional.id": job.transactional_id,
                    "log_level": 0,
                }
            )
            successor.init_transactions(self.plan.deadline_s)

    def _produce(self) -> None:
        """Write the whole text, idempotently: a kill of the broker must not write a line twice."""
        producer = Producer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "reconnect.backoff.max.ms": 500,
                "metadata.recovery.strategy": "none",
                "log_level": 0,
            }
        )
        try:
            for number, text in enumerate(records(self.plan.words_max)):
                partition = number % INPUT_PARTITIONS
                self.truth.words.update(count_words(text))
                self.truth.inputs[partition] += 1
                producer.produce(self.job.text_topic, text.encode(), partition=partition)
                producer.poll(0)
            if left := producer.flush(self.plan.deadline_s):
                raise Unfinished(f"{left} inputs were never acknowledged")
        except (KafkaException, BufferError, Unfinished) as error:
            self._failure = error
        self._produced.set()

    def _drive(self, team: Team) -> None:
        """Kill on the way, until every input is counted."""
        kills = random.sample(self.plan.kills, len(self.plan.kills))
        points = [(n + 0.5) / (len(kills) + 0.5) for n in range(len(kills))]
        progress = Progress(self.job, self.truth, self._produced)
        deadline = time.monotonic() + self.plan.deadline_s
        told = 0.0
        pauses = Pauses(team)
        while (counted := progress.counted()) < 1.0 or kills:
            if self._failure is not None:
                raise self._failure
            if time.monotonic() > deadline:
                raise Unfinished(f"{counted:.0%} counted within {self.plan.deadline_s:.0f} s")
            if kills and counted >= points[len(self.killed)]:
                time.sleep(random.random() * 0.2)
                self._kill(team, kills.pop(0))
            team.keep_running()
            if self.plan.pauses:
                pauses.tick()
            if time.monotonic() - told > 1.0:
                told = time.monotonic()
                self.report(_status(counted, team))
            time.sleep(0.1)
        progress.close()
        self.report(_status(1.0, team))

    def _kill(self, team: Team, victim: str) -> None:
        self.report(f"kill -9 {victim}")
        self.killed.append(victim)
        if victim == BROKER:
            started_at = time.monotonic()
            self.broker.restart(clean=False)
            self.report(f"broker is back after {(time.monotonic() - started_at) * 1000:.0f} ms")
        else:
            team.workers[victim].kill()


class Pauses:
    """Stops one worker after another (SIGSTOP). It goes on as a member that the group gave up."""

    def __init__(self, team: Team) -> None:
        self._workers = list(team.workers.values())
        self._paused: Supervised | None = None
        self._due = 0.0

    def tick(self) -> None:
        """Do what is due: stop one, or let it go on."""
        now = time.monotonic()
        if now < self._due:
            return
        if self._paused is None:
            self._paused = random.choice(self._workers)
            self._paused.pause()
            self._due = now + random.uniform(*_PAUSE_S)
        else:
            self._paused.resume()
            self._paused = None
            self._due = now + random.uniform(*_BETWEEN_PAUSES_S)


class Progress:
    """How much of the produced text the group has committed."""

    def __init__(self, job: Job, truth: Truth, produced: threading.Event) -> None:
        self._truth = truth
        self._produced = produced
        self._last = 0.0
        self._partitions = [TopicPartition(job.text_topic, p) for p in range(INPUT_PARTITIONS)]
        self._consumer = Consumer(
            {
                "bootstrap.servers": job.bootstrap,
                "group.id": job.group,
                "isolation.level": "read_committed",
                "reconnect.backoff.max.ms": 500,
                "metadata.recovery.strategy": "none",
                "log_level": 0,
            }
        )

    def counted(self) -> float:
        """Return the committed share, 0 to 1; below 1 as long as more is being produced."""
        if not self._produced.is_set():
            return 0.0
        try:
            positions = self._consumer.committed(self._partitions, 2.0)
        except KafkaException:
            return self._last
        counted = sum(max(position.offset, 0) for position in positions)
        self._last = counted / max(1, self._truth.inputs.total())
        return self._last

    def close(self) -> None:
        self._consumer.close()


def _status(counted: float, team: Team) -> str:
    parts = [f"{counted:6.1%} counted"]
    for name, worker in team.workers.items():
        seen = worker.counters
        parts.append(f"{name} {seen['committed']} commits {seen['aborted']} aborts")
    return " | ".join(parts)


def run_pipeline(broker: Broker, plan: Plan, report: Callable[[str], None]) -> tuple[Verdict, str]:
    """Run once; return the verdict, and a line that says what the run went through.

    After a wrong verdict stops the broker, and reports what its files tell.
    """
    pipeline = Pipeline(broker, plan, report)
    verdict = pipeline.run()
    if verdict.faults:
        broker.stop()
        report(f"what the broker's files, {broker.log_directory}, tell of that:")
        again, never = verdict.counted_again, verdict.never_counted
        for line in evidence(broker, pipeline.job, again, never):
            report(line)
    return verdict, ", ".join(pipeline.killed)
