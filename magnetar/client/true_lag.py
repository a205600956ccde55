"""How many records a group has yet to read, as opposed to offsets.

Kafka's tools subtract offsets. Transaction markers and aborted records have offsets too, so a group
that has read everything seems to lag for ever (KIP-98 has no answer to it). Here the log between
the committed offset and the stable offset is looked into. Only headers of batches are decoded, yet
the data has to be fetched, so a look has a bound; what lies beyond it counts as not looked into.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from magnetar.client.batches import FETCH_BYTES_MAX, Outcome, fetch_stretch, judged
from magnetar.client.cluster import Client, TopicPartition
from magnetar.client.errors import Refused
from magnetar.client.partitions import READ_COMMITTED
from wire.error_code import ErrorCode

#: What one look reads of one partition.
PARTITION_BYTES_MAX = 4 << 20
_REMEMBERED_MAX = 20_000


@dataclass(frozen=True)
class Counted:
    """What lies in a range of offsets below the stable offset."""

    records: int = 0
    """Those that a read_committed reader gets."""
    aborted: int = 0
    markers: int = 0
    unseen: int = 0
    """Offsets that were not looked into. They may hold anything."""

    def __add__(self, other: Counted) -> Counted:
        return Counted(
            self.records + other.records,
            self.aborted + other.aborted,
            self.markers + other.markers,
            self.unseen + other.unseen,
        )

    @property
    def records_max(self) -> int:
        return self.records + self.unseen


@dataclass
class TrueLag:
    """Counts, and remembers counts: a range that only grew at its end is not read again."""

    bytes_max: int = PARTITION_BYTES_MAX
    _known: dict[tuple[TopicPartition, int], tuple[int, Counted]] = field(default_factory=dict)

    def count(
        self,
        client: Client,
        leaders: Mapping[TopicPartition, int],
        place: TopicPartition,
        first: int,
        stable: int,
    ) -> Counted:
        """Return what lies in [first, stable) of a partition."""
        if first >= stable:
            return Counted()
        known_end, known = self._remembered(place, first, stable)
        # There was too much to read before, and there is more now.
        if known.unseen:
            return known + Counted(unseen=stable - known_end)
        found = known + self._look(client, leaders[place], place, known_end, stable)
        if len(self._known) >= _REMEMBERED_MAX:
            self._known.clear()
        self._known[place, first] = (stable, found)
        return found

    def known(self, place: TopicPartition, first: int, stable: int) -> Counted:
        """Return what is remembered of [first, stable); the rest counts as not looked into."""
        if first >= stable:
            return Counted()
        known_end, known = self._remembered(place, first, stable)
        return known + Counted(unseen=stable - known_end)

    def _remembered(self, place: TopicPartition, first: int, stable: int) -> tuple[int, Counted]:
        """Return up to where the offsets from `first` on were looked into, and what lies there."""
        known_end, known = self._known.get((place, first), (first, Counted()))
        if known_end > stable:
            # The topic was deleted and made anew.
            return first, Counted()
        return known_end, known

    def _look(
        self, client: Client, leader: int, place: TopicPartition, first: int, stable: int
    ) -> Counted:
        offset, read_bytes, found = first, 0, Counted()
        while offset < stable and read_bytes < self.bytes_max:
            try:
                size = min(FETCH_BYTES_MAX, self.bytes_max)
                stretch = fetch_stretch(client, leader, place, offset, READ_COMMITTED, size)
            except Refused as refusal:
                if refusal.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                # Retention has taken what lay there, while it was looked at.
                break
            if not stretch.batches:
                break
            for header, batch, outcome in judged(stretch):
                # A reader may stand in the middle of a batch, and a batch may cross the end.
                inside = min(header.next_offset, stable) - max(header.base_offset, offset)
                counted = max(min(inside, header.record_count), 0)
                read_bytes += len(batch)
                if outcome.is_marker:
                    found += Counted(markers=counted)
                elif outcome is Outcome.ABORTED:
                    found += Counted(aborted=counted)
                else:
                    found += Counted(records=counted)
            offset = stretch.next_offset
        return found + Counted(unseen=max(stable - offset, 0))
