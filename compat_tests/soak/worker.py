"""One process of a soak: `python -m compat_tests.soak.worker JOB`. It runs until it is killed."""

from __future__ import annotations

import importlib
import sys

from compat_tests.pipeline.telling import tell_the_end_of
from compat_tests.soak.plan import from_json


def main() -> None:
    job = from_json(sys.argv[1])
    tell_the_end_of(importlib.import_module(f"compat_tests.soak.{job.kind}").Worker(job).run)


if __name__ == "__main__":
    main()
