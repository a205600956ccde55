"""One process of a churn: `python -m compat_tests.churn.worker JOB`. It runs until it is killed."""

from __future__ import annotations

import importlib
import logging
import sys
from functools import partial

from compat_tests.churn.plan import ChurnJob
from compat_tests.pipeline.telling import tell_the_end_of


def main() -> None:
    logging.basicConfig(level=logging.CRITICAL)
    job = ChurnJob.from_json(sys.argv[1])
    library = importlib.import_module(f"compat_tests.churn.{job.library}_members")
    tell_the_end_of(partial(library.run, job))


if __name__ == "__main__":
    main()
