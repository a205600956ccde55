"""What a node is sure that the cluster's database has had, beyond its own commits.

A look at the database may show what is not replicated yet, and what a fail-over rightly takes back.
It is sure once a commit of this node has returned that began after the look: whatever was visible
then is where that commit is. A file in the data directory remembers it, as a hint: where all nodes
have died together with the server, the next start finds that the new one was behind. It is a second
or three old, it is not synced, and it may be lost; what came after it cannot be known then.
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
    """What is sure so far."""

    def __init__(self, directory: Path | None) -> None:
        """`directory` has the file, now or later. None: nothing outlives the process."""
        self._path = None if directory is None else directory / FILE
        self._sure = None if self._path is None else _read(self._path)
        #: The last look, and what tells whether it is sure.
        self._looked: tuple[History, Callable[[], bool | None]] | None = None
        self._is_kept = True

    def check(self, now: History) -> None:
        """Raise ClusterHalted, or CommitsLost where the database has forgotten what was sure."""
        if now.loss:
            raise ClusterHalted(now.loss)
        if self._sure is not None and (loss := forgotten(self._sure, now)):
            raise CommitsLost(
                f"the database has lost what it had acknowledged: {loss}. It has failed over to a"
                " standby that was behind, or was restored from a backup"
            )

    def see(self, now: History, proof: Callable[[], bool | None]) -> None:
        """Take in a look at the database. `proof` tells whether a commit has returned since.

        None: the database may be another one since, so that look is given up.

        Raises as `check`.
        """
        self.check(now)
        is_proven = None if self._looked is None else self._looked[1]()
        if self._looked is not None and is_proven:
            self._sure, self._is_kept = self._looked[0], False
        if is_proven is not False:
            self._looked = now, proof

    def keep(self) -> None:
        """Write down what is sure, unless the disk refuses. In a thread."""
        if self._is_kept or self._path is None or self._sure is None:
            return
        self._is_kept = True
        written = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            written.write_text(json.dumps(self._sure._asdict()))
            os.replace(written, self._path)
        except OSError:
            # It is a hint: a disk that is full or gone stops no node that needs none.
            self._path = None


def _read(path: Path) -> History | None:
    """Return what an earlier process has written; None where nothing can be read."""
    try:
        told = json.loads(path.read_text())
        commits = {int(node): (int(one[0]), int(one[1])) for node, one in told["commits"].items()}
        return History(**{**told, "commits": commits})
    except (OSError, ValueError, TypeError, KeyError, AttributeError, LookupError):
        return None
