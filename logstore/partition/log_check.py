"""Whether one partition's directory is right: its log, and everything that is computed from it.

The batches are folded once, from the first on, and each file beside them is compared with the fold
at its offset. A log that was compacted, or whose first segment has no snapshot to begin with, tells
less than its files do. Then only what holds for every log is compared.

Memory: the state of the partition, and one segment's indexes.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, zip_longest

from logstore.disk.checkpoints import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    CorruptCheckpoint,
    decode_leader_epochs,
    decode_partition_metadata,
)
from logstore.disk.files import FileSystem
from logstore.partition.leader_epochs import LeaderEpochs
from logstore.partition.snapshot import SUFFIX, CorruptSnapshot, decode_snapshot
from logstore.partition.snapshot_kafka import SUFFIX as KAFKA_SUFFIX
from logstore.partition.snapshot_kafka import decode_kafka_snapshot
from logstore.partition.state import PartitionState
from logstore.partition.state_recovery import replay_batch
from logstore.segments.aborted_index import AbortedEntry, decode_entries
from logstore.segments.attachments import SmallFiles
from logstore.segments.batch_walk import WholeBatch
from logstore.segments.findings import Finding, Remedy, Severity
from logstore.segments.ledger import UNREADABLE
from logstore.segments.names import (
    LOG_SUFFIX,
    aborted_name,
    base_offsets,
    segment_name,
    segment_path,
)
from logstore.segments.segment_check import SegmentCheck

_SNAPSHOT_SUFFIXES = (SUFFIX, KAFKA_SUFFIX)


def _ignore_batch(_batch: WholeBatch) -> None:
    """The batches of a log whose records are of no interest."""


class LogCheck:
    """One partition under check. `run` does the work; the other attributes hold after it."""

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        *,
        was_clean: bool,
        may_have_gaps: bool,
        start_offset: int,
        recovery_point: int,
        is_lost: bool,
        cut_offset: int | None,
        on_read: Callable[[int], None],
        on_batch: Callable[[WholeBatch], None] = _ignore_batch,
    ) -> None:
        """`was_clean`: the broker was stopped, not killed. `may_have_gaps`: it may be compacted.

        `start_offset`: where the log begins, which may be within a batch.
        `is_lost`: the next start will find that acknowledged records are gone.
        `cut_offset`: where the next start will end the log, if it cuts anything off.
        `on_read` is told of each read, in bytes.
        """
        self._files = files
        self._directory = directory
        #: The name of the partition's directory.
        self.name = directory.rpartition("/")[2]
        self._small = SmallFiles(files, directory)
        self._was_clean = was_clean
        #: Whether compaction may have rewritten batches.
        self.may_have_gaps = may_have_gaps
        self._start_offset = start_offset
        self._recovery_point = recovery_point
        self._is_lost = is_lost
        self._cut_offset = cut_offset
        self._on_read = on_read
        self._on_batch = on_batch
        self.findings: list[Finding] = []
        self.base_offsets: list[int] = []
        self.state = PartitionState()
        #: Whether the fold knows all that the files beside the log may tell.
        self.is_complete = True

    @property
    def end_offset(self) -> int:
        """Where the whole batches end."""
        return self.state.end_offset

    def run(self) -> None:
        """Check everything. Blocks; raises OSError but for bad sectors."""
        names = self._files.list(self._directory)
        self.base_offsets = base_offsets(names)
        first_offset = next(iter(self.base_offsets), 0)
        self._begin(first_offset)
        snapshots = _Snapshots(self, names, first_offset)
        for base_offset, end_offset in pairwise([*self.base_offsets, None]):
            assert base_offset is not None
            self._check_segment(base_offset, end_offset, snapshots)
        snapshots.end()
        self._tell_cut()
        for base_offset, end_offset in pairwise([*self.base_offsets, self.end_offset + 1]):
            self._check_aborted(base_offset, end_offset)
        if self.base_offsets and self.state.leader_epochs.entries:
            self._check_epochs()
        self._check_metadata()

    def _begin(self, first_offset: int) -> None:
        """Begin with the state at the first segment: its snapshot has it, or it begins at 0."""
        self.state = PartitionState(first_offset)
        if not first_offset:
            return
        data = self.read(segment_name(first_offset, KAFKA_SUFFIX))
        try:
            if data is None:
                raise CorruptSnapshot("there is none")
            self.state = decode_kafka_snapshot(data, first_offset, 0)
        except CorruptSnapshot:
            self.is_complete = False

    def _check_segment(
        self, base_offset: int, end_offset: int | None, snapshots: _Snapshots
    ) -> None:
        is_unrecovered = not self._was_clean and (
            end_offset is None or end_offset > self._recovery_point
        )

        def expected(_position: int) -> bool:
            # A crash leaves a torn tail, but not where records were acknowledged.
            is_torn = is_unrecovered and self.end_offset >= self._recovery_point
            return is_torn and not self._is_lost

        check = SegmentCheck(
            self._files,
            self._directory,
            base_offset,
            end_offset,
            may_have_gaps=self.may_have_gaps,
            expected_damage=expected,
            on_read=self._on_read,
        )
        for batch in check.batches():
            self.is_complete &= not check.has_gaps
            snapshots.before(batch.header.base_offset)
            self._fold(batch)
            self._on_batch(batch)
        self.is_complete &= not check.has_gaps
        snapshots.before(self.end_offset)
        self.findings += check.findings

    def _fold(self, batch: WholeBatch) -> None:
        state, header = self.state, batch.header
        # Compaction, or a repair, has taken records away that the files beside the log may tell of.
        self.is_complete &= header.record_count > 0
        replay_batch(state, header, batch.data, 0)
        state.transactions.stabilize(state.end_offset)

    def _tell_cut(self) -> None:
        """Say what a start would cut off that a repair keeps: whole batches behind a damage.

        Torn bytes at the end are all that a kill leaves. Behind them no batch is whole.
        """
        cut_offset, findings = self._cut_offset, self.findings
        if cut_offset is None or cut_offset >= self.end_offset:
            return
        damages = [at for at, each in enumerate(findings) if each.remedy is Remedy.KEEP_WHOLE]
        for at in damages:
            findings[at] = findings[at]._replace(severity=Severity.ERROR)
        # The start ends the log in the last damaged segment that begins at or before the cut.
        cut_path = segment_path(self.name, cut_offset, LOG_SUFFIX)
        before_cut = [at for at in damages if findings[at].path <= cut_path]
        if before_cut:
            at = before_cut[-1]
            problem = (
                f"{findings[at].problem}. The next start would end the log at offset {cut_offset},"
                f" and cut off whole batches behind it, up to {self.end_offset - 1}"
            )
            findings[at] = findings[at]._replace(problem=problem)

    # The files beside the log.

    def aborted_of(self, base_offset: int, end_offset: int) -> list[AbortedEntry]:
        """Return what the `.txnindex` of a segment should hold."""
        folded = list(self.state.transactions.aborted.entries(base_offset, end_offset))
        if self.is_complete:
            return folded
        stored, _ = decode_entries(self.read(aborted_name(base_offset)) or b"")
        by_marker = {each.last_offset: each for each in folded}
        by_marker |= {
            each.last_offset: each
            for each in stored
            if base_offset <= each.last_offset < end_offset
        }
        return [by_marker[offset] for offset in sorted(by_marker)]

    def _check_aborted(self, base_offset: int, end_offset: int) -> None:
        name = aborted_name(base_offset)
        entries, is_whole = decode_entries(self.read(name) or b"")
        # Kafka counts the last stable offset in a way of its own.
        expected = [each[:3] for each in self.aborted_of(base_offset, end_offset)]
        if not is_whole:
            problem = f"entry {len(entries)} is no entry that follows on the others"
        elif [each[:3] for each in entries] != expected:
            problem = f"it has {len(entries)} aborted transactions, the log has {len(expected)}"
        else:
            return
        self.find(name, problem, Remedy.ABORTED, is_tail=end_offset > self.end_offset)

    def _check_epochs(self) -> None:
        data = self.read(LEADER_EPOCHS)
        is_new = len(self.base_offsets) == len(self.state.leader_epochs.entries) == 1
        if data is None and is_new and not self._was_clean:
            return  # It is made later (`EpochFiles`).
        try:
            if data is None:
                raise CorruptCheckpoint("it is missing")
            epochs = LeaderEpochs(decode_leader_epochs(data))
        except CorruptCheckpoint as error:
            self.find(LEADER_EPOCHS, str(error), Remedy.EPOCHS, is_tail=True)
            return
        entries = self.state.leader_epochs.entries
        if (problem := self._problem_of_start(epochs, entries[0][1])) is not None:
            path = f"{self.name}/{LEADER_EPOCHS}"
            self.findings.append(Finding(Severity.ERROR, path, problem, Remedy.EPOCHS))
            return
        for (epoch, first_offset), later in zip_longest(entries, entries[1:]):
            # A deletion of records moves the first epoch's start to that of the log.
            start_offset = max(first_offset, self._start_offset)
            if (self.end_offset if later is None else later[1]) <= start_offset:
                continue  # All of its records are deleted. The checkpoint may tell of later epochs.
            told = [one for one, start in epochs.entries if start <= start_offset]
            if told[-1:] != [epoch]:
                problem = f"the batch at {start_offset} is of epoch {epoch}, by the checkpoint of "
                problem += str(told[-1]) if told else "none"
                self.find(LEADER_EPOCHS, problem, Remedy.EPOCHS, is_tail=True)
                return

    def _problem_of_start(self, epochs: LeaderEpochs, first_offset: int) -> str | None:
        """Return what the checkpoint tells of the log's start that the log contradicts.

        `first_offset`: of the first batch. A deletion of records moves the first epoch's start.
        """
        told = next(iter(epochs.start_offsets), first_offset)
        due, base_offset = max(told, self._start_offset), self.base_offsets[0]
        if due < base_offset:
            return f"offsets {due} to {base_offset - 1} are gone, and no deletion of them is known"
        if told > max(first_offset, self._start_offset):
            return f"records before offset {told} were deleted, and a start brings them back"
        return None

    def _check_metadata(self) -> None:
        data = self.read(PARTITION_METADATA)
        try:
            if data is not None:
                decode_partition_metadata(data)
            elif PARTITION_METADATA in self._small.names():
                self.find(PARTITION_METADATA, "the disk cannot read it", Remedy.METADATA)
        except CorruptCheckpoint as error:
            self.find(PARTITION_METADATA, str(error), Remedy.METADATA)

    def read(self, name: str) -> bytes | None:
        """Return a small file, None where it is missing or the disk cannot read it."""
        try:
            return self._small.read(name)
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            return None

    def find(self, name: str, problem: str, remedy: Remedy, *, is_tail: bool = False) -> None:
        """Note a finding that costs no record. `is_tail`: after a kill a start mends it."""
        is_mended = is_tail and not self._was_clean
        severity = Severity.NOTE if is_mended else Severity.WARNING
        self.findings.append(Finding(severity, f"{self.name}/{name}", problem, remedy))


class _Snapshots:
    """The snapshots beside a log, each compared with the fold when that has come to its offset."""

    def __init__(self, check: LogCheck, names: list[str], first_offset: int) -> None:
        self._check = check
        self._waiting = sorted(
            (int(stem), name)
            for name in names
            for stem, _, suffix in (name.rpartition("."),)
            if f".{suffix}" in _SNAPSHOT_SUFFIXES and stem.isdigit() and int(stem) >= first_offset
        )

    def before(self, offset: int) -> None:
        """Compare the snapshots up to `offset`, at which the next batch begins."""
        while self._waiting and self._waiting[0][0] <= offset:
            self._compare(*self._waiting.pop(0))

    def end(self) -> None:
        """Tell of the snapshots behind the log's end."""
        for offset, name in self._waiting:
            problem = f"the log ends at {self._check.end_offset}, before {offset}"
            self._check.find(name, problem, Remedy.DROP, is_tail=True)

    def _compare(self, offset: int, name: str) -> None:
        problem = self._problem(offset, name)
        if problem is not None:
            self._check.find(name, problem, Remedy.DROP, is_tail=True)

    def _problem(self, offset: int, name: str) -> str | None:
        data = self._check.read(name)
        if data is None:
            return "the disk cannot read it"
        is_own = name.endswith(SUFFIX)
        try:
            state = (
                decode_snapshot(data).state if is_own else decode_kafka_snapshot(data, offset, 0)
            )
        except CorruptSnapshot as error:
            return str(error)
        if state.end_offset != offset:
            return f"it is of offset {state.end_offset}"
        return self._against_fold(state, is_own=is_own) if self._check.is_complete else None

    def _against_fold(self, state: PartitionState, *, is_own: bool) -> str | None:
        folded, offset = self._check.state, state.end_offset
        if folded.end_offset != offset:
            return f"no batch ends at {offset}"
        if (
            is_own
            and not self._check.may_have_gaps
            and folded.last_batch_crc not in (0, state.last_batch_crc)
        ):
            return f"the batch before {offset} has another CRC"
        if _open(state) != _open(folded):
            return f"it has other transactions open at {offset} than the log"
        for producer_id, producer in state.producers.items():
            known = folded.producers.get(producer_id)
            if known is None or (known.producer_epoch, known.last_sequence) != (
                producer.producer_epoch,
                producer.last_sequence,
            ):
                return f"it tells of producer {producer_id} what the log does not"
        return None


def _open(state: PartitionState) -> set[tuple[int, int]]:
    return {
        (each.producer_id, each.first_offset) for each in state.transactions.open_transactions()
    }
