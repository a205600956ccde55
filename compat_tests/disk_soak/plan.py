"""Who takes part beside transactions and groups, and what each process is told."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass

#: The broker's settings: retention acts soon.
SETTINGS = {
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
}
TOPIC_SETTINGS = {"segment.bytes": str(8 << 20), "retention.ms": "-1", "retention.bytes": "-1"}
#: Of the bulk topic: a partition for each writer.
WRITERS = ("librdkafka", "kafka_python", "aiokafka", "java_idempotent", "java_transactional")
#: Longer than the disk is full.
DELIVERY_TIMEOUT_MS = 600_000
UNACKNOWLEDGED_MAX = 500
#: A few records in each.
BATCH_BYTES = 1 << 17


@dataclass(frozen=True)
class BulkJob:
    """One process. It travels there as JSON."""

    worker: str
    bootstrap: str
    run: str
    #: The module of `compat_tests.disk_soak` that is its worker; "java": DiskSoak.java.
    kind: str
    partition: int = -1
    records_per_s: float = 0.0

    @property
    def topic(self) -> str:
        return f"bulk-{self.run}"

    def new_stream(self) -> str:
        """Return a name for what one producer writes, from its start to its end."""
        return f"{self.worker}.{uuid.uuid4().hex[:8]}"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> BulkJob:
        return BulkJob(**json.loads(text))


def jobs(bootstrap: str, run: str, records_per_s: float) -> Iterator[BulkJob]:
    """Yield all jobs. The writers share the rate."""
    for partition, name in enumerate(WRITERS):
        kind = "java" if name.startswith("java") else f"{name}_writer"
        yield BulkJob(name, bootstrap, run, kind, partition, records_per_s / len(WRITERS))
    yield BulkJob("librdkafka_uncommitted", bootstrap, run, "librdkafka_reader")
    yield BulkJob("aiokafka_committed", bootstrap, run, "aiokafka_reader")
    yield BulkJob("java_consumer_committed", bootstrap, run, "java")
    yield BulkJob("java_classic_uncommitted", bootstrap, run, "java")
