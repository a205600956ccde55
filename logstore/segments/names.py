"""The names of the files in one log's directory, as Kafka gives them.

    <base offset, 20 digits>.log         the batches of a segment
    <base offset>.index, .timeindex      where its batches begin, and their times
    <base offset>.txnindex               its aborted transactions
    <any of these><stage>                a file that has not got its name yet, or has lost it

A stage tells how far a replacement or a deletion has come (`segment_swap`).
Source: org.apache.kafka.storage.internals.log.LogFileUtils.
"""

from __future__ import annotations

from collections.abc import Iterable

LOG_SUFFIX = ".log"
OFFSET_INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
ABORTED_SUFFIX = ".txnindex"
#: What a segment owns; the aborted index belongs to the partition, which rebuilds it.
SEGMENT_SUFFIXES = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
#: What stands beside the `.log` and can be computed from it.
INDEX_SUFFIXES = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, ABORTED_SUFFIX)

#: A small file that is being written, and gets its name when it is whole.
UNFINISHED = ".tmp"
CLEANED = ".cleaned"
SWAP = ".swap"
DELETED = ".deleted"
#: What an interrupted step leaves behind, ours or Kafka's. Recovery deletes these files.
LEFTOVER_SUFFIXES = (UNFINISHED, DELETED, CLEANED, SWAP)

BASE_OFFSET_DIGITS = 20


def base_offsets(names: Iterable[str]) -> list[int]:
    """Return the base offsets of the segments that have a `.log` among these files, ascending."""
    stems = (name.removesuffix(LOG_SUFFIX) for name in names if name.endswith(LOG_SUFFIX))
    return sorted(int(stem) for stem in stems if len(stem) == BASE_OFFSET_DIGITS and stem.isdigit())


def segment_name(base_offset: int, suffix: str) -> str:
    """Return `<base offset, 20 digits><suffix>`."""
    return f"{base_offset:020d}{suffix}"


def segment_path(directory: str, base_offset: int, suffix: str) -> str:
    """Return the path of a segment's file."""
    return f"{directory}/{segment_name(base_offset, suffix)}"


def aborted_name(segment_base_offset: int) -> str:
    """Return the file name of a segment's aborted index."""
    return segment_name(segment_base_offset, ABORTED_SUFFIX)
