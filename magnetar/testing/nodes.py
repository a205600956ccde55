"""The tests' end of the doors of several nodes: what one door does for a broker of one node.

What a test asks of the cluster goes to the nodes that it is about: faults to all of them, a group
to its coordinator. A node that has ended is waited for: its supervisor starts it again.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from magnetar.testing.link import CALL_TIMEOUT_S, BrokerGone, Channel, Link, result_of

#: How long a node may take to be there again.
_BACK_WITHIN_S = 30.0
#: The pause before a node is looked for again.
LOOK_AGAIN_S = 0.01
#: Calls of which every node does its part; the first answer stands for all.
_OF_ALL = frozenset({"cut", "disk", "advance", "record", "unrecord"})
#: Calls for the coordinator of the group, or of the transactional id, that they name.
_OF_COORDINATORS = frozenset({"wait_for_group", "expire_members", "expire_transaction", "fence"})


class NodeLink(Link):
    """The doors of all nodes of one start, and the pair whose end stops them."""

    def __init__(
        self, doors: Path, node_ids: Sequence[int], is_running: Callable[[], bool]
    ) -> None:
        """`doors`: an empty directory. `is_running`: whether the supervisor is."""
        super().__init__()
        self._doors = doors
        self._node_ids = node_ids
        self._is_running = is_running
        self._hits: dict[str, int] = {}
        #: Since when, by node, the requests that are being recorded count.
        self._recorded_since: dict[int, int] = {}

    def call(self, name: str, **args: Any) -> Any:
        first, *others = self._node_ids
        if name in ("arm", "disarm"):
            done = self.call_node(first, name, **args)
            # Also the first: it may have been started again meanwhile.
            for node_id in self._node_ids:
                self.call_node(node_id, "refresh")
            return done
        if name == "wait_for_hits":
            return self._wait_for_hits(**args)
        if name == "recorded":
            return self._recorded(args["apis"])
        if name in _OF_COORDINATORS:
            which = {each: args[each] for each in ("group", "transactional_id") if each in args}
            return self.call_node(self.call_node(first, "coordinator", **which), name, **args)
        done = self.call_node(first, name, **args)
        if name == "record":
            self._recorded_since = {first: done}
        if name == "hits":
            self._hits = done
        for node_id in others if name in _OF_ALL else ():
            also = self.call_node(node_id, name, **args)
            if name == "record":
                self._recorded_since[node_id] = also
        return done

    def call_node(self, node_id: int, name: str, **args: Any) -> Any:
        """Return what one node answers, once it is there. Raises as `call`."""
        deadline_s = time.monotonic() + _BACK_WITHIN_S
        timeout_s = CALL_TIMEOUT_S + args.get("timeout_s", 0.0)
        while True:
            try:
                channel = self._open_to(node_id)
            except OSError:
                if not self._is_running() or time.monotonic() > deadline_s:
                    raise BrokerGone(f"node {node_id} does not run") from None
                time.sleep(LOOK_AGAIN_S)
                continue
            try:
                return result_of(channel.ask({"call": name, "args": args}, timeout_s))
            except BrokerGone:
                # It ended before it answered; what it was asked for may be done again.
                if not self._is_running() or time.monotonic() > deadline_s:
                    raise
            finally:
                channel.close()

    def last_words(self) -> dict[str, Any]:
        """Return what the faults had met when they were asked for last."""
        return {"hits": self._hits}

    def _open_to(self, node_id: int) -> Channel:
        connected = socket.socket(socket.AF_UNIX)
        try:
            connected.connect(str(self._doors / f"{node_id}.sock"))
        except OSError:
            connected.close()
            raise
        return Channel(connected)

    def _wait_for_hits(self, fault: int, hits: int, timeout_s: float) -> int:
        deadline_s = time.monotonic() + timeout_s
        while True:
            found: int = self.call("hits").get(str(fault), 0)
            if found >= hits:
                return found
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{found} of {hits} hits")
            time.sleep(LOOK_AGAIN_S)

    def _recorded(self, apis: Sequence[str]) -> list[dict[str, Any]]:
        found = [
            each
            for node_id, since in self._recorded_since.items()
            for each in self.call_node(node_id, "recorded", since=since, apis=apis)
        ]
        return sorted(found, key=lambda each: int(each["at_ms"]))
