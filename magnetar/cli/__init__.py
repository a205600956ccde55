"""The command line: `magnetar serve`, and what operators ask brokers and data directories.

Each command lives in a module of its own and is imported when it is called.
"""

from __future__ import annotations

from magnetar.cli.main import main

__all__ = ["main"]
