"""A member of a group that copies entries: the pipeline's worker with other outputs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from compat_tests.pipeline import confluent_worker
from compat_tests.pipeline.job import Job, Output
from compat_tests.soak.plan import COPIES_PARTITIONS, SoakJob


@dataclass(frozen=True)
class Copies:
    """The inputs of one transaction: (partition, offset, value)."""

    inputs: tuple[tuple[int, int, bytes], ...]

    @staticmethod
    def of(inputs: Iterable[tuple[int, int, bytes]]) -> Copies:
        return Copies(tuple(inputs))

    @property
    def record_count(self) -> int:
        return len(self.inputs)

    def next_offsets(self) -> dict[int, int]:
        """Return, by partition, the offset the group goes on from."""
        return {partition: offset + 1 for partition, offset, _ in sorted(self.inputs)}

    def outputs(self, job: Job) -> Iterable[Output]:
        """Yield a copy of each input; its key says where it was read."""
        assert isinstance(job, SoakJob)
        for partition, offset, value in self.inputs:
            key = json.dumps([partition, offset]).encode()
            yield Output(job.copies_topic, offset % COPIES_PARTITIONS, key, value)


class Worker(confluent_worker.Worker):
    def batch_of(self, inputs: Iterable[confluent_worker.Input]) -> Copies:
        return Copies.of(inputs)
