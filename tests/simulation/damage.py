"""What a damaged disk excuses: what was said, by the broker or to a reader, and nothing else.

A witness against a partition is excused where its files, or the journal that holds its batches,
were damaged and the broker has told an operator of that partition. A failed start is excused by any
damage. The rest stands: corruption that nothing tells of is the fault that these histories look
for.
"""

from __future__ import annotations

import errno
import logging as levels
from collections.abc import Iterable, Iterator

from coordinator.transactions.metadata import TopicPartition
from logstore.directory.data_directory import ForeignDirectory
from logstore.disk.checkpoints import CorruptCheckpoint
from logstore.disk.files import StorageFailure
from logstore.sync.journal import JournalDamaged
from magnetar.config.load import ConfigError
from magnetar.storage.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from tests.simulation.world.log_lines import Line

#: How a broker ends that a disk has failed.
_PLAIN = (StorageFailure, JournalDamaged, CorruptCheckpoint, ForeignDirectory, ConfigError)
_PARTITION = "TopicPartition("
_STRAY = "data set aside"
#: How lines begin that tell an operator of damage.
_OF_DAMAGE = (
    _STRAY,
    "acknowledged records are gone",
    "damaged records of the journal",
    "journal passed over",
    "a segment cannot be read",
    "a damaged log",
    "a log that cannot be read",
    "the start offsets of logs are lost",
)
#: What a client is told, or finds, of records that are not what they were.
_NOTICED = ("unreadable: ", "answered CORRUPT_MESSAGE")
#: Of offsets that a group has committed, and of transactions, which lie in partitions that no
#: witness names.
_OF_COORDINATORS = {
    CONSUMER_OFFSETS: ("lost commit: ", "offsets: "),
    TRANSACTION_STATE: ("lost: worker", "dirty: ", "torn: ", "offsets: ", "hanging: ", "cycle: "),
}
_LOST_STARTS = "the start offsets of logs are lost"
#: Of deletions that are undone then.
_OF_STARTS = ("untrimmed: ", "back: log_start_offset ")
_CODES = {errno.EIO, errno.ENOSPC}


def false_alarms(lines: Iterable[Line], put_back_count: int) -> Iterator[str]:
    """Yield what an operator was told of damage, on a disk without any.

    `put_back_count`: how often the operator has put foreign data into the directory.
    """
    for line in lines:
        if line.event.startswith(_STRAY) and put_back_count:
            continue
        if line.event.startswith(_OF_DAMAGE):
            yield f"false alarm: {line.event}: {line.fields}"


def unexcused_failures(failures: Iterable[BaseException]) -> Iterator[BaseException]:
    """Yield those ends of a broker that do not name the disk as their reason."""
    for failure in failures:
        if isinstance(failure, OSError) and failure.errno in _CODES:
            continue
        if not isinstance(failure, _PLAIN):
            yield failure


def partitions_of(paths: Iterable[str]) -> set[TopicPartition]:
    """Return the partitions whose segments are among these files."""
    found = set()
    for path in paths:
        *_, directory, name = path.split("/")
        topic, _, index = directory.rpartition("-")
        if name.endswith(".log") and index.isdigit():
            found.add(TopicPartition(topic, int(index)))
    return found


def tells_of_starts(lines: Iterable[Line]) -> bool:
    """Whether the broker has told an operator that the start offsets of logs are lost."""
    return any(line.event.startswith(_LOST_STARTS) for line in lines)


def told_of(lines: Iterable[Line]) -> set[TopicPartition]:
    """Return the partitions of which the broker has told an operator."""
    found = set()
    for line in lines:
        topic, partition = line.fields.get("topic"), line.fields.get("partition")
        if line.level >= levels.WARNING and isinstance(topic, str) and isinstance(partition, int):
            found.add(TopicPartition(topic, partition))
    return found


def unexcused(
    witnesses: Iterable[str],
    told: Iterable[TopicPartition],
    damaged: Iterable[TopicPartition],
    *,
    has_lost_starts: bool = False,
) -> list[str]:
    """Return the witnesses that no damage explains.

    `told`: the broker has said that these partitions have lost something. `damaged`: a client finds
    wrong checksums in their records, which tells it enough. `has_lost_starts`: it has said that it
    no longer knows where logs start.
    """
    told = list(told)
    lost = [repr(one) for one in told]
    of_coordinators = tuple(
        word
        for topic, words in _OF_COORDINATORS.items()
        for word in words
        if any(one.topic == topic for one in told)
    )
    rotten = [repr(one) for one in damaged]
    return [
        each
        for each in witnesses
        if not any(one in each for one in lost)
        and not (has_lost_starts and each.startswith(_OF_STARTS))
        and not (any(word in each for word in _NOTICED) and any(one in each for one in rotten))
        # A transaction or a group is of no partition alone.
        and (_PARTITION in each or not lost)
        and not each.startswith(of_coordinators)
    ]
