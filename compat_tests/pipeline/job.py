"""What a worker is told, and what it does with a batch: the same for every client library."""

from __future__ import annotations

import json
import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from compat_tests.pipeline.corpus import count_words

WORKERS = ("confluent", "kafka-python", "aiokafka")
INPUT_PARTITIONS = 6
OUTPUT_PARTITIONS = 4


@dataclass(frozen=True)
class Job:
    """The job of one worker. It travels to the worker's process as JSON."""

    worker: str
    bootstrap: str
    run: str
    batch_records: int = 200
    abort_probability: float = 0.1
    session_timeout_ms: int = 3000
    rebalance_timeout_ms: int = 6000
    transaction_timeout_ms: int = 20000

    @property
    def text_topic(self) -> str:
        return f"text-{self.run}"

    @property
    def counts_topic(self) -> str:
        return f"word-counts-{self.run}"

    @property
    def inputs_topic(self) -> str:
        return f"inputs-counted-{self.run}"

    @property
    def group(self) -> str:
        return f"word-counters-{self.run}"

    @property
    def transactional_id(self) -> str:
        """The same for every incarnation of a worker: a new one fences and aborts the old one's."""
        return f"{self.group}-{self.worker}"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Job:
        return Job(**json.loads(text))

    def signature(self, generation_id: int | str, member_id: str) -> str:
        """Return the metadata of a transaction's offsets: who commits them, as which member."""
        process = f"{self.worker}, process {os.getpid()}"
        return f"{process}, generation {generation_id}, member {member_id!r}"

    def aborts(self) -> bool:
        """Throw the dice for the next transaction."""
        return random.random() < self.abort_probability


class Output(NamedTuple):
    topic: str
    partition: int
    key: bytes
    value: bytes


@dataclass
class Batch:
    """The inputs of one transaction: what they count to, and how far they reach."""

    counts: Counter[str] = field(default_factory=Counter)
    offsets: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    @staticmethod
    def of(inputs: Iterable[tuple[int, int, bytes]]) -> Batch:
        """Count (partition, offset, text) inputs."""
        batch = Batch()
        for partition, offset, text in inputs:
            batch.counts.update(count_words(text.decode()))
            batch.offsets[partition].append(offset)
        return batch

    @property
    def record_count(self) -> int:
        return sum(map(len, self.offsets.values()))

    def next_offsets(self) -> dict[int, int]:
        """Return, by partition, the offset the group goes on from."""
        return {partition: max(offsets) + 1 for partition, offsets in self.offsets.items()}

    def outputs(self, job: Job) -> Iterable[Output]:
        for word, count in self.counts.items():
            partition = len(word) % OUTPUT_PARTITIONS
            yield Output(job.counts_topic, partition, word.encode(), str(count).encode())
        counted = json.dumps(self.offsets).encode()
        yield Output(job.inputs_topic, 0, job.worker.encode(), counted)
