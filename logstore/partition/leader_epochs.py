"""Which leader wrote which offsets: the start offset of every leader epoch of one partition.

A fold over batch headers, which answers OffsetForLeaderEpoch; and the two files that tell Kafka and
its tools of a partition: leader epochs and topic id. While a broker runs, these files are never
synced for their own sake, because the batches' headers and the catalog say the same.
Source: KIP-101, KIP-320; Kafka's LeaderEpochFileCache.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from uuid import UUID

from logstore.disk.barriers import Procedure
from logstore.disk.checkpoints import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    encode_leader_epochs,
    encode_partition_metadata,
)
from logstore.segments.ledger import Ledger

UNDEFINED = -1


class LeaderEpochs:
    """Epochs and the offset at which each began, both ascending."""

    __slots__ = ("epochs", "latest", "start_offsets")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self.epochs: list[int] = []
        self.start_offsets: list[int] = []
        for epoch, start_offset in entries:
            self.epochs.append(epoch)
            self.start_offsets.append(start_offset)
        #: The newest epoch that has written, -1 if none has.
        self.latest = self._last()

    def _last(self) -> int:
        return self.epochs[-1] if self.epochs else UNDEFINED

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(leader epoch, start offset) of each, ascending."""
        return list(zip(self.epochs, self.start_offsets, strict=True))

    def on_batch(self, leader_epoch: int, base_offset: int) -> bool:
        """Account for a batch at the log's end; return whether a new epoch began with it."""
        if leader_epoch <= self.latest:
            return False
        self.epochs.append(leader_epoch)
        self.start_offsets.append(base_offset)
        self.latest = leader_epoch
        return True

    def with_leader(self, leader_epoch: int, end_offset: int) -> LeaderEpochs:
        """Return these epochs and the leader's, which begins at the log's end if it is new."""
        if leader_epoch <= self.latest:
            return self
        return LeaderEpochs([*self.entries, (leader_epoch, end_offset)])

    def merged(self, other: LeaderEpochs) -> LeaderEpochs:
        """Return the epochs of both, each from the earlier of its starts.

        Returns these alone if the two contradict each other.
        """
        starts = dict(self.entries)
        for epoch, start_offset in other.entries:
            starts[epoch] = min(start_offset, starts.get(epoch, start_offset))
        entries = sorted(starts.items())
        offsets = [start_offset for _, start_offset in entries]
        # A torn or foreign checkpoint may say anything; the batches' headers count.
        is_ascending = all(before < after for before, after in pairwise(offsets))
        return LeaderEpochs(entries) if is_ascending else self

    def end_offset_for(self, leader_epoch: int, end_offset: int) -> tuple[int, int]:
        """Return the largest epoch not above `leader_epoch`, and where it ended (exclusive).

        (-1, -1) for an epoch in which nothing was written yet, and for -1. For an epoch before all
        that are known: that epoch and the start of the first known one. `end_offset` is where the
        newest epoch ends.
        """
        if not self.epochs or leader_epoch == UNDEFINED or leader_epoch > self.epochs[-1]:
            return UNDEFINED, UNDEFINED
        if leader_epoch == self.epochs[-1]:
            return leader_epoch, end_offset
        above = bisect_right(self.epochs, leader_epoch)
        epoch = self.epochs[above - 1] if above else leader_epoch
        return epoch, self.start_offsets[above]

    def epoch_at(self, offset: int) -> int:
        """Return the epoch in which the record at `offset` was written, -1 if none is known."""
        at = bisect_right(self.start_offsets, offset) - 1
        return self.epochs[at] if at >= 0 else UNDEFINED

    def prune(self, start_offset: int) -> bool:
        """Forget epochs that ended at or before `start_offset`; return whether any did."""
        first = bisect_right(self.start_offsets, start_offset) - 1
        if first < 0 or (first == 0 and self.start_offsets[0] == start_offset):
            return False
        del self.epochs[:first], self.start_offsets[:first]
        self.start_offsets[0] = max(self.start_offsets[0], start_offset)
        return True

    def truncate(self, end_offset: int) -> None:
        """Forget epochs that began at `end_offset` or after."""
        while self.start_offsets and self.start_offsets[-1] >= end_offset:
            del self.epochs[-1], self.start_offsets[-1]
        self.latest = self._last()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LeaderEpochs):
            return NotImplemented
        return self.entries == other.entries

    __hash__ = None  # type: ignore[assignment]  # mutable: not to be a key

    def __repr__(self) -> str:
        return f"LeaderEpochs({self.entries})"


class EpochFiles:
    """partition.metadata and leader-epoch-checkpoint of one partition.

    A new log has no checkpoint while it has one leader and one segment: each batch tells the same,
    and one file less makes new partitions cheaper. The checkpoint is made when the first segment
    ends, when another leader writes, and when the log is closed or found after a crash.
    """

    def __init__(self, ledger: Ledger, topic_id: UUID | None) -> None:
        self._ledger = ledger
        self._topic_id = topic_id
        #: Whether the topic id is known to be in its file.
        self._is_identified = topic_id is None
        #: Whether the checkpoint tells of all epochs up to `leader_epoch`.
        self._is_told = False
        #: The leader for which nothing is left to be written: for any other `begin_epoch` is due.
        self.leader_epoch = UNDEFINED

    def begin(self, latest_epoch: int, stored_id: UUID | None) -> None:
        """Begin with the files as they lie there; `stored_id` is the topic id known to be in them.

        Where the topic id is missing, the next append writes it: the journal's entries are found
        again by that id alone.
        """
        topic_id = self._topic_id
        if topic_id is not None:
            self._is_identified = topic_id == stored_id
        if not self._is_identified:
            found = self._ledger.attachments.read(PARTITION_METADATA)
            self._is_identified = found is not None and found == self._metadata()
        if self._is_identified:
            self.leader_epoch = latest_epoch
        self._is_told = latest_epoch != UNDEFINED

    @property
    def stored_id(self) -> UUID | None:
        """The topic id, if it is known to be in its file."""
        return self._topic_id if self._is_identified else None

    def begin_epoch(self, epochs: LeaderEpochs, leader_epoch: int, end_offset: int) -> None:
        """Write what the files lack before the first batch of a leader, at `end_offset`."""
        self._identify()
        if epochs.epochs:
            self.write(epochs.with_leader(leader_epoch, end_offset))
        self.leader_epoch = leader_epoch

    def write(self, epochs: LeaderEpochs) -> None:
        """Write the checkpoint, and the topic id if that is missing."""
        self._identify()
        self._is_told = True
        # A leader whose first batch was refused is missing here: `begin_epoch` is due again.
        self.leader_epoch = epochs.latest
        data = encode_leader_epochs(epochs.entries)
        self._ledger.attachments.write(LEADER_EPOCHS, data, sync=False)

    def mend(self, epochs: LeaderEpochs) -> None:
        """Make both files agree with the log after a crash, which may have left them anyhow."""
        self._identify()
        if self._ledger.attachments.read(LEADER_EPOCHS) != encode_leader_epochs(epochs.entries):
            self.write(epochs)

    def on_roll(self, epochs: LeaderEpochs) -> None:
        """Make the checkpoint: Kafka's recovery does not read the segment that ends here."""
        if not self._is_told:
            self.write(epochs)

    def securing(self, epochs: LeaderEpochs) -> Procedure[None]:
        """Make the checkpoint durably, if there is none: the next start reads no headers for it."""
        if not self._is_told and epochs.epochs:
            self._is_told = True
            data = encode_leader_epochs(epochs.entries)
            yield from self._ledger.attachments.replacing(LEADER_EPOCHS, ((0, data),))

    def _identify(self) -> None:
        if not self._is_identified:
            self._is_identified = True
            self._ledger.attachments.write(PARTITION_METADATA, self._metadata(), sync=False)

    def _metadata(self) -> bytes:
        assert self._topic_id is not None, "else no file tells it"
        return encode_partition_metadata(self._topic_id)
