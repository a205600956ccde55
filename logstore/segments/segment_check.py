"""Whether a segment of a closed log is whole, and whether its indexes tell the truth of it.

An offset index has to name places where batches begin, and their last offsets; a time index the
largest timestamp up to an offset. A missing entry makes a search longer and is no finding; what
stands behind the last valid entry is, for Kafka's preallocated zeros aside it is torn or stale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from logstore.disk.files import FileSystem
from logstore.segments.batch_walk import DamagedPlace, WholeBatch, walk
from logstore.segments.findings import Finding, Remedy, Severity
from logstore.segments.ledger import UNREADABLE
from logstore.segments.names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    segment_path,
)
from logstore.segments.offset_index import OffsetIndex
from logstore.segments.time_index import TimeIndex
from wire.records.header import NO_TIMESTAMP, OFFSET_MAX


class SegmentCheck:
    """One segment under check. `batches` does the work; then `findings` and `next_offset` hold."""

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        base_offset: int,
        end_offset: int | None,
        *,
        may_have_gaps: bool,
        expected_damage: Callable[[int], bool],
        on_read: Callable[[int], None],
    ) -> None:
        """`end_offset` is where the next segment begins, None for the last one.

        `expected_damage` tells whether a start mends damage at a position by itself. `on_read`
        is told of each read, in bytes.
        """
        self._files = files
        self._directory = directory
        self._name = directory.rpartition("/")[2]
        self._base_offset = base_offset
        self._end_offset = end_offset
        self._may_have_gaps = may_have_gaps
        self._expected_damage = expected_damage
        self._on_read = on_read
        self.findings: list[Finding] = []
        self.next_offset = base_offset
        self.has_gaps = False

    def batches(self) -> Iterator[WholeBatch]:
        """Yield the whole batches. Blocks; raises OSError."""
        file = self._files.open(segment_path(self._directory, self._base_offset, LOG_SUFFIX))
        try:
            size = file.size()
            raw = self._read(OFFSET_INDEX_SUFFIX), self._read(TIME_INDEX_SUFFIX)
            index = OffsetIndex.decode(self._base_offset, raw[0] or b"", size)
            times = TimeIndex.decode(self._base_offset, raw[1] or b"")
            check = _Entries(index, times)
            end_offset = OFFSET_MAX if self._end_offset is None else self._end_offset
            for each in walk(file, self._base_offset, end_offset, index.positions):
                if isinstance(each, DamagedPlace):
                    self._on_damage(each)
                    continue
                self._expect(each.header.base_offset, each.position)
                self.next_offset = each.header.next_offset
                check.on_batch(each)
                self._on_read(each.header.size_bytes)
                yield each
        finally:
            file.close()
        if self._end_offset is not None and not self.findings:
            self._expect(self._end_offset, size)
        if not any(finding.remedy is Remedy.KEEP_WHOLE for finding in self.findings):
            self._tell_indexes(check, index, times, raw, size)

    def _on_damage(self, place: DamagedPlace) -> None:
        is_expected = self._expected_damage(place.position)
        self._find(
            LOG_SUFFIX,
            f"bytes {place.position} to {place.end}: {place.reason}",
            Remedy.KEEP_WHOLE,
            Severity.NOTE if is_expected else Severity.ERROR,
        )
        # What follows is judged by itself: the damage explains the gap.
        self.has_gaps = True

    def _expect(self, offset: int, position: int) -> None:
        """Note a gap before `offset`, and tell of it unless a damage or compaction explains it."""
        if offset == self.next_offset:
            return
        if not self._may_have_gaps and not self.has_gaps:
            reason = f"offsets {self.next_offset} to {offset - 1} are missing at byte {position}"
            is_expected = self._expected_damage(position)
            severity = Severity.NOTE if is_expected else Severity.ERROR
            self._find(LOG_SUFFIX, reason, Remedy.KEEP_WHOLE, severity)
        self.has_gaps = True

    def _tell_indexes(
        self,
        check: _Entries,
        index: OffsetIndex,
        times: TimeIndex,
        raw: tuple[bytes | None, bytes | None],
        size: int,
    ) -> None:
        severity = Severity.NOTE if self._expected_damage(size) else Severity.WARNING
        encoded = index.encode(), times.encode()
        wrong = check.end()
        for suffix, data, valid, problem in zip(
            (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX), raw, encoded, wrong, strict=True
        ):
            if data is None:
                # The active segment's indexes are written when it ends, or the broker stops.
                path = segment_path(self._directory, self._base_offset, suffix)
                if self._end_offset is None and not self._files.exists(path):
                    continue
                problem = "it is missing, or cannot be read"
            elif problem is None and any(data[len(valid) :]):
                problem = f"what begins at byte {len(valid)} is no entry that follows on the others"
            if problem is not None:
                self._find(suffix, problem, Remedy.INDEX, severity)

    def _read(self, suffix: str) -> bytes | None:
        try:
            file = self._files.open(segment_path(self._directory, self._base_offset, suffix))
        except FileNotFoundError:
            return None
        try:
            return file.read(file.size(), 0)
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            return None
        finally:
            file.close()

    def _find(self, suffix: str, problem: str, remedy: Remedy, severity: Severity) -> None:
        path = segment_path(self._name, self._base_offset, suffix)
        self.findings.append(Finding(severity, path, problem, remedy))


class _Entries:
    """The entries of both indexes, compared with the batches as they go by."""

    def __init__(self, index: OffsetIndex, times: TimeIndex) -> None:
        self._offsets = iter(index)
        self._times = iter(times)
        self._offset_entry = next(self._offsets, None)
        self._time_entry = next(self._times, None)
        self._max_timestamp = NO_TIMESTAMP
        self._wrong: list[str | None] = [None, None]

    def on_batch(self, batch: WholeBatch) -> None:
        header = batch.header
        entry = self._offset_entry
        while entry is not None and entry[1] <= batch.position:
            if entry[1] < batch.position:
                self._note(0, f"no batch begins at byte {entry[1]}")
            elif entry[0] != header.last_offset:
                self._note(
                    0,
                    f"the batch at byte {entry[1]} ends with {header.last_offset}, not {entry[0]}",
                )
            entry = self._offset_entry = next(self._offsets, None)
        before = self._max_timestamp
        self._max_timestamp = max(before, header.max_timestamp)
        timed = self._time_entry
        # An entry tells the largest timestamp up to its offset. Kafka's may lie inside a batch.
        while timed is not None and timed[1] <= header.last_offset:
            lowest = self._max_timestamp if timed[1] == header.last_offset else before
            if not lowest <= timed[0] <= self._max_timestamp:
                self._note(1, f"the largest timestamp up to offset {timed[1]} is not {timed[0]}")
            timed = self._time_entry = next(self._times, None)

    def end(self) -> tuple[str | None, str | None]:
        """Return what is wrong with each index, now that no batch follows."""
        if self._offset_entry is not None:
            self._note(0, f"no batch begins at byte {self._offset_entry[1]}")
        if self._time_entry is not None:
            self._note(1, f"the log ends before offset {self._time_entry[1]}")
        return self._wrong[0], self._wrong[1]

    def _note(self, which: int, problem: str) -> None:
        self._wrong[which] = self._wrong[which] or problem
