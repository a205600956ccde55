"""One process of a soak: `python -m compat_tests.soak.worker JOB`. It runs until it is killed."""

from __future__ import annotations

import importlib
import sys
import traceback

from compat_tests.pipeline.job import tell
from compat_tests.soak.plan import from_json


def main() -> None:
    job = from_json(sys.argv[1])
    worker = importlib.import_module(f"compat_tests.soak.{job.kind}").Worker(job)
    try:
        worker.run()
    except Exception as error:  # noqa: BLE001  # the edge of the process: report, then end
        tell("ended", why=repr(error), trace=traceback.format_exc())
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
