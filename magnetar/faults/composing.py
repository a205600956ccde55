"""A `Broker` with faults: its parts, put together, and the calls that a test may make.

The broker is the one that `magnetar serve` runs, with four parts exchanged through its constructor:
the clock, the storage, the participants of transactions, and what is done on a fatal error. Faults
of requests are put around the handlers of the APIs that they are for, in the broker's own table of
APIs, when the first of them is armed, and taken away after the last. Until then every request goes
the way that it goes in production.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence, Set
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import CoroutineType
from typing import Any, NamedTuple, NoReturn

from magnetar.apis.api_versions import api_versions
from magnetar.broker import Broker, open_directory
from magnetar.config.broker import BrokerConfig
from magnetar.config.security import AuthorizationConfig
from magnetar.faults import hurrying, names
from magnetar.faults.disk import DiskFaults
from magnetar.faults.door import Calls, Door, NodeDoor
from magnetar.faults.handlers import FaultyHandlers
from magnetar.faults.names import Mistake
from magnetar.faults.points import CrashingParticipants
from magnetar.faults.recording import Recorder
from magnetar.faults.releases import as_release, cap
from magnetar.faults.rules import Fault, Faults, Kind
from magnetar.faults.shared import SharedFaults
from magnetar.runtime.failing import end_process
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from wire.api import API_NAMES
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

#: The APIs that change who is in a group: calls that wait for a group look again after each.
_GROUP_APIS = frozenset({9, 11, 12, 13, 14, 68})
_API_VERSIONS = ApiVersionsRequest.api_key
_COUNTED = {"hits", "passed"}
_FIELDS = frozenset(each.name for each in fields(Fault)) - {"id", "kind", "api_key", *_COUNTED}


class AmongNodes(NamedTuple):
    """What one of several nodes has beside a broker's own parts."""

    doors: Path
    shared: SharedFaults
    #: Arguments of `Broker`.
    parts: dict[str, Any]


class FaultyBroker:
    """The parts of a broker with faults. `broker` is to be started as any other."""

    def __init__(
        self,
        config: BrokerConfig,
        lifeline: int,
        release: str | None = None,
        among: AmongNodes | None = None,
    ) -> None:
        """`lifeline`: the descriptor of the tests' pair of sockets. `among`: of one of several
        nodes. Raises Mistake.
        """
        self._shared = None if among is None else among.shared
        self.faults = Faults() if self._shared is None else Faults(self._shared.hit)
        self.disk = DiskFaults()
        self.clock = hurrying.MovableClock()
        self._recorder = Recorder(self._tell)
        self._changed = asyncio.Condition()
        self._told: set[asyncio.Task[None]] = set()
        #: How many calls wait for hits, and for groups.
        self._waits = 0
        self._group_waits = 0
        parts: dict[str, Any] = {"open_storage": open_directory}
        self._door: Door | NodeDoor
        if among is None:
            self._door = Door(lifeline, self._calls())
        else:
            path = among.doors / f"{config.node_id}.sock"
            self._door = NodeDoor(lifeline, path, self._calls())
            parts.update(among.parts)
        parts["open_storage"] = partial(parts["open_storage"], open_logs=self.disk.open_logs)
        self.broker = Broker(
            config,
            clock=self.clock,
            on_failure=self._fail,
            make_participants=partial(CrashingParticipants, reached=self._reached),
            **parts,
        )
        self._handlers = FaultyHandlers(
            self.faults,
            self._recorder,
            lambda: self.broker.server.shared.delayed_responses,
            self._crash,
            self._tell,
        )
        if release is not None:
            self._become(release)
        #: The APIs without faults.
        self._plain = dict(self.broker.apis)
        self._is_guarded = bool(config.view(AuthorizationConfig).authorizer_class_name)
        if self._shared is not None:
            # If this node is started again, its faults are still set.
            self._take_over(self._shared)
            self._put_around()
        self._door.open()

    async def _refresh(self) -> None:
        """Do wrong what all nodes are to do wrong now: another node was told of a change."""
        assert self._shared is not None, "one node hears of its faults itself"
        self._take_over(self._shared)
        self._compose()

    def _take_over(self, shared: SharedFaults) -> None:
        armed = shared.armed()
        for fault in tuple(self.faults):
            if fault.id not in armed:
                self.faults.disarm(fault.id)
        known = {fault.id for fault in self.faults}
        for fault_id, wanted in armed.items():
            if fault_id not in known:
                given = {name: wanted[name] for name in wanted.keys() - _COUNTED}
                self.faults.arm(_fault(fault_id, **given))

    async def _coordinator(
        self, group: str | None = None, transactional_id: str | None = None
    ) -> int:
        """Return the node that coordinates a group, or a transactional id."""
        nodes = self.broker.nodes
        if group is not None:
            return nodes.node_of_group(group)
        assert transactional_id is not None, "a group or a transactional id"
        return nodes.node_of(transactional_id)

    def _become(self, release: str) -> None:
        """Serve the APIs of an earlier release alone."""
        apis = as_release(self.broker.apis, release)

        async def capped(
            services: Services, request: ApiVersionsRequest, context: RequestContext
        ) -> ApiVersionsResponse:
            handled = api_versions(services, request, context)
            assert isinstance(handled, CoroutineType)
            response = await handled
            assert isinstance(response, ApiVersionsResponse)
            cap(response, apis, release)
            return response

        apis[_API_VERSIONS] = apis[_API_VERSIONS]._replace(handler=capped)
        self.broker.apis.clear()
        self.broker.apis.update(apis)

    def close(self) -> None:
        """Close the door, where the process goes on without the broker."""
        self._door.close()

    # --- what the tests call

    def _calls(self) -> Calls:
        return {
            "arm": self._arm,
            "disarm": self._disarm,
            "hits": self._hits,
            "wait_for_hits": self._wait_for_hits,
            "points": self._points,
            "cut": self._cut,
            "record": self._record,
            "recorded": self._recorded,
            "unrecord": self._unrecord,
            "disk": self._set_disk,
            "wait_for_group": self._wait_for_group,
            "expire_members": self._expire_members,
            "expire_transaction": self._expire_transaction,
            "fence": self._fence,
            "advance": self._advance,
            "pid": self._pid,
            "refresh": self._refresh,
            "coordinator": self._coordinator,
        }

    async def _arm(self, kind: str, api: str | None = None, **given: Any) -> int:
        # First of all: a mistake must be told before the other nodes make it too.
        fault = _fault(self.faults.next_id(), kind, api, **given)
        if self._shared is not None:
            fault.id = self._shared.arm({"kind": kind, "api": api, **given})
        self.faults.arm(fault)
        self._compose()
        return fault.id

    async def _disarm(self, fault: int) -> int:
        hits = self.faults.disarm(fault)
        if self._shared is not None:
            hits = self._shared.disarm(fault)
        self._compose()
        return hits

    async def _hits(self) -> dict[str, int]:
        return self.faults.hits() if self._shared is None else self._shared.hits()

    async def _wait_for_hits(self, fault: int, hits: int, timeout_s: float) -> int:
        def count() -> int:
            return self.faults.hits().get(str(fault), 0)

        await self._until(lambda: count() >= hits, timeout_s)
        return count()

    async def _until(self, is_so: Callable[[], bool], timeout_s: float) -> None:
        """Return when it is so. Raises TimeoutError."""
        self._waits += 1
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(is_so)
        finally:
            self._waits -= 1

    async def _pid(self) -> int:
        return os.getpid()

    async def _points(self) -> list[str]:
        return names.crash_points()

    async def _cut(self) -> None:
        for connection in self.broker.server.connections:
            connection.abort()

    async def _record(self, apis: Sequence[str]) -> int:
        _api_names(apis)
        self._recorder.services = self.broker.services
        self._recorder.start()
        self._compose()
        return self._recorder.last_number

    async def _recorded(self, since: int, apis: Sequence[str]) -> list[dict[str, Any]]:
        return self._recorder.seen_since(since, _api_names(apis))

    async def _unrecord(self) -> None:
        self._recorder.stop()
        self._compose()

    async def _set_disk(self, **faults: bool) -> None:
        for name, value in faults.items():
            setattr(self.disk, name, value)

    async def _wait_for_group(
        self, group: str, members: int | None, timeout_s: float
    ) -> dict[str, str]:
        groups = self.broker.groups

        def is_there() -> bool:
            count = len(hurrying.members_of(groups, group))
            is_enough = count > 0 if members is None else count == members
            return is_enough and hurrying.is_settled(groups, group)

        self._group_waits += 1
        self._compose()
        try:
            await self._until(is_there, timeout_s)
        except TimeoutError:
            there = hurrying.members_of(groups, group)
            wanted = "any" if members is None else members
            state = "settled" if hurrying.is_settled(groups, group) else "rebalancing"
            raise TimeoutError(
                f"group {group!r} has {len(there)} members, {state}, and {wanted} were waited for"
                f" {timeout_s:g} s long"
            ) from None
        finally:
            self._group_waits -= 1
            self._compose()
        return hurrying.members_of(groups, group)

    async def _expire_members(self, group: str, client_id: str | None) -> list[str]:
        return await hurrying.expire_members(self.broker, group, client_id)

    async def _expire_transaction(self, transactional_id: str) -> None:
        await hurrying.expire_transaction(self.broker, transactional_id)

    async def _fence(self, transactional_id: str) -> None:
        await hurrying.fence(self.broker, transactional_id)

    async def _advance(self, ms: int) -> None:
        await hurrying.advance(self.broker, self.clock, ms)

    # --- handlers with and without faults

    def _compose(self) -> None:
        """Put faults around the handlers that need them, and around no others."""
        self._put_around()
        self.broker.server.dispatcher.forget_routes()

    def _put_around(self) -> None:
        faulty = self._faulty_keys()
        for key, plain in self._plain.items():
            if key in faulty:
                self.broker.apis[key] = self._handlers.around(plain, is_guarded=self._is_guarded)
            else:
                self.broker.apis[key] = plain

    def _faulty_keys(self) -> Set[int]:
        waited_for = self.faults.api_keys()
        if waited_for is None or self._recorder.is_recording:
            return self._plain.keys()
        return waited_for | (_GROUP_APIS if self._group_waits else frozenset())

    # --- what happens

    def _tell(self) -> None:
        """Let those who wait for hits or groups look again."""
        if not self._waits:
            return
        task = asyncio.get_running_loop().create_task(self._notify())
        self._told.add(task)
        task.add_done_callback(self._told.discard)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _reached(self, point: str, transactional_ids: Set[str]) -> None:
        if self.faults.at_commit(point, transactional_ids) is not None:
            self._crash()

    def _crash(self) -> NoReturn:
        self._door.say_last_words({"hits": self.faults.hits()})
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("the process has been killed")

    def _fail(self, failure: BaseException) -> None:
        self._door.say_last_words({"hits": self.faults.hits(), "failure": str(failure)})
        end_process(failure)


def _fault(fault_id: int, kind: str, api: str | None = None, **given: Any) -> Fault:
    """Return a fault as the tests ask for it. Raises Mistake."""
    unknown = sorted(given.keys() - _FIELDS)
    if unknown:
        raise Mistake(f"a fault has no {', '.join(unknown)}; it has {', '.join(sorted(_FIELDS))}")
    key = None if api is None else names.api_key(api)
    if given.get("error") is not None:
        given["error"] = names.error_code(given["error"])
    if given.get("point"):
        given["point"], key = names.crash_point(given["point"])
    return Fault(id=fault_id, kind=Kind(kind), api_key=key, **given)


def _api_names(given: Sequence[str]) -> frozenset[str]:
    """Return APIs by Kafka's names. Raises Mistake."""
    return frozenset(API_NAMES[names.api_key(each)] for each in given)


def compose(lifeline: int, release: str | None, doors: Path | None = None) -> Callable[..., Broker]:
    """Return what makes the broker of a configuration; it has faults, and no one sees them.

    `doors`: of several nodes, the directory of their doors. The parts that a node has are further
    arguments then.
    """
    shared = None if doors is None else SharedFaults()

    def made(config: BrokerConfig, **parts: Any) -> Broker:
        among = None
        if doors is not None and shared is not None:
            among = AmongNodes(doors, shared, parts)
        return FaultyBroker(config, lifeline, release, among).broker

    return made
