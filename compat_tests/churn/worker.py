"""One process of a churn: `python -m compat_tests.churn.worker JOB`. It runs until it is killed."""

from __future__ import annotations

import importlib
import logging
import sys
import traceback

from compat_tests.churn.plan import ChurnJob
from compat_tests.churn.telling import tell


def main() -> None:
    logging.basicConfig(level=logging.CRITICAL)
    job = ChurnJob.from_json(sys.argv[1])
    library = importlib.import_module(f"compat_tests.churn.{job.library}_members")
    try:
        library.run(job)
    except Exception as error:  # noqa: BLE001  # the edge of the process: report, then end
        tell("ended", why=repr(error)[:300], trace=traceback.format_exc()[-2000:])
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
