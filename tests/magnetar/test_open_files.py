"""The soft limit of open files is not the broker's."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import resource
from magnetar.open_files import raise_limit
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
assert raise_limit() == hard
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
assert raise_limit() == hard
"""


def test_as_many_files_as_the_hard_limit_allows_may_be_open() -> None:
    subprocess.run([sys.executable, "-c", _SCRIPT], check=True)
