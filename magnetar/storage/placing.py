"""The partitions of a data directory, placed for the nodes that are to lead them.

One node keeps its partitions in DATA itself, several keep theirs in DATA/nodes/<id>/, each a whole
log directory. A start with another number of nodes moves partitions before any node runs. The
catalog names the leader of each partition first. Then each partition goes from where it lies to
where it belongs (`logstore.directory.moving`). What is to be moved follows from the catalog and the
disk alone. So if a start is killed in between, the next one moves what is left, with any number of
nodes.

The name is not DATA/node-<id>/: a partition of a topic `node` would be called that.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from uuid import UUID

from logstore.directory.data_directory import (
    LOCK,
    DataDirectory,
    FoundPartition,
    Key,
    partition_name,
)
from logstore.directory.deleted_partitions import DELETE_SUFFIX
from logstore.directory.moving import StillDirectory
from logstore.disk.checkpoints import (
    CLEANER_OFFSETS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    RECOVERY_POINTS,
)
from logstore.disk.durability import Durability
from logstore.disk.files import DiskFiles, lock_file
from magnetar.config.broker import BrokerConfig
from magnetar.config.load import ConfigError
from magnetar.logging import get_logger
from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_rows import TopicRow
from magnetar.storage.leaders import Placement
from magnetar.storage.logs import as_config_errors
from magnetar.storage.lost_catalog import LOST, is_catalog_lost, tell_if_catalog_lost
from magnetar.storage.sqlite_database import FILE_NAME
from magnetar.storage.topic_counts import BROKER_DEFAULT, counts_of_new, internal_configs
from magnetar.storage.topic_names import INTERNAL

_log = get_logger("nodes")

#: The directory below DATA that has those of the nodes.
NODES = "nodes"
_FORMER_S = 3.0
_CHECKPOINTS = (RECOVERY_POINTS, LOG_START_OFFSETS, CLEANER_OFFSETS, META_PROPERTIES)


def node_directory(data_dir: Path, node_id: int) -> Path:
    """Return the log directory of one of several nodes."""
    return data_dir / NODES / str(node_id)


def node_directories(data_dir: Path) -> list[Path]:
    """Return the log directories of the nodes, as far as they exist, in the order of their ids."""
    if not has_nodes(data_dir):
        return []
    found = (data_dir / NODES).iterdir()
    return sorted(
        (path for path in found if path.name.isdecimal()), key=lambda path: int(path.name)
    )


def has_nodes(data_dir: Path) -> bool:
    """Whether several nodes used the directory last. Also true while their partitions are moved.

    Raises NotADirectoryError: what stands there hides their partitions.
    """
    nodes = data_dir / NODES
    is_directory = nodes.is_dir()
    if not is_directory and os.path.lexists(nodes):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(nodes))
    return is_directory


def refuse_part(path: Path) -> None:
    """Raise ConfigError for the directory of one of several nodes."""
    if (refusal := refusal_of_part(path)) is not None:
        raise ConfigError(refusal)


def refusal_of_part(path: Path) -> str | None:
    """Return why no command works on the directory of one of several nodes; None for any other.

    Such a directory is not complete: the catalog lies outside it, and other nodes may coordinate
    the transactions that are open in it.
    """
    nodes = path.absolute().parent
    whole = nodes.parent
    if path.name.isdecimal() and nodes.name == NODES and (whole / FILE_NAME).exists():
        return f"{path} is the directory of one of several nodes. Name {whole}."
    return None


def await_former_nodes(data_dir: Path) -> None:
    """Return once the nodes of a supervisor that was killed have ended too, or after 3 s."""
    deadline_s = time.monotonic() + _FORMER_S
    while has_nodes(data_dir) and time.monotonic() < deadline_s:
        try:
            release = lock_file(str(data_dir / LOCK), create=False)
        except BlockingIOError:
            time.sleep(0.01)
        except FileNotFoundError:
            return
        else:
            release()
            return


@contextmanager
def placed(data_dir: Path, config: BrokerConfig, node_ids: Sequence[int]) -> Iterator[str]:
    """Hold DATA for these nodes, with every partition in the directory of its leader.

    The value is the cluster's id. One node: every partition is in DATA itself. Raises ConfigError.
    """
    files = DiskFiles(str(data_dir.parent))
    with ExitStack() as held:
        held.callback(files.close)
        try:
            with as_config_errors():
                root = _still(held, files, data_dir)
                cluster_id = _place(data_dir, config, node_ids, files, root)
        except OSError as error:
            raise ConfigError(f"cannot place the partitions of {data_dir}: {error}.") from error
        yield cluster_id


def _place(
    data_dir: Path,
    config: BrokerConfig,
    node_ids: Sequence[int],
    files: DiskFiles,
    root: StillDirectory,
) -> str:
    """Move every partition to its leader's directory; return the cluster's id."""
    if len(node_ids) > 1 and is_catalog_lost(data_dir):
        # Before a catalog is made: a copy of the lost one may be put back.
        _refuse_without_catalog(data_dir, files, root)
    tell_if_catalog_lost(data_dir)
    with _catalog(data_dir, config, root) as catalog, ExitStack() as others:
        cluster_id = catalog.cluster_id()
        root.claim(cluster_id, node_ids[0])
        moves = _Moves(data_dir, catalog, node_ids, others, files, root)
        moves.refuse_twins()
        if len(node_ids) > 1:
            moves.refuse_unknown()
            make_internal(catalog, config)
        name_leaders(catalog, node_ids)
        moves.perform(accepts_damage=config.journal_damage_accept)
        return cluster_id


def _still(held: ExitStack, files: DiskFiles, path: Path) -> StillDirectory:
    directory = StillDirectory(files, str(path))
    held.callback(directory.release)
    return directory


@contextmanager
def _catalog(data_dir: Path, config: BrokerConfig, root: StillDirectory) -> Iterator[Catalog]:
    durability = Durability(config.durability)
    catalog = Catalog(data_dir, durability, cluster_id=root.cluster_id)
    try:
        yield catalog
    finally:
        # Before any node is forked: SQLite forbids to take an open database into a child.
        catalog.close()


def _refuse_without_catalog(data_dir: Path, files: DiskFiles, root: StillDirectory) -> None:
    """Raise ConfigError where partitions lie there: the catalog said which node leads which."""
    found = root.found()
    for path in node_directories(data_dir):
        found += DataDirectory(str(path), files).found_partitions({})
    if found:
        raise ConfigError(
            f"{data_dir} holds {found[0].topic}-{found[0].partition} and has no {FILE_NAME}, or an"
            " empty one. Put a copy of it back. Without a copy start once without --workers, to"
            f" take the topics over: {LOST} are lost then."
        )


def make_internal(catalog: Catalog, config: BrokerConfig) -> None:
    """Make the coordinators' topics: several nodes must agree on them from the first request."""
    known = {row.name for row in catalog.topics()}
    for name in sorted(INTERNAL - known):
        counts = counts_of_new(name, BROKER_DEFAULT, BROKER_DEFAULT, config)
        configs = internal_configs(name, config)
        catalog.add_topic(TopicRow(uuid.uuid4(), name, *counts, True, configs))


def name_leaders(catalog: Catalog, node_ids: Sequence[int]) -> None:
    """Name the leaders of all partitions in the catalog, unless it names them already."""
    several = len(node_ids) > 1
    wanted = set(node_ids) if several else set[int]()
    topics = catalog.topics()
    is_complete = all(
        len(topic.leaders) == (topic.partition_count if several else 0) for topic in topics
    )
    if is_complete and set(catalog.nodes.epochs()) == wanted:
        return
    placement = Placement(node_ids[0], node_ids)
    leaders = {
        topic.id: placement.of_new(topic.id, 0, topic.partition_count)[0] for topic in topics
    }
    catalog.nodes.place(sorted(wanted), leaders)
    _log.info("leaders named", nodes=len(node_ids), topics=len(topics))


class _Moves:
    """One look at all directories, and the moves that follow from it."""

    def __init__(
        self,
        data_dir: Path,
        catalog: Catalog,
        node_ids: Sequence[int],
        held: ExitStack,
        files: DiskFiles,
        root: StillDirectory,
    ) -> None:
        self._data_dir = data_dir
        self._catalog = catalog
        self._topics: dict[UUID, TopicRow] = {}
        self._by_name: dict[str, TopicRow] = {}
        self._deleted: set[UUID] = set()
        self._directories = {data_dir: root}
        wanted = [node_directory(data_dir, each) for each in node_ids] if len(node_ids) > 1 else []
        for path in dict.fromkeys((*node_directories(data_dir), *wanted)):
            self._directories[path] = _still(held, files, path)
        self._wanted = wanted
        self._found = {path: each.found() for path, each in self._directories.items()}

    def _read_catalog(self) -> None:
        self._topics = {row.id: row for row in self._catalog.topics()}
        self._by_name = {row.name: row for row in self._topics.values()}
        self._deleted = self._catalog.deleted_topics()

    def perform(self, *, accepts_damage: bool) -> None:
        """Move what lies in another directory than its leader's. Raises as `placed`."""
        self._read_catalog()
        moves: dict[tuple[Path, Path], list[Key]] = defaultdict(list)
        for path, directory in self._directories.items():
            deleted: list[Key] = []
            for found in self._found[path]:
                key = found.topic, found.partition
                if found.topic_id in self._deleted:
                    deleted.append(key)
                elif (target := self._home_of(path, found)) not in (None, path):
                    moves[path, target].append(key)
            for gone in directory.put_away(deleted):
                shutil.rmtree(gone)
        if self._deleted:
            # No directory has anything of them any more. A node that runs could not know that.
            self._catalog.forget_deleted_topics(self._deleted)
        for path in {path for pair in moves for path in pair}:
            self._directories[path].prepare(accepts_damage=accepts_damage)
        for (path, target), keys in moves.items():
            self._directories[target].expect(self._directories[path], keys)
            self._directories[target].take(self._directories[path], keys)
            _log.info(
                "partitions moved", source=str(path), target=str(target), partitions=len(keys)
            )
        for path, directory in self._directories.items():
            directory.forget_absent(partial(self._is_elsewhere, path))
        self._remove_deleted()
        self._remove_empty()

    def _is_elsewhere(self, path: Path, key: Key) -> bool:
        """Whether the catalog gives a partition of that name to another directory."""
        row = self._by_name.get(key[0])
        if row is None or key[1] >= row.partition_count:
            return False
        return self._home_in_catalog(row, key[1]) != path

    def _home_of(self, path: Path, found: FoundPartition) -> Path | None:
        """Return where a partition belongs; None: it stays where it is, whatever it is."""
        row = self._row_of(found)
        if row is None:
            # Goes to DATA, where the one node takes it over. Several nodes would pass over it.
            is_taken = not self._wanted and self._is_unknown(path, found)
            return self._data_dir if is_taken else None
        if self._wanted and found.partition >= row.partition_count:
            return None
        return self._home_in_catalog(row, found.partition)

    def _home_in_catalog(self, row: TopicRow, partition: int) -> Path:
        if not self._wanted:
            return self._data_dir
        return node_directory(self._data_dir, row.leaders[partition].node_id)

    def refuse_twins(self) -> None:
        """Raise ConfigError where a partition lies in several directories.

        Call this before the catalog names other leaders: until then it tells which of the
        directories the nodes have used last.
        """
        self._read_catalog()
        homes: dict[tuple[UUID | None, str], Path] = {}
        for path, partitions in self._found.items():
            for found in partitions:
                row, name = self._row_of(found), partition_name(found.topic, found.partition)
                if row is None and not self._is_unknown(path, found):
                    continue
                # A start without --workers moves to DATA whatever is unknown.
                other = homes.setdefault((row.id if row else None, name), path)
                if other != path:
                    raise ConfigError(
                        f"{name} lies in {other} and in {path}. magnetar check {self._data_dir}"
                        " says which belongs there, and magnetar repair sets the other one aside."
                    )

    def refuse_unknown(self) -> None:
        """Raise ConfigError for topics that nodes would not serve: one node takes them over.

        Call this before the catalog gets the coordinators' topics: partitions of these may lie in
        DATA, unknown to the catalog, too.
        """
        self._read_catalog()
        for path, partitions in self._found.items():
            for found in partitions:
                if self._is_unknown(path, found):
                    raise ConfigError(
                        f"{path} holds {found.topic}-{found.partition}, which the catalog does not"
                        " know. Start once without --workers to take it over, or move it away."
                    )

    def _is_unknown(self, path: Path, found: FoundPartition) -> bool:
        """Whether the partition is a broker's, and of no topic that the catalog knows or knew."""
        if found.topic_id in self._deleted or self._row_of(found) is not None:
            return False
        if path != self._data_dir and found.topic in self._by_name:
            return False  # An earlier topic of that name: its node sets it aside.
        return found.topic_id is not None or self._directories[path].holds_log(found)

    def _row_of(self, found: FoundPartition) -> TopicRow | None:
        if found.topic_id is None:
            return self._by_name.get(found.topic)
        return self._topics.get(found.topic_id)

    def _remove_deleted(self) -> None:
        """Remove deleted partitions from DATA, where no broker runs while there are nodes."""
        if self._wanted:
            for path in self._data_dir.glob(f"*{DELETE_SUFFIX}"):
                shutil.rmtree(path)

    def _remove_empty(self) -> None:
        """Remove the directories of nodes that are no more, where nothing of value is in them."""
        for path in reversed(self._directories):
            if path == self._data_dir or path in self._wanted:
                continue
            rest = [one.name for one in path.iterdir() if not _is_spent(one.name)]
            if rest:
                _log.warning("a node's directory stays", path=str(path), holds=sorted(rest)[:5])
            else:
                shutil.rmtree(path)
        if not self._wanted and has_nodes(self._data_dir) and not node_directories(self._data_dir):
            (self._data_dir / NODES).rmdir()


def _is_spent(name: str) -> bool:
    if name.removesuffix(".tmp") in _CHECKPOINTS:
        return True
    return name.startswith(".") or name.endswith((DELETE_SUFFIX, ".sock"))
