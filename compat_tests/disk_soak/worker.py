"""One process: `python -m compat_tests.disk_soak.worker JOB`. It runs until it is killed."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from functools import partial
from pathlib import Path

from compat_tests.disk_soak.plan import DELIVERY_TIMEOUT_MS, BulkJob
from compat_tests.java import program
from compat_tests.pipeline.telling import tell_the_end_of

_JAVA = Path(__file__).with_name("DiskSoak.java")


def main() -> None:
    logging.basicConfig(level=logging.CRITICAL)
    job = BulkJob.from_json(sys.argv[1])
    if job.kind == "java":
        _become_java(job)
    library = importlib.import_module(f"compat_tests.disk_soak.{job.kind}")
    tell_the_end_of(partial(library.run, job))


def _become_java(job: BulkJob) -> None:
    command = program(
        _JAVA,
        job.worker,
        job.bootstrap,
        job.topic,
        str(job.partition),
        job.new_stream(),
        str(job.records_per_s),
        str(DELIVERY_TIMEOUT_MS),
    )
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
