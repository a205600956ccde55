"""The shards of `__transaction_state`: each partition's log, and the state that is a fold of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from coordinator.transactions.index import TransactionIndex
from coordinator.transactions.records import decode_key, decode_value
from coordinator.transactions.shard import Shard
from logstore.partition import PartitionLog
from magnetar.runtime.shard_log import ShardLog
from wire.records import Marker


class RunningShard(NamedTuple):
    """One shard's state and its log. Append to the one and apply to the other in one step."""

    state: Shard
    log: ShardLog


def replay_shards(logs: Iterable[PartitionLog], index: TransactionIndex) -> list[RunningShard]:
    """Return the shards of these partitions, in their order, as their logs say. Blocks.

    `index` is new, and spans them.
    """
    shards = [RunningShard(Shard(log.partition, index), ShardLog(log)) for log in logs]
    for shard in shards:
        _replay(shard)
    return shards


def _replay(shard: RunningShard) -> None:
    """Apply everything that the shard's log holds, in order. WireError: it holds garbage."""
    for _, record in shard.log.replay():
        if isinstance(record, Marker) or record.key is None:
            continue
        transactional_id = decode_key(record.key)
        if transactional_id is None:
            continue
        if record.value is None:
            shard.state.remove(transactional_id)
        else:
            shard.state.apply(decode_value(transactional_id, record.value))
