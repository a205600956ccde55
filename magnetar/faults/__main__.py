"""`python -m magnetar.faults`: `magnetar serve` for a test. Started by `magnetar.testing` alone."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from magnetar.cli.commands import EXIT_MISTAKE
from magnetar.cli.serve import run
from magnetar.cli.serve_flags import Flags
from magnetar.faults.composing import compose
from magnetar.faults.names import Mistake


def main() -> int:
    parser = argparse.ArgumentParser("python -m magnetar.faults", description=__doc__)
    parser.add_argument("--lifeline", type=int, required=True, metavar="DESCRIPTOR")
    parser.add_argument("--as-version")
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--config", required=True)
    parser.add_argument("--workers", default="1")
    parser.add_argument("--doors", type=Path, metavar="DIRECTORY", help="of several nodes")
    given = parser.parse_args()
    flags = Flags(
        listen=None,
        data_dir=given.data_dir,
        config_file=given.config,
        assignments=(),
        log_level="info",
        log_format="auto",
        workers=given.workers,
    )
    try:
        return run(flags, compose(given.lifeline, given.as_version, given.doors))
    except Mistake as mistake:
        print(f"magnetar: error: {mistake}", file=sys.stderr)
        return EXIT_MISTAKE


sys.exit(main())
