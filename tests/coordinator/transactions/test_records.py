"""Transactions survive their records; the bytes are Kafka's, with tagged fields of our own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.transactions.metadata import (
    State,
    TopicPartition,
    TransactionMetadata,
    TxnId,
    Vote,
)
from coordinator.transactions.records import decode_key, decode_value, encode_record
from wire.errors import WireError
from wire.internal.transaction_log import PartitionsSchema, TransactionLogValue
from wire.internal.versioned import decode_versioned, encode_versioned

epochs = st.integers(-1, 32767)
producer_ids = st.integers(-1, 2**63 - 1)
timestamps = st.integers(-1, 2**62)
transactions = st.builds(
    TransactionMetadata,
    transactional_id=st.text(min_size=1, max_size=20),
    producer_id=producer_ids,
    producer_epoch=epochs,
    timeout_ms=st.integers(1, 2**31 - 1),
    state=st.sampled_from(
        sorted(set(State) - {State.DEAD, State.PREPARE_EPOCH_FENCE, State.VOTED})
    ),
    updated_at_ms=timestamps,
    started_at_ms=timestamps,
    partitions=st.frozensets(
        st.builds(
            TopicPartition, st.sampled_from(["a", "b", "__consumer_offsets"]), st.integers(0, 9)
        )
    ),
    txn_id=st.none() | st.builds(TxnId, *[st.integers(0, 9)] * 4),
    last_producer_epoch=epochs,
    previous_producer_id=producer_ids,
    next_producer_id=producer_ids,
    next_producer_epoch=epochs,
    client_transaction_version=st.integers(1, 2),
    parent_id=st.none(),
    votes=st.just(()),
)


@given(transactions)
def test_a_transaction_survives_its_record(txn: TransactionMetadata) -> None:
    if txn.state is State.EMPTY:
        txn = txn._replace(partitions=frozenset())
    record = encode_record(txn)
    assert record.key is not None and record.value is not None
    assert decode_key(record.key) == txn.transactional_id
    assert decode_value(txn.transactional_id, record.value) == txn
    assert record.timestamp == txn.updated_at_ms


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


@given(transactions, names, names, st.booleans())
def test_a_child_survives_its_record_with_its_vote(
    txn: TransactionMetadata, parent_id: str, name: str, has_voted: bool
) -> None:
    state = State.VOTED if has_voted else State.ONGOING
    child = f"{parent_id}~>{name}"
    txn = txn._replace(transactional_id=child, parent_id=parent_id, state=state)
    value = encode_record(txn).value
    assert value is not None
    assert decode_value(child, value) == txn
    status = decode_versioned(TransactionLogValue, value).transaction_status
    assert status == State.ONGOING  # which Kafka's tools know
    open_value = encode_record(txn._replace(state=State.ONGOING)).value
    assert open_value is not None and len(open_value) == len(value)


@given(
    transactions,
    st.lists(st.builds(Vote, names, st.integers(0, 2**63 - 1), st.integers(0, 32767))).map(tuple),
)
def test_a_decision_survives_its_record_with_the_votes_that_it_names(
    txn: TransactionMetadata, votes: tuple[Vote, ...]
) -> None:
    txn = txn._replace(state=State.PREPARE_COMMIT, votes=votes)
    value = encode_record(txn).value
    assert value is not None
    assert decode_value(txn.transactional_id, value) == txn


@pytest.mark.parametrize(
    ("tag", "value"),
    [
        (1002, b""),
        (1002, b"\1\1\0\2"),
        (1002, b"\0\1\0"),
        (1003, b""),
        (1003, b"\1"),
        (1003, b"\0" + bytes(11)),
        (1003, b"\0" + bytes(10) + b"\0\5p~>c"),
        (1003, b"\0" + bytes(10) + b"\0\1\xff"),
    ],
)
def test_a_mark_of_a_family_that_nobody_writes_is_no_transaction(tag: int, value: bytes) -> None:
    log_value = TransactionLogValue(transaction_status=State.ONGOING)
    log_value.unknown_tags = ((tag, value),)
    with pytest.raises(WireError, match="transaction log"):
        decode_value("p~>c", encode_versioned(log_value, 1))


def test_the_value_is_kafkas_version_1_byte_for_byte(
    make_txn: Callable[..., TransactionMetadata],
) -> None:
    txn = make_txn(State.PREPARE_COMMIT, txn_id=None)
    record = encode_record(txn)
    assert record.key == b"\0\0" + b"\0\x04tx-1"
    assert (
        record.value
        == bytes.fromhex(
            "0001"  # version
            "00000000000003e8"  # producer id
            "0005"  # producer epoch
            "0000ea60"  # timeout
            "02"  # PrepareCommit
            "02" + "0261" + "02" + "00000000" + "00"  # one topic "a" with one partition, 0
            "0000000000002710"  # last update
            "0000000000002710"  # start
            "00"  # no tagged fields
        )
    )


def test_the_tools_of_kafka_can_skip_what_is_ours(
    make_txn: Callable[..., TransactionMetadata],
) -> None:
    record = encode_record(make_txn(State.ONGOING, last_producer_epoch=4))
    assert record.value is not None
    assert record.value.endswith(
        b"\x02"  # two tagged fields
        + b"\xe8\x07\x10"
        + TxnId(7, 5, 0, 1000).to_bytes()  # tag 1000, 16 bytes
        + b"\xe9\x07\x02\x00\x04"  # tag 1001, 2 bytes
    )


def test_a_record_does_not_grow_after_its_begin(
    make_txn: Callable[..., TransactionMetadata],
) -> None:
    sizes = {
        len(encode_record(make_txn(state, last_producer_epoch=epoch)).value or b"")
        for state in (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT)
        for epoch in (-1, 4)
    }
    assert len(sizes) == 1


def test_an_expired_id_is_a_tombstone(make_txn: Callable[..., TransactionMetadata]) -> None:
    record = encode_record(make_txn(State.DEAD))
    assert record.key is not None and record.value is None
    assert decode_key(record.key) == "tx-1"


def test_version_0_of_an_adopted_log_is_read() -> None:
    value = encode_versioned(
        TransactionLogValue(
            producer_id=7,
            producer_epoch=3,
            transaction_timeout_ms=1000,
            transaction_status=1,
            transaction_partitions=[PartitionsSchema(topic="a", partition_ids=[0, 2])],
            transaction_last_update_timestamp_ms=20,
            transaction_start_timestamp_ms=10,
        ),
        0,
    )
    assert decode_value("tx", value) == TransactionMetadata(
        transactional_id="tx",
        producer_id=7,
        producer_epoch=3,
        timeout_ms=1000,
        state=State.ONGOING,
        updated_at_ms=20,
        started_at_ms=10,
        partitions=frozenset({TopicPartition("a", 0), TopicPartition("a", 2)}),
    )


def test_a_kind_of_key_that_is_not_known_is_passed_over() -> None:
    assert decode_key(b"\0\x05whatever") is None


@pytest.mark.parametrize(("tag", "size"), [(1000, 15), (1000, 17), (1001, 1), (1001, 20)])
def test_a_tag_of_another_size_is_no_transaction(tag: int, size: int) -> None:
    value = TransactionLogValue(transaction_status=1, transaction_partitions=[])
    value.unknown_tags = ((tag, bytes(size)),)
    with pytest.raises(WireError, match=f"tag {tag} has {size} bytes"):
        decode_value("tx", encode_versioned(value, 1))


@pytest.mark.parametrize("status", [State.DEAD, State.PREPARE_EPOCH_FENCE, State.VOTED, 8, -1])
def test_a_status_that_nobody_writes_is_no_transaction(status: int) -> None:
    value = encode_versioned(TransactionLogValue(transaction_status=status), 1)
    with pytest.raises(WireError, match="status"):
        decode_value("tx", value)
