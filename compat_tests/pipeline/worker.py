"""One worker's process: `python -m compat_tests.pipeline.worker JOB`. It runs until it is killed.

Whatever it cannot go on from ends it, and the supervisor starts another: that must be safe.
"""

from __future__ import annotations

import importlib
import logging
import sys

from compat_tests.pipeline.job import Job
from compat_tests.pipeline.telling import tell_the_end_of


def main() -> None:
    logging.basicConfig(level=logging.CRITICAL)
    job = Job.from_json(sys.argv[1])
    module = f"compat_tests.pipeline.{job.worker.replace('-', '_')}_worker"
    tell_the_end_of(importlib.import_module(module).Worker(job).run)


if __name__ == "__main__":
    main()
