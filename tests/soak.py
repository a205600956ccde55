"""How much longer than usual the random tests run: `make soak` raises it."""

from __future__ import annotations

import os

#: Times the usual number of examples.
SOAK = int(os.environ.get("MAGNETAR_SOAK", "1"))
