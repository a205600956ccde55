"""What every client does in these tests, under one small interface.

Each call opens a client, does one thing and closes it, so that nothing leaks between tests.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, NamedTuple

Mode = Literal["plain", "idempotent", "transactional"]
Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Isolation = Literal["read_committed", "read_uncommitted"]
CODECS: tuple[Codec, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
MODES: tuple[Mode, ...] = ("plain", "idempotent", "transactional")
#: A wait of this length means that something is wrong, or that the machine is very busy.
TIMEOUT_S = 60.0
#: Whatever a test does while one is open, it is not timed out; brokers allow 900 000.
TRANSACTION_TIMEOUT_MS = 600_000

Pair = tuple[bytes | None, bytes | None]


class Read(NamedTuple):
    """A record as a consumer saw it."""

    offset: int
    key: bytes | None
    value: bytes | None


class Writing(NamedTuple):
    """How records are written; the transactional id is None where that is not in a transaction."""

    is_idempotent: bool
    codec: Codec
    transactional_id: str | None
    commits: bool


class Client(ABC):
    """One client library, reading and writing partition 0 of a topic."""

    name: str

    def produce(
        self,
        bootstrap: str,
        topic: str,
        pairs: Sequence[Pair],
        *,
        mode: Mode = "plain",
        codec: Codec = "none",
        transactional_id: str | None = None,
        commit: bool = True,
    ) -> None:
        """Write `pairs`; returns when all are acknowledged, and the transaction, if any, ended and
        its end is known to readers.

        Without `transactional_id` a transaction gets a new one.
        """
        if mode == "transactional":
            transactional_id = transactional_id or f"txn-{uuid.uuid4().hex[:8]}"
        writing = Writing(mode != "plain", codec, transactional_id, commit)
        self._write(bootstrap, topic, pairs, writing)
        if transactional_id is not None:
            # Not imported above: it needs this file.
            from compat_tests.transaction_ends import await_end

            await_end(bootstrap, transactional_id)

    @abstractmethod
    def _write(
        self, bootstrap: str, topic: str, pairs: Sequence[Pair], writing: Writing
    ) -> None: ...

    @abstractmethod
    def consume(
        self, bootstrap: str, topic: str, isolation: Isolation = "read_committed"
    ) -> list[Read]:
        """Read from the first offset up to what ListOffsets calls latest for `isolation`."""


class StuckClient(AssertionError):
    """A client did not finish within TIMEOUT_S."""
