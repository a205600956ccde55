"""What `magnetar repair` does: the remedies of a check's findings, until a check finds none.

Directories are mended one after the other, DATA first, which has the catalog. What is set aside
goes to DATA.

A directory is mended in rounds: check, then mend. A log is mended before what is computed from it,
which the next round checks anew. After each step a start or another repair can go on: what is
replaced is set aside first, and durable there.
"""

from __future__ import annotations

from collections.abc import Callable

from logstore.directory.closed_logs import CLOSED_LOGS
from logstore.directory.data_directory import DataDirectory
from logstore.directory.journal_replay import replay_journal
from logstore.directory.log_offsets import LogOffsets
from logstore.disk.checkpoints import LOG_START_OFFSETS, RECOVERY_POINTS
from logstore.disk.files import FileSystem
from logstore.partition.mending import Mending, SetAside
from logstore.segments.findings import Finding, Remedy
from logstore.sync.journal import JOURNAL, remove_journal
from magnetar.checking.directory_check import CheckedPartition, DirectoryCheck, Shared
from magnetar.storage.sqlite_database import FILE_NAME

#: The journal, the logs, what is computed from them, the checkpoints: more rounds mend nothing.
_ROUNDS = 6
#: The remedies that change what others see; in a round the first kind that is due is done alone.
_FIRST = (
    (Remedy.METADATA, Remedy.CATALOG, Remedy.STRAY, Remedy.TWIN),
    (Remedy.JOURNAL,),
    (Remedy.KEEP_WHOLE,),
)


class Repair:
    """One repair of a log directory whose lock the caller holds. Blocks; raises OSError."""

    def __init__(
        self,
        files: FileSystem,
        data: str,
        *,
        on_read: Callable[[int], None],
        tell: Callable[[Finding], None],
        shared: Shared | None = None,
        below: str = "",
    ) -> None:
        """`tell` is called with each finding before its remedy is done.

        `data` is DATA; `shared` and `below` are as of `DirectoryCheck`.
        """
        self._files = files
        self._path = f"{data}/{below}".rstrip("/")
        self._below = below
        self._shared = shared
        self._on_read = on_read
        self._tell = tell
        self._aside = SetAside(files, data, below)
        self._partitions: list[CheckedPartition] = []
        self._was_clean = False
        #: What no remedy mends.
        self._by_hand: list[Finding] = []

    def run(self) -> list[Finding]:
        """Mend everything; return what no remedy has mended. As a rule that is nothing."""
        due: list[Finding] = []
        for _ in range(_ROUNDS):
            due = self._due()
            if not due:
                return self._by_hand
            if self._is_journal_due():
                # Before any log is touched: a log may lack what the journal has for it.
                first = _of_first_kind(due, _FIRST[:2])
                self._mend([each for each in first if each.remedy is not Remedy.JOURNAL])
                self._replay_journal(due)
            else:
                self._mend(_of_first_kind(due, _FIRST) or due)
        return [*self._due(), *self._by_hand]

    def _due(self) -> list[Finding]:
        self._partitions = []
        check = DirectoryCheck(
            self._files,
            self._path,
            on_read=self._on_read,
            on_partition=lambda checked, _: self._partitions.append(checked),
            shared=self._shared,
            below=self._below,
        )
        self._was_clean = check.was_clean
        found = [each for each in check.findings() if each.remedy is not Remedy.NONE]
        by_hand = {Remedy.BY_HAND}
        if any(each.remedy in by_hand for each in found):
            # They would forget the offsets of a partition that could not be checked.
            by_hand.add(Remedy.OFFSETS)
        self._by_hand = [each for each in found if each.remedy in by_hand]
        return [each for each in found if each.remedy not in by_hand]

    def _local(self, finding: Finding) -> Finding:
        """Return a finding by its path in this directory."""
        return finding._replace(path=finding.path.removeprefix(self._below))

    def _is_journal_due(self) -> bool:
        return not self._was_clean and self._files.exists(f"{self._path}/{JOURNAL}")

    def _replay_journal(self, due: list[Finding]) -> None:
        for finding in due:
            if finding.remedy is Remedy.JOURNAL:
                self._tell(finding)
                self._aside.copy(JOURNAL, finding.problem)
        data = DataDirectory(self._path, self._files)
        replay_journal(self._files, self._path, data.read_topic_id, accepts_damage=True)
        remove_journal(self._files, self._path)
        self._files.sync_directory(self._path)

    def _mend(self, findings: list[Finding]) -> None:
        if not findings:
            return
        # It tells of the logs as they were.
        self._aside.move(CLOSED_LOGS, "the logs that it tells of are being mended")
        mendings = {
            each.log.name: Mending(
                self._files,
                self._path,
                each.log.name,
                each.log,
                each.topic_id,
                self._aside,
                may_have_gaps=each.may_have_gaps,
            )
            for each in self._partitions
        }
        is_offsets_due = False
        done: set[tuple[str, Remedy]] = set()
        for told in findings:
            self._tell(told)
            finding = self._local(told)
            if (finding.path, finding.remedy) in done:
                continue  # One remedy for all that is wrong with a file.
            done.add((finding.path, finding.remedy))
            mending = mendings.get(finding.path.partition("/")[0])
            if finding.remedy is Remedy.OFFSETS:
                is_offsets_due = True
            elif finding.remedy is Remedy.CATALOG:
                # The catalog last: SQLite would write an old -wal into a new catalog.
                for suffix in ("-shm", "-wal", ""):
                    self._aside.move(FILE_NAME + suffix, finding.problem)
            elif mending is not None:
                mending.perform(finding)
            else:
                self._aside.move(finding.path, finding.problem)
        if is_offsets_due:
            self._write_offsets(findings)

    def _write_offsets(self, findings: list[Finding]) -> None:
        """Write checkpoints that agree with the logs, all of whose bytes have been verified."""
        offsets = LogOffsets(DataDirectory(self._path, self._files).top)
        offsets.read()
        torn = {self._local(each).path for each in findings if each.remedy is Remedy.OFFSETS}
        for name in sorted(torn):
            self._aside.move(name, "it did not agree with the logs, or was torn")
        ends = {each.key: each.log.end_offset for each in self._partitions}
        # After a kill the bytes may be in memory alone: no recovery point may be raised.
        points = ends if self._was_clean else offsets.recovery_points
        offsets.recovery_points = {
            key: min(point, ends[key]) for key, point in points.items() if ends.get(key)
        }
        offsets.start_offsets = {
            key: start for key, start in offsets.start_offsets.items() if start <= ends.get(key, 0)
        }
        offsets.write(RECOVERY_POINTS, sync=True)
        offsets.write(LOG_START_OFFSETS, sync=True)


def _of_first_kind(findings: list[Finding], kinds: tuple[tuple[Remedy, ...], ...]) -> list[Finding]:
    for kind in kinds:
        chosen = [each for each in findings if each.remedy in kind]
        if chosen:
            return chosen
    return []
