"""A log directory under check: journal, catalog, checkpoints, and partition by partition.

A data directory is one log directory, or one for each node beside its own, where the catalog is.
Changes nothing. The caller holds the locks. Memory: the state of one partition, the topics of the
catalog, the transactions that are open, and the journal, which is bounded.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from logstore.directory.closed_logs import CLOSED_LOGS, CorruptClosedLogs, decode_closed_logs
from logstore.directory.damage import Damage
from logstore.directory.data_directory import DataDirectory, ForeignDirectory, Key, partition_name
from logstore.directory.start_forecast import StartForecast
from logstore.disk.checkpoints import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    CorruptCheckpoint,
    Offsets,
    decode_offsets,
)
from logstore.disk.files import FileSystem
from logstore.partition.log_check import LogCheck
from logstore.segments.findings import Finding, Remedy, Severity
from logstore.segments.ledger import GONE, UNREADABLE
from logstore.segments.names import LOG_SUFFIX, segment_path
from logstore.sync.journal import JOURNAL, JournalDamaged, read_journal
from magnetar.checking.hanging import Hanging
from magnetar.checking.stored_catalog import (
    CatalogDamaged,
    StoredCatalog,
    StoredTopic,
    read_catalog,
)
from magnetar.storage.lost_catalog import LOST, is_catalog_lost
from magnetar.storage.sqlite_database import FILE_NAME
from magnetar.storage.topic_names import TRANSACTION_STATE

#: What DATA is called in a finding, where the path of another directory would stand.
ROOT = "the data directory itself"
_CHECKPOINTS = (RECOVERY_POINTS, LOG_START_OFFSETS, CLEANER_OFFSETS)


class CheckedPartition(NamedTuple):
    """A partition whose check is done, for a repair."""

    key: Key
    log: LogCheck
    topic_id: UUID | None
    may_have_gaps: bool


class Shared:
    """What the checks of all directories of one broker share."""

    def __init__(
        self, partitions: Mapping[str, Set[Key]], directories: Mapping[str, DataDirectory]
    ) -> None:
        """`partitions`: what lies in each directory, by its path below DATA."""
        self.partitions = dict(partitions)
        self._directories = directories
        #: As the check of DATA has read it.
        self.catalog: StoredCatalog | None = None
        self.hanging = Hanging()

    def others_with(self, key: Key, below: str) -> list[str]:
        """Return the directories in which a partition of that name lies, without `below`."""
        return [other for other, keys in self.partitions.items() if other != below and key in keys]

    def holds_log(self, key: Key, below: str) -> bool:
        """Whether that directory has a segment of the partition."""
        return self._directories[below].holds_log(key)


def lying_partitions(data: DataDirectory) -> dict[Key, UUID | None]:
    """Return the partitions in a directory with their topic ids, None where nothing tells it."""
    found: dict[Key, UUID | None] = {}
    for key in data.lying():
        try:
            found[key] = data.read_topic_id(partition_name(*key))
        except NotADirectoryError:
            continue  # A file of that name is no partition.
        except OSError as error:
            if error.errno not in UNREADABLE | GONE:
                raise
            found[key] = None  # The check of the partition tells why.
    return found


class DirectoryCheck:
    """One log directory. `findings` does the work."""

    def __init__(
        self,
        files: FileSystem,
        path: str,
        *,
        on_read: Callable[[int], None],
        on_partition: Callable[[CheckedPartition, list[Finding]], None] | None = None,
        shared: Shared | None = None,
        below: str = "",
    ) -> None:
        """`on_read` is told of each read, in bytes; `on_partition` of each log that was checked.

        `below`: the path of a node's directory below DATA, as "nodes/2/"; "" for DATA itself. DATA
        is checked first, and the checks of its nodes get the same `shared`.
        """
        self._files = files
        self._path = path
        self._below = below
        self._shared = shared or Shared({}, {})
        self._data = DataDirectory(path, files)
        self._on_read = on_read
        self._on_partition = on_partition
        self.was_clean = files.exists(f"{path}/{CLEAN_SHUTDOWN}")
        self._offsets: dict[str, Offsets] = {}
        self._forecast: StartForecast

    def findings(self) -> Iterator[Finding]:
        """Yield what is wrong, part by part, by its path in DATA. Blocks; raises OSError."""
        for finding in self._findings():
            yield finding._replace(path=self._below + finding.path)

    def _findings(self) -> Iterator[Finding]:
        yield from self._as_findings(self._check_journal())
        if not self._below:
            yield from self._as_findings(self._check_catalog())
        yield from self._as_findings(self._check_identity())
        for name in _CHECKPOINTS:
            yield from self._as_findings(self._check_offsets(name))
        yield from self._as_findings(self._check_closed_logs())
        self._forecast = StartForecast(
            self._files,
            self._path,
            was_clean=self.was_clean,
            recovery_points=self._offsets[RECOVERY_POINTS],
            start_offsets=self._offsets[LOG_START_OFFSETS],
        )
        yield from self._check_replay()
        found = lying_partitions(self._data)
        # A repair may have set partitions aside since these were listed.
        self._shared.partitions[self._below] = found.keys()
        for key, topic_id in found.items():
            yield from self._as_findings(self._check_partition(key, topic_id))
        yield from self._check_gone()

    def _as_findings(self, findings: Iterator[Finding]) -> Iterator[Finding]:
        """Yield `findings`. If what is no file, or cannot be read, ends them, yield that too."""
        try:
            yield from findings
        except OSError as error:
            if error.errno not in UNREADABLE | GONE:
                raise
            path = str(error.filename or error).removeprefix(f"{self._path}/")
            problem = f"{error.strerror}. Put the file back, or take away what is in its place"
            yield Finding(Severity.ERROR, path, problem, Remedy.BY_HAND)

    # What lies in the directory itself.

    def _check_journal(self) -> Iterator[Finding]:
        if self.was_clean or (data := self._data.top.read(JOURNAL)) is None:
            return
        try:
            entries, damaged_at = read_journal(data)
        except JournalDamaged as damaged:
            yield Finding(Severity.ERROR, JOURNAL, str(damaged), Remedy.NONE)
            return
        if damaged_at:
            problem = f"the records at bytes {damaged_at} are damaged, but later ones are whole"
            yield Finding(Severity.ERROR, JOURNAL, problem, Remedy.JOURNAL)
        elif entries:
            problem = f"the broker was killed: {len(entries)} entries go to their files again"
            yield Finding(Severity.NOTE, JOURNAL, problem, Remedy.NONE)

    def _check_catalog(self) -> Iterator[Finding]:
        try:
            self._shared.catalog = read_catalog(Path(self._path))
        except CatalogDamaged as damaged:
            yield Finding(Severity.ERROR, FILE_NAME, str(damaged), Remedy.CATALOG)
        if is_catalog_lost(Path(self._path)):
            problem = f"it is missing or empty: {LOST} are lost, unless a copy is put back"
            yield Finding(Severity.ERROR, FILE_NAME, problem, Remedy.NONE)

    def _check_identity(self) -> Iterator[Finding]:
        """Compare whose the directory is with whose the catalog is: a start refuses two owners."""
        catalog = self._shared.catalog
        wanted = {} if catalog is None else {"cluster.id": catalog.cluster_id}
        try:
            self._data.check_identity(wanted)
        except ForeignDirectory as foreign:
            problem = f"{foreign}: no broker starts. Put the right directory or catalog there"
            yield Finding(Severity.ERROR, META_PROPERTIES, problem, Remedy.BY_HAND)

    def _check_offsets(self, name: str) -> Iterator[Finding]:
        self._offsets[name] = {}
        try:
            if (data := self._read(name)) is not None:
                self._offsets[name] = decode_offsets(data)
        except CorruptCheckpoint as error:
            severity, problem = Severity.WARNING, str(error)
            if name == LOG_START_OFFSETS:
                # The logs do not say what was deleted from within a segment.
                severity = Severity.ERROR
                problem += ". Where logs begin is lost: deleted records may be there again"
            yield Finding(severity, name, problem, Remedy.OFFSETS)

    def _check_closed_logs(self) -> Iterator[Finding]:
        """Compare what a clean stop has noted with the sizes of the files.

        A start looks only at their times: if these are unchanged, it believes what was noted.
        """
        if not self.was_clean:
            return
        self._read(CLEAN_SHUTDOWN)  # A start deletes it, but no directory of that name.
        if (data := self._read(CLOSED_LOGS)) is None:
            return
        try:
            logs = decode_closed_logs(data)
        except CorruptClosedLogs as error:
            yield Finding(Severity.WARNING, CLOSED_LOGS, str(error), Remedy.DROP)
            return
        for key, (_, log) in logs.items():
            for base_offset, size_bytes in log.ledger.segments:
                path = segment_path(partition_name(*key), base_offset, LOG_SUFFIX)
                size = self._size(path)
                if size != size_bytes:
                    is_now = "is gone" if size is None else f"has {size}"
                    problem = f"{path} had {size_bytes} bytes at the clean stop, and {is_now} now"
                    yield Finding(Severity.WARNING, CLOSED_LOGS, problem, Remedy.DROP)
                    return

    # Partitions.

    def _check_partition(self, key: Key, topic_id: UUID | None) -> Iterator[Finding]:
        name = partition_name(*key)
        # Raises if it is a link that leads nowhere, which lacks more than its topic id.
        self._files.list(f"{self._path}/{name}")
        catalog = self._shared.catalog
        stored = None if catalog is None else catalog.topics.get(key[0])
        if catalog is not None:
            finding = self._against_catalog(catalog, key, topic_id)
            if finding is not None:
                yield finding
                if finding.remedy in (Remedy.STRAY, Remedy.TWIN):
                    return
        may_have_gaps = (
            stored is None or stored.is_compacted or key in self._offsets[CLEANER_OFFSETS]
        )
        is_state = key[0] == TRANSACTION_STATE
        recovery_point = self._offsets[RECOVERY_POINTS].get(key, 0)
        damage = self._forecast.damage_of(key, topic_id if stored is None else stored.topic_id)
        is_lost = damage is not None and damage.lost_offsets > 0
        log = LogCheck(
            self._forecast.files,
            f"{self._path}/{name}",
            was_clean=self.was_clean,
            may_have_gaps=may_have_gaps,
            start_offset=self._offsets[LOG_START_OFFSETS].get(key, 0),
            recovery_point=recovery_point,
            is_lost=is_lost,
            cut_offset=damage.end_offset if damage is not None and damage.truncated_bytes else None,
            on_read=self._on_read,
            **({"on_batch": self._shared.hanging.on_batch} if is_state else {}),
        )
        log.run()
        yield from log.findings
        bounds = list(self._check_bounds(key, log, recovery_point))
        is_told = any(each.severity is Severity.ERROR for each in (*log.findings, *bounds))
        if damage is not None and is_lost and not is_told:
            bounds.append(self._lacks(damage))
        yield from bounds
        for transaction in log.state.transactions.open_transactions():
            self._shared.hanging.add_open(key, transaction, self._below + name)
        if self._on_partition is not None:
            known_id = None if stored is None else stored.topic_id
            checked = CheckedPartition(key, log, known_id, may_have_gaps)
            self._on_partition(checked, log.findings)

    def _against_catalog(
        self, catalog: StoredCatalog, key: Key, topic_id: UUID | None
    ) -> Finding | None:
        name = partition_name(*key)
        stored = catalog.topics.get(key[0])
        if topic_id in catalog.deleted:
            problem = "it is the rest of a deleted topic"
            return Finding(Severity.NOTE, name, problem, Remedy.NONE)
        if (twin := self._twin(key, stored)) is not None:
            return twin
        if stored is None:
            start = "start without --workers" if catalog.has_nodes else "start"
            problem = f"the catalog has no such topic: the next {start} takes it over"
            return Finding(Severity.NOTE, name, problem, Remedy.NONE)
        if key[1] >= stored.partition_count:
            problem = f"by the catalog the topic has {stored.partition_count} partitions"
            return Finding(Severity.WARNING, name, problem, Remedy.STRAY)
        if topic_id is None:
            # A corrupt file is the log's own finding.
            path = f"{name}/{PARTITION_METADATA}"
            if not self._files.exists(f"{self._path}/{path}"):
                return Finding(Severity.NOTE, path, "it is missing", Remedy.METADATA)
        elif topic_id != stored.topic_id:
            problem = f"its topic id is {topic_id}, by the catalog {stored.topic_id}"
            return Finding(Severity.ERROR, name, problem, Remedy.STRAY)
        if (home := stored.home_of(key[1])) != self._below:
            problem = f"it belongs in {home or ROOT}: the next start moves it"
            return Finding(Severity.NOTE, name, problem, Remedy.NONE)
        return None

    def _twin(self, key: Key, stored: StoredTopic | None) -> Finding | None:
        """Tell of a partition that lies in several directories, unless this is where it belongs."""
        others = self._shared.others_with(key, self._below)
        home = None if stored is None else stored.home_of(key[1])
        if not others or home == self._below:
            return None
        if home in others and self._shared.holds_log(key, home):
            problem = f"it belongs in {home or ROOT}, where it lies too: no start moves it"
            return Finding(Severity.ERROR, partition_name(*key), problem, Remedy.TWIN)
        problem = f"it lies in {others[0] or ROOT} too: no start moves it. Move one of the two away"
        return Finding(Severity.ERROR, partition_name(*key), problem, Remedy.BY_HAND)

    def _check_bounds(self, key: Key, log: LogCheck, recovery_point: int) -> Iterator[Finding]:
        name = partition_name(*key)
        if recovery_point > log.end_offset:
            problem = f"{name} was durable up to {recovery_point}, and ends at {log.end_offset}"
            yield Finding(Severity.ERROR, RECOVERY_POINTS, problem, Remedy.OFFSETS)
        start_offset = self._offsets[LOG_START_OFFSETS].get(key, 0)
        if start_offset > log.end_offset:
            problem = f"{name} begins at {start_offset}, behind its end at {log.end_offset}"
            yield Finding(Severity.ERROR, LOG_START_OFFSETS, problem, Remedy.OFFSETS)

    def _lacks(self, damage: Damage) -> Finding:
        """Return what a start will say of a log that ends before what the journal has of it."""
        name, end_offset = partition_name(damage.topic, damage.partition), damage.end_offset
        problem = (
            f"{name} lacks {damage.lost_offsets} offsets that were acknowledged: the next start"
            f" would end it at {end_offset}"
        )
        return Finding(Severity.ERROR, JOURNAL, problem, Remedy.JOURNAL)

    def _check_replay(self) -> Iterator[Finding]:
        """Tell what the journal holds and the next start will pass over."""
        for path in self._forecast.replayed.foreign:
            problem = f"what it holds of {path} stays out: another broker has written there since"
            yield Finding(Severity.WARNING, JOURNAL, problem, Remedy.JOURNAL)
        for name in self._forecast.replayed.unknown:
            problem = f"what it holds of {name} stays out: no {PARTITION_METADATA} is there"
            yield Finding(Severity.WARNING, JOURNAL, problem, Remedy.JOURNAL)

    def _is_anywhere(self, key: Key) -> bool:
        # Checkpoints go on telling of partitions that were moved to another node's directory.
        return any(key in lying for lying in self._shared.partitions.values())

    def _check_gone(self) -> Iterator[Finding]:
        """Tell of partitions that are not there, by what the checkpoints and the journal know."""
        catalog = self._shared.catalog
        topics = {} if catalog is None else catalog.topics
        for name, topic in topics.items():
            for index in range(topic.partition_count):
                key = name, index
                if topic.home_of(index) == self._below and not self._is_anywhere(key):
                    yield from self._as_findings(self._check_lost(key, topic.topic_id))
        for key, offset in self._offsets[RECOVERY_POINTS].items():
            if offset > 0 and key[0] not in topics and not self._is_anywhere(key):
                yield self._gone(key, offset)

    def _check_lost(self, key: Key, topic_id: UUID) -> Iterator[Finding]:
        damage = self._forecast.damage_of(key, topic_id)
        if damage is not None and damage.lost_offsets:
            yield self._gone(key, damage.end_offset + damage.lost_offsets)

    def _gone(self, key: Key, offset: int) -> Finding:
        name, catalog = partition_name(*key), self._shared.catalog
        if catalog is not None and key[0] not in catalog.topics:
            problem = f"{name} is deleted, and still in the checkpoint"
            return Finding(Severity.NOTE, RECOVERY_POINTS, problem, Remedy.NONE)
        problem = f"{name} is gone, with what was durable below {offset}"
        if key not in self._offsets[RECOVERY_POINTS]:
            return Finding(Severity.ERROR, JOURNAL, problem, Remedy.JOURNAL)
        return Finding(Severity.ERROR, RECOVERY_POINTS, problem, Remedy.OFFSETS)

    def _read(self, name: str) -> bytes | None:
        try:
            return self._data.top.read(name)
        except OSError as error:
            if error.errno == errno.EIO:
                return bytes(1)  # Torn, as far as a reader can tell.
            raise

    def _size(self, path: str) -> int | None:
        try:
            return self._files.facts(f"{self._path}/{path}").size_bytes
        except FileNotFoundError:
            return None
