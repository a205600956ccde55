"""The faults of several nodes: armed for all of them at once, and counted over all of them.

The supervisor makes the memory, and its nodes inherit it: a node that is started again finds there
what it has to do wrong, and what has been done already. A lock of the file keeps nodes apart, which
the kernel takes from a node that dies.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from magnetar.faults.rules import Fault

#: One armed fault as the tests have asked for it, with what it has met.
Armed = dict[str, Any]


class SharedFaults:
    """Memory of all nodes. To be made before they are forked."""

    def __init__(self) -> None:
        self._memory = os.memfd_create("magnetar-faults")
        self._write({"last_id": 0, "faults": {}})

    def arm(self, wanted: Mapping[str, Any]) -> int:
        """Note a fault, for every node that looks from now on; return its id."""
        with self._held() as noted:
            noted["last_id"] += 1
            noted["faults"][str(noted["last_id"])] = {**wanted, "hits": 0, "passed": 0}
            last_id: int = noted["last_id"]
            return last_id

    def disarm(self, fault_id: int) -> int:
        """Forget a fault; return how many requests it has met, and how many went by before."""
        with self._held() as noted:
            forgotten = noted["faults"].pop(str(fault_id), None)
            return 0 if forgotten is None else int(forgotten["hits"] + forgotten["passed"])

    def armed(self) -> dict[int, Armed]:
        """Return the faults by their ids, in the order in which they came."""
        with self._held() as noted:
            return {int(fault_id): armed for fault_id, armed in noted["faults"].items()}

    def hits(self) -> dict[str, int]:
        """Return how many requests each fault has met on all nodes, with those that went by."""
        return {
            str(fault_id): armed["hits"] + armed["passed"]
            for fault_id, armed in self.armed().items()
        }

    def hit(self, fault: Fault) -> bool:
        """Count a request that a fault meets; False: it goes by, or others were enough."""
        with self._held() as noted:
            armed = noted["faults"].get(str(fault.id))
            if armed is None:
                return False
            if armed["passed"] < fault.skip:
                armed["passed"] += 1
                return False
            fault.hits = armed["hits"]
            if fault.is_spent:
                return False
            fault.hits = armed["hits"] = armed["hits"] + 1
            return True

    @contextmanager
    def _held(self) -> Iterator[dict[str, Any]]:
        """Yield what is noted; changes of it are kept."""
        fcntl.lockf(self._memory, fcntl.LOCK_EX)
        try:
            size = os.fstat(self._memory).st_size
            noted: dict[str, Any] = json.loads(os.pread(self._memory, size, 0))
            yield noted
            self._write(noted)
        finally:
            fcntl.lockf(self._memory, fcntl.LOCK_UN)

    def _write(self, noted: Mapping[str, Any]) -> None:
        text = json.dumps(noted).encode()
        os.pwrite(self._memory, text, 0)
        os.ftruncate(self._memory, len(text))
