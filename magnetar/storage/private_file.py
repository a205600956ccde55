"""A file that the broker's user alone reads, from its first moment on."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_MODE = 0o600


def make_private(path: Path) -> None:
    """Make the file if it is missing, and let no other user read it. Raises OSError."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, _MODE))
    # A file of an earlier release; that of another user is left as it is.
    if path.stat().st_mode & 0o077:
        with suppress(PermissionError):
            path.chmod(_MODE)
