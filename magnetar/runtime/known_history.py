"""The numbers of the cluster's database that a node is sure of: how far the database has come.

A look at the database may show what is not replicated yet, and what a fail-over rightly takes back.
A node is sure of what it saw once a later commit of its own is proven: whatever was visible then is
where that commit is. The file `history.json` in the data directory keeps these numbers. If all
nodes have died together with the server, the next start can tell by it that the new server was
behind. The file is a hint: two or three seconds old, not synced, and it may be lost.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from logstore.remote.commit_store import CommitsLost
from magnetar.storage.history import ClusterHalted, History, forgotten

FILE = "history.json"


class KnownHistory:
    """The numbers that this node is sure of."""

    def __init__(self, directory: Path | None) -> None:
        """`directory` is for the file. None: the numbers are lost with the process."""
        self._path = None if directory is None else directory / FILE
        self._sure = None if self._path is None else _read(self._path)
        #: The last look, and what tells whether its numbers are sure.
        self._looked: tuple[History, Callable[[], bool | None]] | None = None
        self._is_kept = True

    @property
    def sure(self) -> History | None:
        """The numbers that this node is sure of; None: of none yet."""
        return self._sure

    def check(self, now: History) -> None:
        """Raise ClusterHalted; or CommitsLost if the database is behind the sure numbers."""
        if now.loss:
            raise ClusterHalted(now.loss)
        if self._sure is not None:
            refuse_forgotten(self._sure, now)

    def see(self, now: History, proof: Callable[[], bool | None]) -> None:
        """Note a look at the database. Raises as `check`.

        `proof` tells later whether the look is sure: whether a commit that was sent after the call
        is proven. If it says None, another server may have answered since, and the look is dropped.
        """
        self.check(now)
        is_proven = None if self._looked is None else self._looked[1]()
        if self._looked is not None and is_proven:
            self._sure, self._is_kept = self._looked[0], False
        if is_proven is not False:
            self._looked = now, proof

    def keep(self) -> None:
        """Write the numbers to the file, unless the disk refuses. In a thread."""
        if self._is_kept or self._path is None or self._sure is None:
            return
        self._is_kept = True
        written = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            written.write_bytes(encoded(self._sure))
            os.replace(written, self._path)
        except OSError:
            # Only a hint is lost: a node of a cluster needs no disk.
            self._path = None


def _read(path: Path) -> History | None:
    """Return the numbers that an earlier process has written; None if there are none to read."""
    try:
        return decoded(path.read_bytes())
    except OSError:
        return None


def encoded(history: History) -> bytes:
    """Return numbers as they are kept outside the database."""
    return json.dumps(history._asdict()).encode()


def decoded(data: bytes) -> History | None:
    """Return the numbers that `encoded` was given; None for other bytes."""
    try:
        told = json.loads(data)
        commits = {int(node): (int(one[0]), int(one[1])) for node, one in told["commits"].items()}
        return History(**{**told, "commits": commits})
    except (ValueError, TypeError, AttributeError, LookupError):
        return None


def refuse_forgotten(known: History, now: History) -> None:
    """Raise CommitsLost if a database has forgotten something since it was as `known`."""
    if loss := forgotten(known, now):
        raise CommitsLost(
            f"the database has lost what it had acknowledged: {loss}. It has failed over to a"
            " standby that was behind, or was restored from a backup"
        )
