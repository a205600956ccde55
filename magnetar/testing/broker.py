"""A broker for tests: a process that can be made to fail in every way that an application meets.

The process is `magnetar.faults`: the broker of `magnetar serve`, with a door for this process
alone. What it does wrong, it was told; what nothing was said of, it does as in production.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from magnetar.testing.disk import Disk
from magnetar.testing.faults import Fault, Faults, Which, check_names
from magnetar.testing.frozen import Frozen
from magnetar.testing.link import BrokerGone, Link
from magnetar.testing.nodes import LOOK_AGAIN_S, NodeLink
from magnetar.testing.process import (
    START_TIMEOUT_SECONDS,
    STOP_TIMEOUT_SECONDS,
    BrokerProcess,
    Setting,
    texts_of,
)
from magnetar.testing.requests import Requests
from magnetar.testing.snapshots import Snapshot, found_at, take

if TYPE_CHECKING:
    from magnetar.client.acls import Acl
    from magnetar.client.cluster import Client
    from magnetar.testing.records import Record

#: What the first topic and the first look into one need: imported while the first broker starts.
_NEEDED_LATER = ("magnetar.client.topics", "magnetar.testing.records")


class Broker(BrokerProcess):
    """One broker. A context manager: the end of its block checks its faults, and stops it.

    Faults are for an `api`, an `Api` or its name, and for the requests that `Which` tells. A
    request is the unit: one that names two topics fails for both.
    """

    #: Its own: Ctrl-C in a terminal, or an interrupted notebook, is for the tests alone. When they
    #: have ended, however they did, the broker stops by its lifeline.
    _process_group = 0

    def __init__(
        self,
        data_dir: Path | str | None = None,
        settings: Mapping[str, Setting] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: bool = False,
        users: Mapping[str, str] | None = None,
        acls: Iterable[Iterable[Acl]] = (),
        mechanism: str = "PLAIN",
        workers: int = 1,
        as_version: str | None = None,
        snapshot: Snapshot | Path | str | None = None,
        start_timeout_s: float = START_TIMEOUT_SECONDS,
    ) -> None:
        """Arguments as of `BrokerProcess`, and two more.

        `as_version`: a release of Apache Kafka ("3.9"), whose APIs and versions alone are served.
        `snapshot`: begin with the data of another broker.
        """
        super().__init__(
            data_dir,
            settings,
            host=host,
            port=port,
            tls=tls,
            users=users,
            acls=acls,
            mechanism=mechanism,
            workers=workers,
            start_timeout_s=start_timeout_s,
        )
        self.disk = Disk(self._call, self._expect_end)
        #: Names of topics without a name of their own begin with it.
        self.topic_prefix = "topic"
        self._as_version = as_version
        self._link: Link | None = None
        self._client: Client | None = None
        self._faults = Faults(self._call)
        self._frozen = Frozen()
        self._doors = self._files / "doors"
        self._is_ahead = False
        #: Whether the process will end, or has ended, by something that was asked for.
        self._ends_itself = False
        if snapshot is not None:
            found_at(snapshot).copy_to(self.data_dir)

    # --- requests that go wrong

    def fail(self, api: str, error: str, *, applied: bool = False, **which: Unpack[Which]) -> Fault:
        """Answer with an error by Kafka's name. `applied`: the request has its effect before."""
        return self._arm({"kind": "fail", "api": api, "error": error, "is_applied": applied}, which)

    def delay(self, api: str | None = None, *, seconds: float, **which: Unpack[Which]) -> Fault:
        """Let requests wait before anything happens, and those behind them on their connections.

        Without `api`: all requests, as on a slow network. All of them, unless `times` says less.
        """
        wanted = {"kind": "delay", "api": api, "seconds": seconds}
        return self._arm(wanted, {"times": None, **which})

    def lose_request(self, api: str, *, silent: bool = False, **which: Unpack[Which]) -> Fault:
        """Do nothing, and cut the connection. `silent`: it stays, and the client waits in vain."""
        return self._arm({"kind": "lose_request", "api": api, "is_silent": silent}, which)

    def lose_answer(self, api: str, *, silent: bool = False, **which: Unpack[Which]) -> Fault:
        """Do everything, durably, and cut the connection instead of an answer. `silent`: as of
        `lose_request`."""
        return self._arm({"kind": "lose_answer", "api": api, "is_silent": silent}, which)

    def disconnect(self, *, after: str | None = None, **which: Unpack[Which]) -> Fault | None:
        """Close the connection behind the answer to an API; without `after` all of them, now."""
        if after is None:
            self._call("cut")
            # The end of its own connection may be on its way still.
            self._hang_up()
            return None
        return self._arm({"kind": "disconnect", "api": after}, which)

    # --- a process that goes wrong

    def kill_at(self, point: str, **which: Unpack[Which]) -> Fault:
        """End the process with SIGKILL at a crash point; `start` then waits for its end.

        With several nodes the one that comes to the point ends, and is started again.

        `crash_points` has the names: `end_txn.decided`, and for each API `received`, `handled` and
        `answered`.
        """
        until_ended = self._until_ended if self.workers == 1 else None
        fault = self._arm({"kind": "kill_at", "point": point}, which, until_ended)
        self._expect_end()
        return fault

    def crash_points(self) -> list[str]:
        """Return the names that `kill_at` takes."""
        points: list[str] = self._call("points")
        return points

    @contextmanager
    def frozen(self, seconds: float | None = None, *, node: int | None = None) -> Iterator[None]:
        """Let the process stand still (SIGSTOP) for the block, or only for so many seconds of it.

        Connections stay open, and nothing is answered. `node`: only that one of several.
        """
        nodes = self._freeze(node)
        thaw = threading.Timer(seconds or 0, self._frozen.thaw, [nodes])
        if seconds is not None:
            thaw.start()
        try:
            yield
        finally:
            thaw.cancel()
            self._thaw(nodes)

    def freeze(self, node: int | None = None) -> None:
        """Let the process stand still until `thaw`: of several nodes all, or this one."""
        self._freeze(node)

    def thaw(self) -> None:
        """Let what stands still go on."""
        self._thaw(self._frozen.pids)

    def _thaw(self, nodes: Collection[int | None]) -> None:
        self._frozen.thaw(nodes)
        # Perhaps while the broker stood still, which has not heard of it.
        self._faults.remove_again()

    def _freeze(self, node: int | None) -> Collection[int | None]:
        self._faults.ask_for_hits()  # It may be killed before it goes on.
        return self._frozen.freeze(self._all_pids() if node is None else {node: self._pid_of(node)})

    def kill_node(self, node: int) -> None:
        """End one of several nodes as a crash would; it is started again. Returns once it is."""
        if self.workers == 1:
            raise ValueError("this broker has one node: kill() ends it, start() brings it back")
        before = self._pid_of(node)
        os.kill(before, signal.SIGKILL)
        self._frozen.thaw([node])
        while self._call_node(node, "pid") == before:
            time.sleep(LOOK_AGAIN_S)

    def _pid_of(self, node: int) -> int:
        """Return the process of a node. Raises ValueError where there is none of this id."""
        pids = self.node_pids
        if node not in pids:
            raise ValueError(
                f"there is no node {node!r}. The nodes are {', '.join(map(str, pids))}"
            )
        return pids[node]

    @property
    def node_pids(self) -> dict[int, int]:
        """The processes of all nodes, by the ids that clients see. Waits for one that starts."""
        if self.workers == 1:
            return {1: self.pid}
        return {
            # One that stands still would not answer.
            node: self._frozen.pids.get(node) or self._call_node(node, "pid")
            for node in self._node_ids
        }

    # --- what takes long, now

    def advance(self, seconds: float) -> None:
        """Let the broker's time pass: what falls due by it is done when this returns.

        Transactions time out, members that are silent are given up, offsets and records expire.
        Time stays moved until the process ends; `reset` starts another. ValueError: it goes back.
        """
        self._call("advance", ms=round(seconds * 1000))
        self._is_ahead = True

    def expire(
        self,
        transactional_id: str | None = None,
        *,
        group: str | None = None,
        client_id: str | None = None,
    ) -> None:
        """Abort an open transaction as its timeout would; or give up the members of a group (those
        of one client) as the end of their sessions would. ValueError: there is none."""
        check_names({"transactional_id": transactional_id, "group": group, "client_id": client_id})
        if (transactional_id is None) == (group is None):
            raise ValueError("expire(transactional_id) or expire(group=..., client_id=...)")
        if transactional_id is not None:
            self._call("expire_transaction", transactional_id=transactional_id)
        else:
            self._call("expire_members", group=group, client_id=client_id)

    def fence(self, transactional_id: str) -> None:
        """Fence the producer of a transactional id, as its successor would. ValueError: unknown."""
        check_names({"transactional_id": transactional_id}, may_lack=False)
        self._call("fence", transactional_id=transactional_id)

    def wait_for_group(
        self, group: str, members: int | None = None, timeout_s: float = 30.0
    ) -> list[str]:
        """Return the client ids of a group's members, once no rebalance of it is under way.

        `members`: once there are so many, also 0; else once there are any. TimeoutError: it has not
        come to that, and what there is.
        """
        check_names({"group": group}, may_lack=False)
        found: dict[str, str] = self._call(
            "wait_for_group", group=group, members=members, timeout_s=timeout_s
        )
        return sorted(found.values())

    # --- topics

    def topic(
        self,
        name: str | None = None,
        *,
        partitions: int = 1,
        configs: Mapping[str, Setting] | None = None,
    ) -> str:
        """Create a topic and return its name; without one, a name that no other test has."""
        from magnetar.client.topics import create_topic

        name = f"{self.topic_prefix}-{secrets.token_hex(4)}" if name is None else name
        given = texts_of(configs or {})
        create_topic(self._administrator(), name, partitions=partitions, configs=given)
        return name

    def records(self, topic: str, *, committed: bool = True) -> list[Record]:
        """Return what a topic holds now; not `committed`: with open and aborted transactions."""
        from magnetar.testing.records import read

        return read(self._administrator(), topic, committed=committed)

    def values(self, topic: str, *, committed: bool = True) -> list[bytes | None]:
        """Return the values of `records`."""
        return [each.value for each in self.records(topic, committed=committed)]

    def assert_once(self, topic: str, expected: Iterable[bytes | None] | None = None) -> None:
        """Check the committed records of a topic: these values, each as often as named here.

        Without `expected`: no two records with the same key and value.
        """
        from magnetar.testing.records import check_once

        check_once(topic, self.records(topic), expected)

    def requests(self, *apis: str) -> Requests:
        """Return what clients ask for while the block of this context manager runs."""
        return Requests(self._call, apis, lambda: self._process)

    # --- data

    def snapshot(self, path: Path | str | None = None) -> Snapshot:
        """Copy the data as it is now, in milliseconds, whether or not the broker runs.

        Without `path` the copy is deleted with this broker.
        """
        target = self._files / f"snapshot-{secrets.token_hex(4)}" if path is None else Path(path)
        if self._process is None:
            return take(self.data_dir, target)
        with self.frozen():
            return take(self.data_dir, target)

    def restore(self, snapshot: Snapshot | Path | str) -> None:
        """Go on with the data of a snapshot: on the same port, after a restart."""
        found = found_at(snapshot)
        if self._process is not None:
            self.kill()
        found.copy_to(self.data_dir)
        self.start()

    # --- the process

    @property
    def is_running(self) -> bool:
        """Whether the process is there, also one that stands still."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Return when clients can connect, with the faults that are left. Raises NotReady.

        Waits for the end of a process that is to end by itself: at a crash point, or by its disk.
        """
        if self._process is not None and self._ends_itself:
            self.wait()
        super().start()
        self._faults.arm_again()
        if self.disk.is_full:
            self.disk.fill()

    def wait(self) -> int:
        """Return the exit code of a broker that ends by itself. Raises TimeoutError."""
        try:
            code = self._running().wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the broker still runs; it was to meet: {self._faults}") from None
        self._ended()
        return code

    def kill(self) -> None:
        """End the broker as a crash would, with SIGKILL."""
        self._faults.ask_for_hits()
        super().kill()

    def stop(self) -> int:
        """Stop the broker cleanly and return its exit code."""
        self.thaw()
        self._faults.ask_for_hits()
        return super().stop()

    def reset(self) -> None:
        """Take every fault away, and see that the broker runs: for the next test."""
        self.thaw()
        self._faults.clear()
        # A call, which also finds a broker that has just died.
        self.disk.mend()
        if self._process is not None and not self.is_running:
            self.wait()
        if self._is_ahead:
            self.stop()
        self._ends_itself = False
        if self._process is None:
            self.start()

    def check_faults(self) -> None:
        """Raise FaultNeverFired for the first fault that has not happened as often as it was to."""
        self._faults.check()

    def __exit__(self, raised: object = None, *rest: object) -> None:
        try:
            self.thaw()
            if raised is None:
                self.check_faults()
        finally:
            if self._process is not None and not self.is_running:
                self.wait()
            super().__exit__(raised, *rest)

    # ---

    def _until_ended(self) -> None:
        if self._process is not None:
            self.wait()

    def _arm(
        self,
        wanted: Mapping[str, object],
        which: Mapping[str, object],
        until_ended: Callable[[], object] | None = None,
    ) -> Fault:
        return self._faults.arm({**wanted, "times": 1, **which}, until_ended)

    def _call(self, name: str, **args: Any) -> Any:
        if self._link is None:
            raise BrokerGone("the broker does not run: start it first")
        if self._frozen.pids:
            raise BrokerGone("the broker stands still: it can be asked after the block")
        try:
            return self._link.call(name, **args)
        except BrokerGone:
            # Its last words tell what its faults have met.
            self.wait()
            raise

    def _call_node(self, node: int, name: str) -> Any:
        assert isinstance(self._link, NodeLink), "several nodes run"
        return self._link.call_node(node, name)

    def _all_pids(self) -> dict[int | None, int]:
        # The supervisor first: it would start a node again.
        supervisor: dict[int | None, int] = {} if self.workers == 1 else {None: self.pid}
        return supervisor | dict(self.node_pids.items())

    @property
    def _node_ids(self) -> Sequence[int]:
        first = int(self._settings.get("node.id", "1"))
        return range(first, first + self.workers)

    def _expect_end(self) -> None:
        # A node that ends is started again, and the process goes on.
        self._ends_itself = self.workers == 1

    def _administrator(self) -> Client:
        if self._client is None:
            self._client = self._access.administrator(self.bootstrap_servers)
        return self._client

    def _hang_up(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _command(self) -> list[str]:
        assert self._link is not None
        command = [sys.executable, "-m", "magnetar.faults"]
        command += ["--lifeline", str(self._link.descriptor)]
        if self.workers > 1:
            command += ["--doors", str(self._doors)]
        return command if self._as_version is None else [*command, "--as-version", self._as_version]

    def _inherited(self) -> Sequence[int]:
        assert self._link is not None
        return (self._link.descriptor,)

    def _spawn(self) -> None:
        if self.workers > 1:
            self._doors.mkdir(0o700, exist_ok=True)
            self._link = NodeLink(self._doors, self._node_ids, lambda: self.is_running)
        else:
            self._link = Link()
        super()._spawn()
        self._link.handed_over()
        for module in _NEEDED_LATER:
            import_module(module)

    def _ended(self) -> None:
        link, self._link = self._link, None
        assert link is not None
        self._faults.on_end(link.last_words().get("hits", {}))
        link.close()
        self._hang_up()
        self._frozen.pids.clear()
        self._is_ahead = self._ends_itself = False
        super()._ended()
