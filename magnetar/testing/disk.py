"""What a test makes of a broker's disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from magnetar.testing.link import BrokerGone


class Disk:
    """The disk of one broker. A fault lasts until the end of its block, or of `mend`."""

    def __init__(self, call: Callable[..., Any], expect_end: Callable[[], None]) -> None:
        """`expect_end` is called when the broker is going to end by itself."""
        self._call = call
        self._expect_end = expect_end
        #: A start of the broker fills it again.
        self.is_full = False

    def fail_sync(self) -> None:
        """Let syncs fail: the broker ends at the next one, and after a start they succeed again.

        A failed sync is never tried again: the kernel may have dropped what was to be written.
        """
        self._call("disk", fails_sync=True)
        self._expect_end()

    @contextmanager
    def full(self) -> Iterator[None]:
        """Let the disk be full for the block: records are refused with KAFKA_STORAGE_ERROR."""
        self.fill()
        try:
            yield
        finally:
            self.mend()

    def fill(self) -> None:
        """Let the disk be full until `mend`."""
        self._call("disk", is_full=True)
        self.is_full = True

    def mend(self) -> None:
        """Let the disk be well."""
        self.is_full = False
        with suppress(BrokerGone):
            self._call("disk", is_full=False, fails_sync=False)
