"""Which logs ride a commit: all small ones, and large ones in turns."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest

from logstore.partition.log_config import LogConfig
from logstore.remote.commit_sizes import COMMIT_BYTES, LARGE_BYTES, taking_turns
from logstore.remote.commit_store import LogKey
from logstore.remote.remote_ledger import RemoteLedger
from tests.logstore.ledgers import open_now
from tests.logstore.remote_stores import SteppedStore
from wire.records import BatchHeader, SimpleRecord, build_batch


@pytest.fixture
def ledgers() -> Iterator[list[RemoteLedger]]:
    store = SteppedStore(LogConfig())
    made = [store.load(LogKey(UUID(int=7), index)) for index in range(4)]
    for ledger in made:
        open_now(ledger)
    yield made
    for ledger in made:
        ledger.close()


def write(ledger: RemoteLedger, size_bytes: int, *, is_atomic: bool = False) -> None:
    offset = ledger.end_offset
    batch = bytes(build_batch([SimpleRecord(b"", bytes(size_bytes), 5)], base_offset=offset))
    ledger.append(batch, BatchHeader.parse(batch), is_atomic=is_atomic)


def test_small_logs_ride_the_next_commit_whatever_is_large(ledgers: list[RemoteLedger]) -> None:
    a, b, c, d = ledgers
    write(a, COMMIT_BYTES)
    write(b, 100)
    write(c, LARGE_BYTES)
    write(d, LARGE_BYTES // 2)
    assert taking_turns(ledgers) == [a, b, d]
    a.begin_sync()
    assert taking_turns([c, a, b, d]) == [c, a, b, d]


def test_large_logs_ride_together_up_to_a_bound(ledgers: list[RemoteLedger]) -> None:
    for ledger in ledgers:
        write(ledger, COMMIT_BYTES // 2 - 1_000)
    assert taking_turns(ledgers) == ledgers[:2]
    assert taking_turns(ledgers[2:]) == ledgers[2:]


def test_a_decision_rides_with_its_markers_however_much_its_log_has_before() -> None:
    """PREPARE_* is appended before the markers, by an ordinary append to a coordinator's log."""
    store = SteppedStore(LogConfig())
    keys = [LogKey(UUID(int=7), index) for index in range(3)]
    large, marked = store.load(keys[0]), store.load(keys[1])
    coordinator = store.load(keys[2], is_wholly_loaded=True)
    for ledger in (large, marked, coordinator):
        open_now(ledger)
    write(large, COMMIT_BYTES)
    write(coordinator, COMMIT_BYTES)
    write(marked, 10, is_atomic=True)
    assert taking_turns([large, coordinator, marked]) == [large, coordinator, marked]
    for ledger in (large, marked, coordinator):
        ledger.close()


def test_what_has_to_survive_together_rides_together(ledgers: list[RemoteLedger]) -> None:
    a, b, c, d = ledgers
    write(a, COMMIT_BYTES)
    for ledger in (b, c):
        write(ledger, COMMIT_BYTES)
        write(ledger, 10, is_atomic=True)
    write(d, LARGE_BYTES)
    assert taking_turns(ledgers) == [a, b, c]
    for ledger in (b, c):
        ledger.begin_sync()
        write(ledger, COMMIT_BYTES)
    assert taking_turns([b, c]) == [b]
