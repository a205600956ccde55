"""Pending acks: offsets committed inside transactions that have not ended.

A pending ack is stored under its batch's (producer id, producer epoch), and under its (group,
topic, partition). It keeps the log offset of its record: if a plain commit of the same partition
comes meanwhile, the later record wins. The marker of the transaction resolves all its acks. Replay
feeds the same records and markers, so replay leads to the same state as the live path.

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

from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple
from uuid import UUID

from coordinator.groups.offsets.committed import CommittedOffset, OffsetKey
from wire.error_code import ErrorCode
from wire.errors import KafkaError


class Stored(NamedTuple):
    """A committed offset, and the offset of its record in the shard's log."""

    committed: CommittedOffset
    log_offset: int


@dataclass(slots=True)
class PendingAcks:
    """The pending acks of one shard's open transactions."""

    #: producer id -> producer epoch -> key -> the offset that a commit makes visible
    _staged: dict[int, dict[int, dict[OffsetKey, Stored]]] = field(default_factory=dict)
    #: key -> (producer id, producer epoch) of each transaction that holds it
    _holders: defaultdict[OffsetKey, set[tuple[int, int]]] = field(
        default_factory=lambda: defaultdict(set)
    )
    #: group -> how many of its keys are held
    _groups: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    #: topic -> how many of its keys are held
    _topics: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def stage(self, producer_id: int, producer_epoch: int, key: OffsetKey, stored: Stored) -> None:
        """Hold an offset until the producer's marker comes.

        A later offset of the same transaction and key replaces the earlier one.
        """
        acks = self._staged.setdefault(producer_id, {}).setdefault(producer_epoch, {})
        if key not in acks:
            if key not in self._holders:
                self._groups[key.group_id] += 1
                self._topics[key.topic] += 1
            self._holders[key].add((producer_id, producer_epoch))
        acks[key] = stored

    def resolve(self, producer_id: int, producer_epoch: int) -> dict[OffsetKey, Stored]:
        """Forget the producer's acks up to this epoch; return those that the marker decides."""
        epochs = self._staged.get(producer_id)
        decided: dict[OffsetKey, Stored] = {}
        if epochs is None:
            return decided
        for epoch in sorted(epochs):
            if epoch > producer_epoch:
                break
            # Each newer epoch overwrites `decided`: so the offsets of older epochs are dropped.
            decided = epochs.pop(epoch)
            for key in decided:
                self._release(key, (producer_id, epoch))
        if not epochs:
            del self._staged[producer_id]
        return decided

    def drop(self, key: OffsetKey) -> None:
        """Forget the key in every transaction, because its offset was deleted.

        The cost is that of the transactions that hold the key: a group is deleted in one step.
        """
        if key not in self._holders:
            return
        for producer_id, epoch in self._holders[key]:
            epochs = self._staged[producer_id]
            del epochs[epoch][key]
            if not epochs[epoch]:
                del epochs[epoch]
            if not epochs:
                del self._staged[producer_id]
        self._forget(key)

    def holds(self, key: OffsetKey) -> bool:
        """Return whether a transaction that has not ended may change this offset."""
        return key in self._holders

    def holds_each(self, group_id: str, topic: str, partitions: Iterable[int]) -> list[bool]:
        """Return `holds` for each of these partitions of a topic."""
        # A key equals the tuple of its fields, and to make one runs as Python code.
        keys = zip(repeat(group_id), repeat(topic), partitions, strict=False)
        return list(map(self._holders.__contains__, keys))

    def held_by_another(
        self, key: OffsetKey, producer_id: int, producer_epoch: int
    ) -> tuple[int, int] | None:
        """Return (producer id, epoch) of another open transaction that holds the key, or None."""
        holders = self._holders.get(key, ())
        return next((each for each in holders if each != (producer_id, producer_epoch)), None)

    def holds_any(self, group_id: str) -> bool:
        """Return whether a transaction that has not ended may change any offset of the group."""
        return group_id in self._groups

    @property
    def topics(self) -> Set[str]:
        """The topics whose offsets a transaction that has not ended may change, in any group."""
        return self._topics.keys()

    def held_of(self, topic: str, topic_id: UUID) -> dict[OffsetKey, None]:
        """Return the keys that transactions hold for the topic of this id, and for no other.

        A later topic of the same name may have the key, too: to drop that would lose its offset.
        """
        if topic not in self._topics:
            return {}
        staged = self._staged
        return {
            key: None
            for key, holders in self._holders.items()
            if key.topic == topic
            and all(
                staged[producer_id][epoch][key].committed.is_of(topic_id)
                for producer_id, epoch in holders
            )
        }

    def held_keys(self) -> Iterator[OffsetKey]:
        """Yield every key that some transaction holds."""
        return iter(self._holders)

    def open_transactions(self) -> dict[tuple[int, int], int]:
        """Return the number of pending acks of each (producer id, producer epoch)."""
        return {
            (producer_id, epoch): len(acks)
            for producer_id, epochs in self._staged.items()
            for epoch, acks in epochs.items()
        }

    def _release(self, key: OffsetKey, transaction: tuple[int, int]) -> None:
        self._holders[key].remove(transaction)
        if not self._holders[key]:
            self._forget(key)

    def _forget(self, key: OffsetKey) -> None:
        del self._holders[key]
        for counts, name in ((self._groups, key.group_id), (self._topics, key.topic)):
            counts[name] -= 1
            if not counts[name]:
                del counts[name]


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
