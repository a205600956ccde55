"""Brokers for tests in other languages: JSON over a unix socket, one line a call, one its answer.

    {"id": 1, "call": "start", "args": {"settings": {"num.partitions": "4"}}}
    {"id": 1, "result": {"broker": 1, "bootstrap_servers": "127.0.0.1:40123", ...}}
    {"id": 2, "call": "lose_answer", "broker": 1, "args": {"api": "EndTxn"}}
    {"id": 2, "result": {"fault": 1}}
    {"id": 3, "call": "hits", "args": {"fault": 1}}
    {"id": 3, "result": 1}
    {"id": 4, "call": "fail", "broker": 1, "args": {"api": "Prodce", "error": "NOT_CONTROLLER"}}
    {"id": 4, "error": {"type": "ValueError", "message": "... Did you mean Produce?"}}

The calls are the methods of `magnetar.testing.Broker`, with their arguments, and those of
`_Session` below. Bytes are text, or `{"base64": ...}` where they are none. What a connection has
started ends with it. Calls of one connection are answered in order; another one may call meanwhile.
"""

from __future__ import annotations

import base64
import inspect
import json
import os
import socketserver
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from magnetar.client.errors import ClientError
from magnetar.testing.broker import Broker
from magnetar.testing.faults import Fault
from magnetar.testing.link import BrokerGone
from magnetar.testing.process import NotReady
from magnetar.testing.records import Record
from magnetar.testing.requests import Requests

#: The methods of a broker whose result is JSON, or nothing, as it is.
_METHODS = (
    *("start", "kill", "kill_node", "freeze", "thaw", "reset", "crash_points", "wait", "restore"),
    *("advance", "expire", "fence", "wait_for_group", "topic"),
    *("client_settings", "check_faults"),
)
_FAULTS = ("fail", "delay", "lose_request", "lose_answer", "disconnect", "kill_at")
#: What a call may end with; anything else is a fault of this program.
_ERRORS = (
    *(ValueError, TypeError, AssertionError, TimeoutError, OSError),
    *(BrokerGone, NotReady, ClientError),
)
#: What arguments of other types than a method takes, or beyond every size, come to.
_MISFITS = (AttributeError, LookupError, ArithmeticError)


class Server(socketserver.ThreadingUnixStreamServer):
    """Listens at a path until `shutdown`. Raises OSError for a path that is taken."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        self._sessions: list[_Session] = []
        self._path: Path | None = None
        super().__init__(str(path), _Connection)
        # Only now: a path that is taken is another one's.
        self._path = path
        # A process that may write to it may start processes.
        os.chmod(path, 0o600)

    def opened(self) -> _Session:
        """Begin a session for a connection."""
        session = _Session()
        self._sessions.append(session)
        return session

    def server_close(self) -> None:
        """Stop every broker, and delete the socket."""
        super().server_close()
        for session in self._sessions:
            session.end()
        if self._path is not None:
            self._path.unlink(missing_ok=True)


class _Connection(socketserver.StreamRequestHandler):
    """One client, and what it has started."""

    def handle(self) -> None:
        assert isinstance(self.server, Server)
        session = self.server.opened()
        try:
            for line in self.rfile:
                self.wfile.write(json.dumps(answer(session, line), default=_shown).encode() + b"\n")
        except ConnectionError:
            return  # The client has gone, and waits for no answer.
        finally:
            session.end()


def answer(session: _Session, line: bytes) -> dict[str, Any]:
    """Return the answer to one line."""
    call_id = None
    try:
        call = json.loads(line, parse_constant=_refused_constant)
        if not isinstance(call, dict):
            raise ValueError("a call is an object: {id, call, broker, args}")
        call_id = call.get("id")
        args = call.get("args", {})
        if not isinstance(args, dict):
            raise ValueError("args is an object: a name and a value for each argument")
        result = session.perform(str(call.get("call")), call.get("broker"), args)
    except RecursionError:
        return {"id": call_id, "error": {"type": "ValueError", "message": "it is nested too deep"}}
    except _ERRORS as error:
        told = {"type": type(error).__name__, "message": str(error)}
        return {"id": call_id, "error": told}
    return {"id": call_id, "result": result}


class _Session:
    """The brokers and faults of one connection, by number."""

    def __init__(self) -> None:
        self._last_number = 0
        self._brokers: dict[int, Broker] = {}
        self._faults: dict[int, Fault] = {}
        self._requests: dict[int, Requests] = {}

    def perform(self, name: str, broker: int | None, args: Mapping[str, Any]) -> Any:
        """Do what a call asks for. Raises what the broker's methods do."""
        own: dict[str, Callable[..., Any]] = {
            "hits": self.hits,
            "wait_for_hits": self.wait_for_hits,
            "remove": self.remove,
        }
        if name == "start" and broker is None:
            return self.begin(args)
        if name in own:
            return _called(own[name], args)
        of_broker = self._of_broker(self._broker(broker))
        if name not in of_broker:
            names = [*own, *of_broker]
            near = get_close_matches(name, names, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(sorted(names))}."
            raise ValueError(f"there is no call {name!r}. {hint}")
        return _called(of_broker[name], args)

    def begin(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Start a broker; `args` as of `magnetar.testing.Broker`."""
        broker = _called(Broker, args)
        assert isinstance(broker, Broker)
        broker.__enter__()
        self._last_number += 1
        number = self._last_number
        self._brokers[number] = broker
        return {
            "broker": number,
            "bootstrap_servers": broker.bootstrap_servers,
            "client_settings": broker.client_settings(),
        }

    def hits(self, fault: int) -> int:
        """Return how many requests a fault has met."""
        return self._fault(fault).hits

    def wait_for_hits(self, fault: int, hits: int = 1, timeout_s: float = 30.0) -> int:
        """Return the hits, once there are so many."""
        return self._fault(fault).wait(hits, timeout_s)

    def remove(self, fault: int) -> int:
        """Take a fault away; return its hits."""
        self._fault(fault).remove()
        return self._fault(fault).hits

    def end(self) -> None:
        """Stop all brokers."""
        while self._brokers:
            _, broker = self._brokers.popitem()
            # No caller is left to be told of faults that have not happened.
            broker.__exit__(ConnectionError)

    def _of_broker(self, broker: Broker) -> dict[str, Callable[..., Any]]:
        calls: dict[str, Callable[..., Any]] = {name: getattr(broker, name) for name in _METHODS}
        for name in _FAULTS:
            calls[name] = self._arming(getattr(broker, name))

        def records(topic: str, committed: bool = True) -> list[dict[str, Any]]:
            return [_record(each) for each in broker.records(topic, committed=committed)]

        def assert_once(topic: str, expected: Iterable[Any] | None = None) -> None:
            values = None if expected is None else [_bytes(each) for each in expected]
            broker.assert_once(topic, values)

        def snapshot(path: str | None = None) -> str:
            return str(broker.snapshot(path).path)

        def stop() -> None:
            (number,) = (number for number, each in self._brokers.items() if each is broker)
            del self._brokers[number]
            broker.__exit__()

        def record_requests(apis: Iterable[str] = ()) -> None:
            self._requests[id(broker)] = broker.requests(*apis).__enter__()

        def requests() -> list[dict[str, Any]]:
            return [each._asdict() for each in self._requests.get(id(broker), ())]

        return calls | {
            "records": records,
            "assert_once": assert_once,
            "snapshot": snapshot,
            "stop": stop,
            "record_requests": record_requests,
            "requests": requests,
            "disk_full": broker.disk.fill,
            "disk_fail_sync": broker.disk.fail_sync,
            "disk_mend": broker.disk.mend,
        }

    def _arming(self, arm: Callable[..., Fault | None]) -> Callable[..., Any]:
        def armed(**args: Any) -> dict[str, int] | None:
            fault = _called(arm, args)
            if fault is None:
                return None
            number = len(self._faults) + 1
            self._faults[number] = fault
            return {"fault": number}

        return armed

    def _broker(self, number: int | None) -> Broker:
        if isinstance(number, int) and number in self._brokers:
            return self._brokers[number]
        raise ValueError(f"there is no broker {number}: `start` says the number of a new one")

    def _fault(self, number: int) -> Fault:
        if isinstance(number, int) and number in self._faults:
            return self._faults[number]
        raise ValueError(f"there is no fault {number}: each call that makes one says its number")


def _called(function: Callable[..., Any], args: Mapping[str, Any]) -> Any:
    """Call a function with arguments that may not fit. Raises ValueError."""
    name = getattr(function, "__name__", "call")
    try:
        inspect.signature(function).bind(**args)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from None
    try:
        return function(**args)
    except _MISFITS as error:
        raise ValueError(f"{name} cannot take such arguments: {error}") from None


def _record(record: Record) -> dict[str, Any]:
    shown = record._asdict()
    shown["headers"] = [list(header) for header in record.headers]
    return shown


def _refused_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _bytes(value: Any) -> bytes | None:
    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    return None if value is None else str(value).encode()


def _shown(value: Any) -> Any:
    """Return bytes as JSON has them."""
    assert isinstance(value, bytes), "everything else is JSON already"
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
