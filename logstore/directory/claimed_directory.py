"""A data directory that is one process's: made, locked, and said to be whose.

    <directory>/.lock             held while a process has it
    <directory>/meta.properties   whose it is: cluster.id, node.id, directory.id

Source: Kafka's LogManager and MetaProperties.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable

from logstore.disk.checkpoints import (
    META_PROPERTIES,
    decode_properties,
    encode_properties,
)
from logstore.disk.files import FileSystem
from logstore.segments.attachments import SmallFiles
from wire.types import uuid_text

_LOCK = ".lock"


class DirectoryInUse(Exception):
    """Another process holds the directory's lock."""


class ForeignDirectory(Exception):
    """The directory belongs to another cluster or node."""


class ClaimedDirectory:
    """The part of `LogDirectory` that knows of no logs."""

    def __init__(self, path: str, files: FileSystem, *, in_memory: bool) -> None:
        """`in_memory`: nothing is read, written or locked."""
        self.path = path
        self._files = files
        self._in_memory = in_memory
        self._top = SmallFiles(files, path)
        self._unlock: Callable[[], None] | None = None

    def _lock(self) -> None:
        """Make the directory if it is missing, and lock it. Raises DirectoryInUse."""
        missing = self.path
        unsynced = []
        while missing and not self._files.exists(missing):
            missing = os.path.dirname(missing)
            unsynced.append(missing)
        self._files.make_directory(self.path)
        for directory in unsynced:
            self._files.sync_directory(directory or ".")
        try:
            self._unlock = self._files.lock(f"{self.path}/{_LOCK}")
        except BlockingIOError:
            raise DirectoryInUse(f"{self.path} is in use by another process") from None

    def claim(self, *, cluster_id: str, node_id: int) -> None:
        """Write meta.properties, or check that it says the same. Raises ForeignDirectory."""
        if self._in_memory:
            return
        data = self._top.read(META_PROPERTIES)
        properties = {} if data is None else decode_properties(data)
        wanted = {"cluster.id": cluster_id, "node.id": str(node_id)}
        for name, value in wanted.items():
            found = properties.get(name, value)
            if found != value:
                raise ForeignDirectory(f"{self.path} has {name} {found}, not {value}")
        properties = {"directory.id": uuid_text(uuid.uuid4()), **properties, **wanted}
        encoded = encode_properties({**properties, "version": "1"})
        if data is None or decode_properties(data) != decode_properties(encoded):
            self._top.write(META_PROPERTIES, encoded, sync=True)

    def identity(self) -> dict[str, str]:
        """What meta.properties says, empty if there is none: to adopt its cluster id."""
        data = None if self._in_memory else self._top.read(META_PROPERTIES)
        return {} if data is None else decode_properties(data)

    def _release(self) -> None:
        """Let others have it."""
        if self._unlock is not None:
            self._unlock()
            self._unlock = None
