"""Pending acks: offsets committed inside transactions that have not ended.

A pending ack is stored under its batch's (producer id, producer epoch), and its (group, topic,
partition) tells which transactions hold it. It keeps the log offset of its record: if a plain
commit of the same partition comes meanwhile, the later record wins. The marker of the transaction
resolves all its acks. Replay feeds the same records and markers, so replay leads to the same state
as the live path.

Under transaction version 2 a marker's epoch is above the epoch of the data that the marker ends. So
a marker resolves every epoch up to its own. If a producer has acks at several epochs, the marker
decides only the newest: the older ones belong to transactions that ended before, and are dropped.

`transaction.offset.conflict.detection.enable` turns conflict detection on; it is off by default.
Kafka lets two open transactions commit the same offset of a group. The last commit wins, and the
output of both counts, although both read the same input. Only its generation fences the slower of
two such consumers (KIP-447), and clients without group metadata send no generation. Pulsar refuses
the second acknowledgement (TransactionConflictException), and `check_conflicts` does the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from coordinator.groups.offsets.committed import CommittedOffset, OffsetKey
from wire.error_code import ErrorCode
from wire.errors import KafkaError


class Stored(NamedTuple):
    """A committed offset, and the offset of its record in the shard's log."""

    committed: CommittedOffset
    log_offset: int


#: (producer id, producer epoch)
Transaction = tuple[int, int]
#: (group, topic)
Place = tuple[str, str]
#: The transaction that holds a partition, or a set of two or more. A set takes four times the
#: memory, and few partitions need one; each transaction that ends would look through a long tuple.
Holders = tuple[Transaction] | set[Transaction]
#: For one topic and one group: partition -> the offset that a commit makes visible
Acks = dict[int, Stored]


@dataclass(slots=True)
class _Held:
    """What open transactions hold of one topic of one group. Exists only while they hold some."""

    transaction_count: int = 0
    #: partition -> the transactions that hold it
    holders: dict[int, Holders] = field(default_factory=dict)

    def release(self, transaction: Transaction, partitions: Iterable[int]) -> None:
        """Forget a transaction, beside others, and the partitions that it alone holds."""
        self.transaction_count -= 1
        holders = self.holders
        for partition in partitions:
            held_by = holders[partition]
            if not isinstance(held_by, set):
                del holders[partition]
                continue
            held_by.remove(transaction)
            if len(held_by) == 1:
                holders[partition] = (held_by.pop(),)


@dataclass(slots=True)
class PendingAcks:
    """The pending acks of one shard's open transactions.

    By topic and group, not by partition alone: a marker then takes, or drops, what a transaction
    has for a topic as a whole. One transaction may have hundreds of thousands of acks.
    """

    #: producer id -> producer epoch -> place -> acks. No table is empty.
    _staged: dict[int, dict[int, dict[Place, Acks]]] = field(default_factory=dict)
    #: group -> topic -> what is held. No table is empty.
    _held: dict[str, dict[str, _Held]] = field(default_factory=dict)
    #: topic -> the groups of which offsets are held for it
    _groups_of: dict[str, dict[str, None]] = field(default_factory=dict)

    def stage(self, producer_id: int, producer_epoch: int, key: OffsetKey, stored: Stored) -> None:
        """Hold an offset until the producer's marker comes.

        A later offset of the same transaction and key replaces the earlier one.
        """
        group_id, topic, partition = key
        places = self._staged.setdefault(producer_id, {}).setdefault(producer_epoch, {})
        acks = places.get((group_id, topic))
        if acks is None:
            acks = places[group_id, topic] = {}
            self._hold(group_id, topic)
        if partition not in acks:
            holders = self._held[group_id][topic].holders
            transaction, held_by = (producer_id, producer_epoch), holders.get(partition)
            if held_by is None:
                holders[partition] = (transaction,)
            elif isinstance(held_by, set):
                held_by.add(transaction)
            else:
                holders[partition] = {*held_by, transaction}
        acks[partition] = stored

    def resolve(self, producer_id: int, producer_epoch: int) -> dict[Place, Acks]:
        """Forget the producer's acks up to this epoch; return those that the marker decides.

        They are the caller's then. The cost is that of the places, unless other transactions hold
        offsets of the same topic and group.
        """
        epochs = self._staged.get(producer_id)
        decided: dict[Place, Acks] = {}
        if epochs is None:
            return decided
        for epoch in sorted(epochs):
            if epoch > producer_epoch:
                break
            # Each newer epoch overwrites `decided`: so the offsets of older epochs are dropped.
            decided = epochs.pop(epoch)
            for place, acks in decided.items():
                self._release(place, (producer_id, epoch), acks)
        if not epochs:
            del self._staged[producer_id]
        return decided

    def drop(self, key: OffsetKey) -> None:
        """Forget the key in every transaction, because its offset was deleted.

        The cost is that of the transactions that hold the key: a group is deleted in one step.
        """
        group_id, topic, partition = key
        held = self._held_at(group_id, topic)
        if held is None or partition not in held.holders:
            return
        for producer_id, epoch in held.holders.pop(partition):
            epochs = self._staged[producer_id]
            acks = epochs[epoch][group_id, topic]
            del acks[partition]
            if acks:
                continue
            held.transaction_count -= 1
            del epochs[epoch][group_id, topic]
            if not epochs[epoch]:
                del epochs[epoch]
            if not epochs:
                del self._staged[producer_id]
        if not held.holders:
            self._forget(group_id, topic)

    def holds(self, key: OffsetKey) -> bool:
        """Return whether a transaction that has not ended may change this offset."""
        return key.partition in self._holders(key.group_id, key.topic)

    def holds_each(self, group_id: str, topic: str, partitions: Iterable[int]) -> list[bool]:
        """Return `holds` for each of these partitions of a topic."""
        return list(map(self._holders(group_id, topic).__contains__, partitions))

    def held_by_another(
        self, key: OffsetKey, producer_id: int, producer_epoch: int
    ) -> tuple[int, int] | None:
        """Return (producer id, epoch) of another open transaction that holds the key, or None."""
        holders = self._holders(key.group_id, key.topic).get(key.partition, ())
        return next((each for each in holders if each != (producer_id, producer_epoch)), None)

    def holds_any(self, group_id: str) -> bool:
        """Return whether a transaction that has not ended may change any offset of the group."""
        return group_id in self._held

    @property
    def groups(self) -> Set[str]:
        """The groups of which a transaction that has not ended may change any offset."""
        return self._held.keys()

    @property
    def topics(self) -> Set[str]:
        """The topics whose offsets a transaction that has not ended may change, in any group."""
        return self._groups_of.keys()

    def held_of(self, topic: str, topic_id: UUID) -> dict[OffsetKey, None]:
        """Return the keys that transactions hold for the topic of this id, and for no other.

        A later topic of the same name may have the key, too: to drop that would lose its offset.
        """
        staged = self._staged
        return {
            OffsetKey(group_id, topic, partition): None
            for group_id in self._groups_of.get(topic, ())
            for partition, holders in self._held[group_id][topic].holders.items()
            if all(
                staged[producer_id][epoch][group_id, topic][partition].committed.is_of(topic_id)
                for producer_id, epoch in holders
            )
        }

    def partitions_held(self, group_id: str, topic: str) -> Set[int]:
        """Return the partitions of the topic that some transaction holds for the group."""
        return self._holders(group_id, topic).keys()

    def held_in(self, group_id: str) -> dict[str, Set[int]]:
        """Return the partitions of each topic that some transaction holds for the group."""
        return {topic: held.holders.keys() for topic, held in self._held.get(group_id, {}).items()}

    def open_transactions(self) -> dict[Transaction, int]:
        """Return the number of pending acks of each (producer id, producer epoch)."""
        return {
            (producer_id, epoch): sum(map(len, places.values()))
            for producer_id, epochs in self._staged.items()
            for epoch, places in epochs.items()
        }

    def _held_at(self, group_id: str, topic: str) -> _Held | None:
        return self._held.get(group_id, {}).get(topic)

    def _holders(self, group_id: str, topic: str) -> Mapping[int, Holders]:
        held = self._held_at(group_id, topic)
        return {} if held is None else held.holders

    def _hold(self, group_id: str, topic: str) -> None:
        """Count one more transaction that holds some of the topic for the group."""
        held = self._held_at(group_id, topic)
        if held is None:
            held = self._held.setdefault(group_id, {})[topic] = _Held()
            self._groups_of.setdefault(topic, {})[group_id] = None
        held.transaction_count += 1

    def _release(self, place: Place, transaction: Transaction, acks: Acks) -> None:
        group_id, topic = place
        held = self._held[group_id][topic]
        if held.transaction_count > 1:
            held.release(transaction, acks)
        else:
            self._forget(group_id, topic)

    def _forget(self, group_id: str, topic: str) -> None:
        del self._held[group_id][topic], self._groups_of[topic][group_id]
        if not self._held[group_id]:
            del self._held[group_id]
        if not self._groups_of[topic]:
            del self._groups_of[topic]


def check_conflicts(
    pending: PendingAcks, producer_id: int, producer_epoch: int, keys: Iterable[OffsetKey]
) -> None:
    """Raise TRANSACTION_ABORTABLE where another open transaction holds any of the keys.

    The caller must stage none of the keys then. The refused client aborts its transaction and reads
    its input again; the other transaction continues.
    """
    for key in keys:
        other = pending.held_by_another(key, producer_id, producer_epoch)
        if other is not None:
            raise KafkaError(
                ErrorCode.TRANSACTION_ABORTABLE,
                f"{key.topic}-{key.partition} of group {key.group_id} is pending in the"
                f" transaction of producer {other[0]} at epoch {other[1]}",
            )


def conflict_code(code: ErrorCode, *, is_abortable_known: bool) -> ErrorCode:
    """Return the code for a client that may not know TRANSACTION_ABORTABLE.

    Such a client gets ILLEGAL_GENERATION, which every client answers in the same way: it aborts the
    transaction, and its producer may continue.
    """
    if code is ErrorCode.TRANSACTION_ABORTABLE and not is_abortable_known:
        return ErrorCode.ILLEGAL_GENERATION
    return code
