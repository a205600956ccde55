"""TransactionMetadata <-> the records of `__transaction_state`, in Kafka's schemas.

The key is TransactionLogKey v0, the value TransactionLogValue v1; v0 values of an adopted log are
read too. A tombstone removes the transactional id. What Kafka's schema has no place for goes into
tagged fields of our own, which Kafka's tools skip, so that they can read these records.

    tag 1000   16 bytes   TxnId of the current or last transaction; no bytes: none yet
    tag 1001    2 bytes   last producer epoch, big endian, signed; -1: none
    tag 1002    4 bytes   of a child (`joint`): format 0; 1 if it has voted, else 0; how many bytes
                          of the transactional id, in UTF-8, are its parent's (2 bytes)
    tag 1003    n bytes   of a parent that commits: format 0, then each vote that its decision
                          names: producer id (8 bytes), producer epoch (2), size of the
                          transactional id in UTF-8 (2), the transactional id

A vote is written with the status Ongoing, so that Kafka takes it for a transaction that is open.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from struct import Struct

from coordinator.transactions.metadata import (
    TRANSACTION_VERSION_1,
    State,
    TopicPartition,
    TransactionMetadata,
    TxnId,
    Vote,
)
from wire.error_code import ErrorCode
from wire.errors import KafkaError, WireError
from wire.internal.transaction_log import PartitionsSchema, TransactionLogKey, TransactionLogValue
from wire.internal.versioned import decode_versioned, encode_versioned, peek_version
from wire.records import BATCH_OVERHEAD, SimpleRecord
from wire.records.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP

VALUE_VERSION = 1

#: How Kafka writes transaction version 1, and so how it is written here. A 1 is read as 1 too.
_VERSION_1_WRITTEN = 0

_TAG_TXN_ID = 1000
_TAG_LAST_PRODUCER_EPOCH = 1001
_TAG_CHILD = 1002
_TAG_VOTES = 1003
_CHILD = Struct(">BBH")
_VOTE = Struct(">qhH")
_FORMAT = 0
#: By how much a record may grow from ONGOING to the transaction's end, when it gets the client's
#: transaction version and the producer id to rotate to. A record of ONGOING must leave that room.
END_GROWTH_BYTES_MAX = 16
#: The most bytes that a batch of one record has besides key and value.
_BATCH_BYTES_BESIDE = BATCH_OVERHEAD + 40
_NEVER_WRITTEN = frozenset({State.DEAD, State.PREPARE_EPOCH_FENCE, State.VOTED})


#: What goes before each value: its version.
_VALUE_PREFIX = VALUE_VERSION.to_bytes(2)
#: Cached, so that the encoder is compiled at its first use, not at the import.
_value_encoder = lru_cache(TransactionLogValue.encoder)


def encode_record(txn: TransactionMetadata) -> SimpleRecord:
    """Return the record that makes `txn` the value of its transactional id; DEAD: its tombstone."""
    key = _encode_key(txn.transactional_id)
    if txn.state is State.DEAD:
        return SimpleRecord(key, None, txn.updated_at_ms)
    # Kafka writes null for the partitions of EMPTY. The others are sorted, so that equal
    # transactions have equal bytes.
    schemas: list[PartitionsSchema] | None = None
    if txn.state is not State.EMPTY:
        schemas = []
        for topic, partition in sorted(txn.partitions):
            if schemas and schemas[-1].topic == topic:
                schemas[-1].partition_ids.append(partition)
            else:
                schemas.append(PartitionsSchema(topic=topic, partition_ids=[partition]))
    version = txn.client_transaction_version
    value = TransactionLogValue(
        producer_id=txn.producer_id,
        previous_producer_id=txn.previous_producer_id,
        next_producer_id=txn.next_producer_id,
        producer_epoch=txn.producer_epoch,
        next_producer_epoch=txn.next_producer_epoch,
        transaction_timeout_ms=txn.timeout_ms,
        # Kafka's tools take a vote for an open transaction: tag 1002 tells it apart.
        transaction_status=State.ONGOING if txn.state is State.VOTED else txn.state,
        transaction_partitions=schemas,
        transaction_last_update_timestamp_ms=txn.updated_at_ms,
        transaction_start_timestamp_ms=txn.started_at_ms,
        client_transaction_version=(
            _VERSION_1_WRITTEN if version == TRANSACTION_VERSION_1 else version
        ),
    )
    # Both or none, so that a record hardly grows from ONGOING on: where the transaction's begin
    # fitted into a batch, its end does.
    if txn.txn_id is not None or txn.last_producer_epoch != NO_PRODUCER_EPOCH:
        value.unknown_tags = (
            (_TAG_TXN_ID, b"" if txn.txn_id is None else txn.txn_id.to_bytes()),
            (_TAG_LAST_PRODUCER_EPOCH, txn.last_producer_epoch.to_bytes(2, signed=True)),
        )
    if txn.parent_id is not None:
        mark = _CHILD.pack(_FORMAT, txn.state is State.VOTED, len(txn.parent_id.encode()))
        value.unknown_tags += ((_TAG_CHILD, mark),)
    if txn.votes:
        value.unknown_tags += ((_TAG_VOTES, _encode_votes(txn.votes)),)
    # The encoder itself, not `encode_versioned`: every begin and end of a transaction passes here.
    encoded = b"".join((_VALUE_PREFIX, *_value_encoder(VALUE_VERSION)(value)))
    return SimpleRecord(key, encoded, txn.updated_at_ms)


@lru_cache(maxsize=1024)
def _encode_key(transactional_id: str) -> bytes:
    return encode_versioned(TransactionLogKey(transactional_id=transactional_id))


def encode_endable(txn: TransactionMetadata, _now_ms: int, batch_bytes_max: int) -> SimpleRecord:
    """Return the record, as `encode_record` does; its timestamp is the time of the transition.

    Raises MESSAGE_TOO_LARGE for an ONGOING transaction whose end might not fit into a batch of
    `batch_bytes_max`, so that every transaction that has begun can end. A record of the end is
    never refused, even if the bound was lowered since the begin.
    """
    record = encode_record(txn)
    if txn.state is State.ONGOING and record.value is not None:
        # Four bytes at most for each character of the key.
        size_bytes = len(record.value) + _BATCH_BYTES_BESIDE + len(txn.transactional_id) * 4
        if size_bytes + END_GROWTH_BYTES_MAX > batch_bytes_max:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{txn.transactional_id} holds {len(txn.partitions)} partitions, whose names do not"
                f" fit into a record of __transaction_state (at most {batch_bytes_max} bytes)",
            )
    return record


def decode_record(key: bytes | None, value: bytes | None) -> TransactionMetadata | None:
    """Return the metadata of a record, DEAD for a tombstone; None for a key of an unknown kind.

    Raises WireError for malformed bytes.
    """
    transactional_id = None if key is None else decode_key(key)
    if transactional_id is None:
        return None
    if value is None:
        return TransactionMetadata(
            transactional_id, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, 0, State.DEAD, NO_TIMESTAMP
        )
    return decode_value(transactional_id, value)


def decode_key(key: bytes | memoryview) -> str | None:
    """Return the transactional id; None for a key of an unknown kind."""
    if peek_version(key) != TransactionLogKey.record_type:
        return None
    return decode_versioned(TransactionLogKey, key).transactional_id


def decode_value(transactional_id: str, value: bytes | memoryview) -> TransactionMetadata:
    """Return the metadata in `value`. Raises WireError for malformed bytes."""
    record = decode_versioned(TransactionLogValue, value)
    state = _state(record.transaction_status)
    own = dict(record.unknown_tags)
    txn_id = _of_size(own.get(_TAG_TXN_ID), _TAG_TXN_ID, (0, 16))
    last_epoch = _of_size(own.get(_TAG_LAST_PRODUCER_EPOCH), _TAG_LAST_PRODUCER_EPOCH, (2,))
    parent_id = None
    if (child := own.get(_TAG_CHILD)) is not None:
        parent_id, has_voted = _decode_child(transactional_id, child)
        state = State.VOTED if has_voted else state
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=record.producer_id,
        producer_epoch=record.producer_epoch,
        timeout_ms=record.transaction_timeout_ms,
        state=state,
        updated_at_ms=record.transaction_last_update_timestamp_ms,
        started_at_ms=record.transaction_start_timestamp_ms,
        partitions=frozenset(
            TopicPartition(schema.topic, partition)
            for schema in record.transaction_partitions or ()
            for partition in schema.partition_ids
        ),
        txn_id=TxnId.from_bytes(txn_id) if txn_id else None,
        last_producer_epoch=(
            NO_PRODUCER_EPOCH if last_epoch is None else int.from_bytes(last_epoch, signed=True)
        ),
        previous_producer_id=record.previous_producer_id,
        next_producer_id=record.next_producer_id,
        next_producer_epoch=record.next_producer_epoch,
        client_transaction_version=max(TRANSACTION_VERSION_1, record.client_transaction_version),
        parent_id=parent_id,
        votes=tuple(_decode_votes(own.get(_TAG_VOTES))),
    )


def _of_size(value: bytes | None, tag: int, sizes: tuple[int, ...]) -> bytes | None:
    """Return the value of a tagged field, which must have one of `sizes` where it is there."""
    if value is not None and len(value) not in sizes:
        raise WireError(f"transaction log: tag {tag} has {len(value)} bytes")
    return value


def _decode_child(transactional_id: str, value: bytes) -> tuple[str, bool]:
    """Return the parent's id, and whether the child has voted."""
    if len(value) != _CHILD.size or value[0] != _FORMAT:
        raise WireError(f"transaction log: tag {_TAG_CHILD} begins with {value[:8].hex()}, unknown")
    _, has_voted, size_bytes = _CHILD.unpack(value)
    return _text(transactional_id.encode()[:size_bytes]), bool(has_voted)


def _decode_votes(value: bytes | None) -> Iterator[Vote]:
    if value is None:
        return
    if value[:1] != bytes([_FORMAT]):
        raise WireError(f"transaction log: tag {_TAG_VOTES} begins with {value[:8].hex()}, unknown")
    position = 1
    while position < len(value):
        start = position + _VOTE.size
        if start > len(value):
            raise WireError("transaction log: a vote is cut short")
        producer_id, producer_epoch, size_bytes = _VOTE.unpack_from(value, position)
        position = start + size_bytes
        if position > len(value):
            raise WireError("transaction log: a vote is cut short")
        yield Vote(_text(value[start:position]), producer_id, producer_epoch)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise WireError(f"transaction log: {error}") from None


def _state(status: int) -> State:
    try:
        state = State(status)
    except ValueError:
        raise WireError(f"transaction log: unknown status {status}") from None
    if state in _NEVER_WRITTEN:
        raise WireError(f"transaction log: status {state.label} is never written")
    return state


def _encode_votes(votes: tuple[Vote, ...]) -> bytes:
    parts = [bytes([_FORMAT])]
    for vote in votes:
        name = vote.transactional_id.encode()
        parts += (_VOTE.pack(vote.producer_id, vote.producer_epoch, len(name)), name)
    return b"".join(parts)
