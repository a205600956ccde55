"""What a log directory finds on its disk, as lines of the log: each once, with the name of the file
or the partition."""

from __future__ import annotations

from logstore.directory.damage import Damage
from logstore.directory.journal_replay import Replayed
from logstore.directory.log_directory import LogDirectory
from logstore.disk.checkpoints import LOG_START_OFFSETS
from magnetar.logging import get_logger

#: The most segments of one partition that a line of the log names.
_NAMED_MAX = 5

_log = get_logger("logs")


def tell_entered(directory: LogDirectory) -> None:
    """Log how a directory was left by its last broker, and what it lacks."""
    if "cluster.id" in directory.identity() and not directory.clean_stop.was_clean:
        # Why this start takes longer, and that there was a crash: there may be no other word of it.
        _log.info("the last stop was not a clean one: logs are recovered", directory=directory.path)
    if directory.has_lost_starts:
        _log.error(
            "the start offsets of logs are lost: deleted records may be there again",
            file=LOG_START_OFFSETS,
        )
    for (topic, partition), segments in directory.clean_stop.missing_segments.items():
        _log.warning(
            "segments are gone or cut since the clean stop: another program has done that",
            topic=topic,
            partition=partition,
            segments=segments[:_NAMED_MAX],
            count=len(segments),
        )


def tell_replayed(replayed: Replayed) -> None:
    """Log what a start has taken from the journal, and what it has passed over."""
    if replayed.written:
        _log.info("journal replayed", entries=replayed.written)
    if replayed.damaged_at:
        _log.error("damaged records of the journal passed over", at=list(replayed.damaged_at))
    for path in replayed.foreign:
        _log.warning("journal passed over: another broker has written there since", file=path)

    for name in replayed.unknown:
        topic, _, partition = name.rpartition("-")
        # The entries are those of a deleted topic, or of this one, whose file the disk has lost.
        _log.warning(
            "a partition has no topic id: the entries of the journal under its name are left out",
            topic=topic,
            partition=int(partition),
            file=f"{name}/partition.metadata",
        )


def tell_room(reserve_bytes: int, is_full: bool, free_bytes: int) -> None:
    """Log that less than the reserve is free on the disk, or more again."""
    if is_full:
        _log.error(
            "the disk is full: clients' records are refused until there is room",
            free_bytes=free_bytes,
            reserve_bytes=reserve_bytes,
            setting="log.dir.reserve.bytes",
        )
    else:
        _log.info("the disk has room again: clients' records are taken", free_bytes=free_bytes)


def tell_stray(key: tuple[str, int]) -> None:
    """Log that the data of a partition was set aside: by its id it is another topic's."""
    _log.error(
        "data set aside in a directory that ends in -stray: it has the id of another topic",
        topic=key[0],
        partition=key[1],
    )


def tell_damage(damage: Damage) -> None:
    """Log the damage of a log."""
    fields = damage._asdict()
    lost_at_start = fields.pop("lost_at_start")
    if lost_at_start:
        _log.error(
            "the first segments of a log are gone, and no deletion of them is known",
            topic=damage.topic,
            partition=damage.partition,
            first_offset=lost_at_start.start,
            last_offset=lost_at_start[-1],
        )
        if not (damage.truncated_bytes or damage.lost_offsets):
            return
    # Records cut off by a crash were never acknowledged; records that were durable were.
    if damage.lost_offsets:
        _log.error("acknowledged records are gone: the disk has lost them", **fields)
    else:
        _log.warning("log cut off behind its last valid batch", **fields)
