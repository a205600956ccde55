"""A topic of one partition in which every record's value is its own offset, written in batches and
transactions of known places, so that a reader's batches can be told exactly.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from compat_tests.client import TIMEOUT_S
from compat_tests.raw import Connection, Identity, batch, unique


class Numbered:
    """Writes to partition 0 of `topic`, a fresh one, and knows its end.

    Every call writes one batch; one that ends a transaction returns when its marker, which takes
    an offset too, is readable.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self.end_offset = 0

    def plain(self, count: int, *, timestamp_ms: int | None = None) -> None:
        with Connection(self._bootstrap) as connection:
            self._append(connection, None, count, timestamp_ms)

    def committed(self, count: int) -> None:
        self.open(count)(True)

    def aborted(self, count: int) -> None:
        self.open(count)(False)

    def open(self, count: int) -> Callable[[bool], None]:
        """Leave a transaction open; return what ends it (True commits)."""
        with Connection(self._bootstrap) as connection:
            identity = connection.producer(unique("numbered"))
            assert connection.add_partitions(identity, self._topic) == [0]
            self._append(connection, identity, count)

        def end(commit: bool) -> None:
            with Connection(self._bootstrap) as connection:
                assert connection.end(identity, commit=commit).error_code == 0
                self.end_offset += 1
                self._await_end(connection)

        return end

    def _append(
        self,
        connection: Connection,
        identity: Identity | None,
        count: int,
        timestamp_ms: int | None = None,
    ) -> None:
        values = [b"%d" % (self.end_offset + n) for n in range(count)]
        sequence = -1 if identity is None else 0
        records = batch(values, identity, sequence, timestamp_ms=timestamp_ms)
        transactional_id = None if identity is None else identity.transactional_id
        answer = connection.produce(self._topic, records, transactional_id=transactional_id)
        assert (answer.error_code, answer.base_offset) == (0, self.end_offset)
        self.end_offset += count

    def _await_end(self, connection: Connection) -> None:
        """Kafka answers EndTxn before the marker is there."""
        deadline = time.monotonic() + TIMEOUT_S
        while connection.fetch(self._topic, 0).high_watermark < self.end_offset:
            assert time.monotonic() < deadline, "no marker"
            time.sleep(0.01)


def three_transactions(bootstrap: str, topic: str) -> Numbered:
    """Write 0-4 committed (marker 5), 6-10 aborted (11), 12-16 committed (17)."""
    numbered = Numbered(bootstrap, topic)
    numbered.committed(5)
    numbered.aborted(5)
    numbered.committed(5)
    return numbered
