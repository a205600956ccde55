"""Live state == replayed state, after every operation; and both are what the batches say."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from logstore.disk.barriers import at_once
from logstore.partition.log_config import LogConfig
from logstore.partition.reader import Isolation
from logstore.partition.state import PartitionState
from logstore.partition.state_recovery import replaying
from tests.logstore.partitions import SteppedPartition
from tests.logstore.remote_stores import StoredPartition
from tests.logstore.traffic import OPERATIONS, Expected, Traffic
from tests.soak import SOAK
from wire.records import iterate_batches

WORLD = ("sync step", "settle", "restart", "crash", "silence")
STEP = st.tuples(
    st.sampled_from(
        (*OPERATIONS, "sync step", "settle", "restart", "crash", "silence", "transactional")
    ),
    st.integers(0, 2),
    st.integers(1, 4),
)


def replayed(partition: SteppedPartition) -> PartitionState:
    """The state from the log's bytes alone, no snapshot."""
    state = PartitionState(partition.ledger.start_offset)
    at_once(replaying(partition.ledger, state, partition.now_ms))
    return state


def forget(state: PartitionState, live: PartitionState, expired: set[int]) -> None:
    """Take from a replayed state what the live one has forgotten by the clock: a replay brings
    silent producers back, which does no harm."""
    for producer_id in expired & set(state.producers):
        if producer_id not in live.producers:
            del state.producers[producer_id]
        else:
            forgetful, whole = live.producers[producer_id], state.producers[producer_id]
            assert whole.batches.endswith(forgetful.batches)
            whole.batches = forgetful.batches
            if not forgetful.batches:
                whole.last_sequence = forgetful.last_sequence
            if forgetful.coordinator_epoch < 0:
                whole.coordinator_epoch = -1
                whole.last_marker_offset = -1


def check(partition: SteppedPartition, traffic: Traffic, expired: set[int]) -> None:
    log = partition.log
    state = replayed(partition)
    forget(state, log.state, expired)
    assert log.state == state
    expected = Expected(traffic.appended)
    assert log.log_end_offset == expected.end_offset
    assert log.high_watermark == partition.ledger.durable_end_offset
    assert log.last_stable_offset == expected.last_stable_offset(log.high_watermark)
    for producer_id, producer in log.producers.items():
        remembered = [(batch.base_sequence, batch.base_offset) for batch in producer.remembered()]
        if producer_id in expired:
            known = expected.remembered(producer_id)
            assert remembered == known[len(known) - len(remembered) :]
        else:
            assert remembered == expected.remembered(producer_id)
    for offset in range(0, log.high_watermark + 1, 3):
        check_read(partition, expected, offset)


def check_read(partition: SteppedPartition, expected: Expected, offset: int) -> None:
    log = partition.log
    for isolation in Isolation:
        found = log.reader.read(offset, 300, isolation)
        assert found is not None
        bound = log.reader.bound(isolation)
        headers = [header for header, _ in iterate_batches(found.records)]
        assert all(header.next_offset <= bound for header in headers)
        assert bool(headers) == (offset < bound)
        assert (found.high_watermark, found.last_stable_offset) == (
            log.high_watermark,
            log.last_stable_offset,
        )
        if isolation is Isolation.READ_UNCOMMITTED:
            assert found.aborted is None
        elif headers:
            assert found.aborted == expected.aborted(offset, headers[-1].next_offset)
        else:
            assert found.aborted == []


@pytest.mark.parametrize("kind", [SteppedPartition, StoredPartition])
@given(steps=st.lists(STEP, max_size=40), interval=st.sampled_from([1, 300, 10_000]))
@example(steps=[("idempotent", 0, 1), ("silence", 0, 1), ("restart", 0, 1)], interval=1)
@settings(max_examples=120 * SOAK, deadline=None)
def test_live_state_equals_replayed_state(
    kind: type[SteppedPartition], steps: list[tuple[str, int, int]], interval: int
) -> None:
    config = LogConfig(snapshot_interval_bytes=interval)
    partition = kind(config, segment_bytes=600)
    traffic = Traffic(partition.log)
    expired: set[int] = set()
    for operation, producer, count in steps:
        partition.now_ms = traffic.now_ms
        if operation == "sync step":
            partition.executor.step()
        elif operation == "settle":
            partition.settle()
        elif operation == "restart":
            before = partition.log.state
            traffic.log = partition.restart()
            assert partition.log.state == before
        elif operation == "silence":
            expired |= set(traffic.silence(config.producer_id_expiration_ms // count))
        elif operation == "crash":
            acknowledged = partition.log.high_watermark
            traffic.log = partition.crash()
            durable = partition.log.log_end_offset
            assert durable >= acknowledged
            kept = [b for b in Expected(traffic.appended).headers if b.next_offset <= durable]
            traffic.recovered(len(kept))
        else:
            traffic.perform(operation, producer, count)
        check(partition, traffic, expired)
