"""The shards of `__transaction_state`: each partition's log, and the state that is a fold of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from coordinator.transactions.index import TransactionIndex
from coordinator.transactions.metadata import TransactionMetadata
from coordinator.transactions.records import (
    END_GROWTH_BYTES_MAX,
    decode_key,
    decode_value,
    encode_record,
)
from coordinator.transactions.shard import Shard
from coordinator.transactions.states import State
from logstore.partition.log import PartitionLog
from magnetar.runtime.shard_log import ShardLog
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records import BATCH_OVERHEAD, Marker, SimpleRecord

#: What a batch of one record has besides key and value, at most.
_BATCH_BYTES_BESIDE = BATCH_OVERHEAD + 40


class RunningShard(NamedTuple):
    """One shard's state and its log. Append to the one and apply to the other in one step."""

    state: Shard
    log: ShardLog


def replay_shards(logs: Iterable[PartitionLog], index: TransactionIndex) -> list[RunningShard]:
    """Return the shards of these partitions, in their order, as their logs say. Blocks.

    `index` is new, and spans them.
    """
    # What begins is bounded (`encoded`), so that it can end; an end may never be refused, although
    # the bound may have become less.
    shards = [
        RunningShard(Shard(log.partition, index), ShardLog(log, is_bounded=False)) for log in logs
    ]
    for shard in shards:
        _replay(shard)
    return shards


def _replay(shard: RunningShard) -> None:
    """Make the shard's state what its log's last record of each key says. WireError: it holds
    garbage.

    Every record is the whole new value of its key, so only the last one is decoded: of the
    thousands that a busy id leaves until the log is compacted the others cost no more than their
    reading.
    """
    newest: dict[bytes, bytes | None] = {}
    for _, record in shard.log.replay():
        if not isinstance(record, Marker) and record.key is not None:
            newest[record.key] = record.value
    for key, value in newest.items():
        transactional_id = decode_key(key)
        if transactional_id is not None and value is not None:
            shard.state.apply(decode_value(transactional_id, value))


def encoded(txn: TransactionMetadata, log: ShardLog) -> SimpleRecord:
    """Return the record. MESSAGE_TOO_LARGE where an open transaction's end might not fit."""
    record = encode_record(txn)
    if txn.state is State.ONGOING and record.value is not None:
        size_bytes = len(record.value) + _BATCH_BYTES_BESIDE + len(txn.transactional_id) * 4
        if size_bytes + END_GROWTH_BYTES_MAX > log.batch_bytes_max:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{txn.transactional_id} holds {len(txn.partitions)} partitions: too many",
            )
    return record
