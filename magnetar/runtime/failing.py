"""How a broker ends that must not go on: which errors are fatal, and what happens on one.

After a failing disk or a broken invariant, the state in memory may be ahead of what is stored. So
the process ends, answers nothing more, and the next start recovers from what is stored.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any

from logstore.disk.files import StorageFailure
from logstore.remote.commit_store import NodeFenced
from logstore.segments.ledger import LedgerFenced
from magnetar.logging import get_logger

EXIT_FAILURE = 1
_FATAL = (StorageFailure, LedgerFenced, OSError, AssertionError)
#: Errors of the network and of bounded waits, which Python counts among the operating system's.
_NOT_FATAL = (TimeoutError, ConnectionError)

_log = get_logger("broker")


def is_fatal(error: BaseException) -> bool:
    """Return whether the broker must answer nothing more once `error` was raised."""
    return isinstance(error, _FATAL) and not isinstance(error, _NOT_FATAL)


def end_process(failure: BaseException) -> None:
    """Print the reason to standard error and end the process at once. Does not return."""
    try:
        print(
            f"magnetar: fatal: {str(failure) or type(failure).__name__}",
            file=sys.stderr,
            flush=True,
        )
    finally:
        # Standard error may be a file on the very disk that is full: end the process all the same.
        os._exit(EXIT_FAILURE)


class Failing:
    """Calls `end` for the first fatal error of one broker; errors that follow it are ignored."""

    def __init__(self, end: Callable[[BaseException], None]) -> None:
        """`end` should not return: nothing of the broker can be relied on after it."""
        self._end = end
        self._failure: BaseException | None = None

    def fail(self, failure: BaseException) -> None:
        """Log a failing disk or a broken invariant and end the broker."""
        # One failure brings others along: what waits for the disk fails with it.
        if self._failure is not None:
            return
        self._failure = failure
        # A node that was taken over ends rightly, and the reason says all.
        shown = None if isinstance(failure, NodeFenced) else failure
        try:
            _log.error("broker failed", reason=str(failure), exc_info=shown)
        finally:
            # Logging writes to a disk too, and may fail with it.
            self._end(failure)

    def on_loop_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an exception that nothing caught; fits `loop.set_exception_handler`.

        In a transport or protocol it concerns one connection. In a callback of the event loop it
        leaves state half changed, so it ends the broker; in a task only a fatal error does.
        """
        failure = context.get("exception") or RuntimeError(context["message"])
        if "transport" in context or "protocol" in context:
            _log.warning("connection failed", reason=f"{context['message']}: {failure}")
        elif "handle" in context or is_fatal(failure):
            self.fail(failure)
        else:
            _log.error("unhandled error", reason=context["message"], exc_info=failure)
