"""One worker's process: `python -m compat_tests.pipeline.worker JOB`. It runs until it is killed.

Whatever it cannot go on from ends it, and the supervisor starts another: that must be safe.
"""

from __future__ import annotations

import importlib
import logging
import sys
import traceback

from compat_tests.pipeline.job import Job, tell


def main() -> None:
    logging.basicConfig(level=logging.CRITICAL)
    job = Job.from_json(sys.argv[1])
    module = f"compat_tests.pipeline.{job.worker.replace('-', '_')}_worker"
    worker = importlib.import_module(module).Worker(job)
    try:
        worker.run()
    except Exception as error:  # noqa: BLE001  # the edge of the process: report, then end
        tell("ended", why=repr(error), trace=traceback.format_exc())
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
