"""Which logs ride a commit: large ones take turns, so that small ones wait for little.

A commit of many megabytes takes long, and what is appended meanwhile waits for its end. So a commit
has all small logs, and of the large ones as many as fit into a MiB, but one at least. The others
ride the next ones, in the order in which they came. What has to survive together is never large
here: markers ride the next commit, with everything that their logs have before, and so do the logs
of coordinators, whose decisions they follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from logstore.remote.remote_ledger import RemoteLedger
from logstore.sync.group_commit import CommittedLedger

#: A log that has so much to write, or more, may have to wait for its turn.
LARGE_BYTES = 128 << 10
#: What all large logs together may write in one commit.
COMMIT_BYTES = 1 << 20


def taking_turns(
    dirty: Iterable[CommittedLedger],
    *,
    large_bytes: int = LARGE_BYTES,
    commit_bytes: int = COMMIT_BYTES,
) -> Sequence[CommittedLedger]:
    """Return those that the next commit covers. `dirty`: the longest waiting first."""
    chosen: list[CommittedLedger] = []
    room_bytes = commit_bytes
    for ledger in dirty:
        assert isinstance(ledger, RemoteLedger), "a store has all logs of a node"
        size_bytes = ledger.deferrable_bytes
        if size_bytes < large_bytes:
            chosen.append(ledger)
        elif size_bytes <= room_bytes or room_bytes == commit_bytes:
            chosen.append(ledger)
            room_bytes -= size_bytes
    return chosen
