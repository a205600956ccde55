"""The files of a data directory beside the logs: checkpoints, properties, journal, catalog."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from logstore.disk.checkpoints import (
    CorruptCheckpoint,
    decode_leader_epochs,
    decode_offsets,
    decode_partition_metadata,
    decode_properties,
)
from logstore.sync.journal import JournalDamaged, read_journal
from magnetar.config.described import is_sensitive
from magnetar.config.dynamic import find_setting
from magnetar.dumping.entry import Entry
from wire.resource_type import ResourceType
from wire.types import uuid_text

_ID_BYTES = 16
#: Columns of the catalog that are not shown.
_SECRETS = {"cluster": ("secret",), "scram_credentials": ("stored_key", "server_key")}
_HIDDEN = "(hidden)"


def dump_leader_epochs(path: Path) -> Iterator[Entry]:
    """Yield the start offset of each leader epoch of a partition."""
    try:
        for epoch, start_offset in decode_leader_epochs(path.read_bytes()):
            yield Entry("leader_epoch", {"epoch": epoch, "start_offset": start_offset})
    except CorruptCheckpoint as error:
        yield Entry.damage(str(error))


def dump_offsets(path: Path) -> Iterator[Entry]:
    """Yield the offset of each partition in a checkpoint."""
    try:
        for (topic, index), offset in decode_offsets(path.read_bytes()).items():
            yield Entry("checkpoint", {"topic": topic, "partition": index, "offset": offset})
    except CorruptCheckpoint as error:
        yield Entry.damage(str(error))


def dump_partition_metadata(path: Path) -> Iterator[Entry]:
    """Yield the id of a partition's topic."""
    try:
        topic_id = decode_partition_metadata(path.read_bytes())
    except CorruptCheckpoint as error:
        yield Entry.damage(str(error))
    else:
        yield Entry("partition", {"topic_id": uuid_text(topic_id)})


def dump_properties(path: Path) -> Iterator[Entry]:
    """Yield the properties in meta.properties."""
    yield Entry("properties", dict(decode_properties(path.read_bytes())))


def dump_journal(path: Path) -> Iterator[Entry]:
    """Yield the writes that a start after an unclean stop repeats."""
    try:
        entries, damaged_at = read_journal(path.read_bytes())
    except JournalDamaged as damaged:
        yield Entry.damage(str(damaged))
        return
    for entry in entries:
        place = {
            "file": entry.path,
            "position": entry.position,
            "size": len(entry.data),
            "topic_id": uuid_text(uuid.UUID(bytes=entry.topic_id)),
        }
        yield Entry("journaled", place)
    for position in damaged_at:
        yield Entry.damage(f"the record at byte {position} is damaged, and later ones are whole")


def dump_clean_shutdown(path: Path) -> Iterator[Entry]:
    """Yield that the last stop was clean, which the file says by its existence."""
    yield Entry("clean_shutdown", {"clean": True})


def dump_catalog(path: Path) -> Iterator[Entry]:
    """Yield every row of magnetar's catalog."""
    try:
        # Read only: a dump must not create a journal in the directory of a broker.
        database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        try:
            tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            for (table,) in sorted(tables.fetchall()):
                # Read only, and the name is the database's own.
                cursor = database.execute(f'SELECT * FROM "{table}"')  # noqa: S608  # as said
                names = [column[0] for column in cursor.description]
                for row in cursor:
                    cells = dict(zip(names, map(_cell, row), strict=True))
                    yield Entry(table, cells | _hidden(table, cells))
        finally:
            database.close()
    except sqlite3.Error as error:
        yield Entry.damage(str(error))


def _hidden(table: str, cells: dict[str, Any]) -> dict[str, str]:
    """Return what stands for the secrets of a row: with them a user could be impersonated."""
    names = _SECRETS.get(table, ())
    # Configs of brokers have passwords among them, as texts.
    if table == "resource_configs" and cells["resource_type"] == ResourceType.BROKER:
        setting = find_setting(cells["name"])
        names = ("value",) if is_sensitive(setting) else ()
    return dict.fromkeys(names, _HIDDEN)


def _cell(value: Any) -> Any:
    # Ids are the only blobs of 16 bytes.
    if isinstance(value, bytes):
        return uuid_text(uuid.UUID(bytes=value)) if len(value) == _ID_BYTES else value.hex()
    return value
