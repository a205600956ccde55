"""The parameters of `postgres_statements`: an array for each column of what a commit writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from logstore.remote.commit_store import AttachmentChange, Basis, Changes, Chunk, LogKey


def key_columns(keys: Sequence[LogKey]) -> tuple[list[Any], list[Any]]:
    """Return the topics' ids and the partitions."""
    return [key.topic_id for key in keys], [key.partition for key in keys]


def chunk_columns(chunks: Sequence[Chunk]) -> tuple[list[Any], ...]:
    """Return the columns of these rows of `chunks`."""
    return (
        *key_columns([chunk.key for chunk in chunks]),
        [chunk.base_offset for chunk in chunks],
        [chunk.end_offset for chunk in chunks],
        [chunk.data for chunk in chunks],
    )


def basis_columns(bases: Sequence[Basis]) -> tuple[list[Any], ...]:
    """Return node, incarnation and number of commits."""
    return (
        [basis.node_id for basis in bases],
        [basis.incarnation for basis in bases],
        [basis.number for basis in bases],
    )


def all_columns(changes: Changes, rests_on: Sequence[Basis]) -> tuple[list[Any], ...]:
    """Return what `COMMIT_ALL` takes behind its fence."""
    segments, starts = changes.segments, changes.starts
    replaced = [one for one in changes.attachments if one.data is not None and not one.is_append]
    appended = [one for one in changes.attachments if one.data is not None and one.is_append]
    deleted = [one for one in changes.attachments if one.data is None]
    return (
        *chunk_columns(changes.chunks),
        *basis_columns(rests_on),
        *key_columns([one.key for one in segments]),
        [one.base_offset for one in segments],
        [one.end_offset for one in segments],
        [one.size_bytes for one in segments],
        [one.max_timestamp_ms for one in segments],
        *key_columns([one.key for one in starts]),
        [one.start_offset for one in starts],
        [one.kept_from for one in starts],
        *_attachment_columns(replaced),
        *_attachment_columns(appended),
        *_attachment_columns(deleted)[:3],
    )


def _attachment_columns(changes: Sequence[AttachmentChange]) -> tuple[list[Any], ...]:
    return (
        *key_columns([one.key for one in changes]),
        [one.name for one in changes],
        [one.data for one in changes],
    )
