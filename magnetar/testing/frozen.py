"""The processes of a broker that stand still (SIGSTOP): connections stay open, nothing is said."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Mapping
from contextlib import suppress

#: A node's id; None is the supervisor of several.
Node = int | None


class Frozen:
    """What stands still, until each is thawed by what froze it: blocks may lie in one another."""

    def __init__(self) -> None:
        self.pids: dict[Node, int] = {}

    def freeze(self, pids: Mapping[Node, int]) -> Collection[Node]:
        """Let these stand still. Return those that did not do so before."""
        new = {node: pid for node, pid in pids.items() if node not in self.pids}
        for pid in new.values():
            os.kill(pid, signal.SIGSTOP)
        self.pids |= new
        return new

    def thaw(self, nodes: Collection[Node]) -> None:
        """Let these go on, where they are still there."""
        for node in tuple(nodes):
            pid = self.pids.pop(node, None)
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
