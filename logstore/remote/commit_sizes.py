"""Which logs a commit covers: logs with much to write take turns, so that the others wait little.

A commit of many megabytes takes long, and later appends wait for its end. So a commit covers all
logs with little to write, and of the others as many as fit into a MiB, but one at least. The rest
is covered by later commits, in the order of arrival. What has to survive together never counts as
large (`RemoteLedger.deferrable_bytes`): a log with a marker rides the next commit, with all that it
has, and so do the logs of coordinators, whose decisions the markers follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from logstore.remote.remote_ledger import RemoteLedger
from logstore.sync.group_commit import CommittedLedger

#: A log with so many bytes to write, or more, may have to wait for its turn.
LARGE_BYTES = 128 << 10
#: The bytes that all large logs together may write in one commit.
COMMIT_BYTES = 1 << 20


def taking_turns(
    dirty: Iterable[CommittedLedger],
    *,
    large_bytes: int = LARGE_BYTES,
    commit_bytes: int = COMMIT_BYTES,
) -> Sequence[CommittedLedger]:
    """Return the ledgers that the next commit covers. `dirty`: the longest waiting one first."""
    chosen: list[CommittedLedger] = []
    room_bytes = commit_bytes
    for ledger in dirty:
        assert isinstance(ledger, RemoteLedger), "all logs of a node are in the store"
        size_bytes = ledger.deferrable_bytes
        if size_bytes < large_bytes:
            chosen.append(ledger)
        elif size_bytes <= room_bytes or room_bytes == commit_bytes:
            chosen.append(ledger)
            room_bytes -= size_bytes
    return chosen
