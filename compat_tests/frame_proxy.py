"""A TCP proxy between a client and a broker that does to single requests what a network can do.

It reads whole frames. A rule picks requests by API key: their answer is lost with the connection,
the request is lost and arrives later, it arrives twice, or a copy arrives at a moment the test
chooses. Addresses that the broker tells are rewritten, so that clients stay on the proxy.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import NamedTuple

from compat_tests.client import TIMEOUT_S

_HOST = "127.0.0.1"
#: Metadata, FindCoordinator and DescribeCluster tell clients where to connect.
_TELLING_ADDRESSES = {3, 10, 60}


class Fault(Enum):
    """What happens to a request that a rule picks."""

    COPY = auto()
    """Nothing, but a copy is kept to be delivered later."""
    LOSE_ANSWER = auto()
    """The broker does its work; the connection breaks before the answer."""
    HOLD = auto()
    """The connection breaks before the request reaches the broker; it may be delivered later."""
    DOUBLE = auto()
    """It reaches the broker twice in a row; the client gets the first answer."""
    BEFORE = auto()
    """The rule's action comes first, then it goes on to the broker, if there still is one."""
    AFTER = auto()
    """The broker has answered; the rule's action comes before its answer reaches the client."""


class Request(NamedTuple):
    """A request's frame, without its length."""

    api_key: int
    api_version: int
    correlation_id: int
    frame: bytes
    #: The node that it was for, from 0.
    node: int


class Answer(NamedTuple):
    """What a request that was delivered later was answered, without the frame's length."""

    request: Request
    frame: bytes


class Rule:
    """Picks requests of some API keys; `every=3` is each third of them, `times` how many in all."""

    def __init__(
        self,
        fault: Fault,
        api_keys: set[int],
        times: int,
        every: int,
        action: Callable[[], None] | None = None,
    ) -> None:
        self.fault = fault
        self.action = action
        self.caught: list[Request] = []
        self._api_keys = api_keys
        self._times = times
        self._every = every
        self._seen = 0
        self._changed = threading.Condition()

    def picks(self, request: Request) -> bool:
        """Say whether the rule is meant, and remember the request if so."""
        if request.api_key not in self._api_keys:
            return False
        with self._changed:
            self._seen += 1
            if self._seen % self._every or len(self.caught) >= self._times:
                return False
            self.caught.append(request)
            self._changed.notify_all()
            return True

    def first(self) -> Request:
        """Wait for the first request that is picked."""
        with self._changed:
            assert self._changed.wait_for(lambda: bool(self.caught), TIMEOUT_S), "nothing came"
            return self.caught[0]


class FrameProxy:
    """Listens on a port of its own, or on one for each node: on neighbours, as the nodes do.

    Leaving the `with` block closes every connection.
    """

    def __init__(self, bootstrap: str, nodes: int = 1) -> None:
        self._broker_port = int(bootstrap.rsplit(":", 1)[1])
        self._listeners = _listeners(nodes)
        self.port: int = self._listeners[0].getsockname()[1]
        self._rules: list[Rule] = []
        self._relays: list[_Relay] = []

    @property
    def bootstrap(self) -> str:
        return f"{_HOST}:{self.port}"

    def __enter__(self) -> FrameProxy:
        for node, listener in enumerate(self._listeners):
            threading.Thread(target=self._accept, args=(node, listener), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for relay in self._relays:
            relay.cut()

    def on(
        self,
        fault: Fault,
        *api_keys: int,
        times: int = 1,
        every: int = 1,
        action: Callable[[], None] | None = None,
    ) -> Rule:
        """From now on do this to requests of these API keys."""
        rule = Rule(fault, set(api_keys), times, every, action)
        self._rules.append(rule)
        return rule

    def clear(self) -> None:
        """From now on do nothing to any request."""
        self._rules = []

    def deliver(self, request: Request) -> Answer:
        """Let a held or copied request reach its node now, from a connection of its own."""
        with self.connect(request.node) as broker:
            broker.sendall(_framed(request.frame))
            frame = _receive(broker)
        assert frame is not None, f"API {request.api_key}: the broker hung up"
        return Answer(request, frame)

    def rule_for(self, request: Request) -> Rule | None:
        return next((rule for rule in self._rules if rule.picks(request)), None)

    def localised(self, frame: bytes) -> bytes:
        """Replace the broker's addresses by the proxy's: the same length, so nothing else moves."""
        for node in range(len(self._listeners)):
            told = _HOST.encode() + struct.pack(">i", self._broker_port + node)
            frame = frame.replace(told, _HOST.encode() + struct.pack(">i", self.port + node))
        return frame

    def connect(self, node: int) -> socket.socket:
        """Return a connection to a node of the broker."""
        return socket.create_connection((_HOST, self._broker_port + node), timeout=TIMEOUT_S)

    def _accept(self, node: int, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                broker = self.connect(node)
            except OSError:
                client.close()
                continue
            relay = _Relay(self, client, broker, node)
            self._relays.append(relay)
            relay.start()


class _Expected(NamedTuple):
    """The next answer of the broker: brokers answer a connection's requests in order."""

    request: Request
    pass_on: Callable[[bytes], None]


class _Relay:
    """One client's connection and the broker's: a thread for each direction."""

    def __init__(
        self, proxy: FrameProxy, client: socket.socket, broker: socket.socket, node: int
    ) -> None:
        self._proxy = proxy
        self._node = node
        self._client = client
        self._broker = broker
        self._expected: deque[_Expected] = deque()
        for each in (client, broker):
            each.settimeout(None)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self) -> None:
        for target in (self._requests, self._answers):
            threading.Thread(target=self._until_cut, args=(target,), daemon=True).start()

    def cut(self) -> None:
        """Break both connections, as a network does: without a word."""
        for each in (self._client, self._broker):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _until_cut(self, direction: Callable[[], None]) -> None:
        with contextlib.suppress(OSError):
            direction()
        self.cut()

    def _requests(self) -> None:
        while (frame := _receive(self._client)) is not None:
            api_key, api_version, correlation_id = struct.unpack_from(">hhi", frame)
            request = Request(api_key, api_version, correlation_id, frame, self._node)
            rule = self._proxy.rule_for(request)
            fault = Fault.COPY if rule is None else rule.fault
            if fault is Fault.HOLD:
                return
            first = self._lose if fault is Fault.LOSE_ANSWER else self._pass_on
            if rule is not None and rule.action is not None:
                if fault is Fault.BEFORE:
                    rule.action()
                elif fault is Fault.AFTER:
                    first = partial(self._act_and_pass_on, rule.action)
            self._expected.append(_Expected(request, first))
            if fault is Fault.DOUBLE:
                self._expected.append(_Expected(request, _swallow))
                self._broker.sendall(_framed(frame))
            self._broker.sendall(_framed(frame))

    def _answers(self) -> None:
        while (frame := _receive(self._broker)) is not None:
            request, pass_on = self._expected.popleft()
            (correlation_id,) = struct.unpack_from(">i", frame)
            assert correlation_id == request.correlation_id, "an answer out of order"
            if request.api_key in _TELLING_ADDRESSES:
                frame = self._proxy.localised(frame)
            pass_on(frame)

    def _pass_on(self, frame: bytes) -> None:
        self._client.sendall(_framed(frame))

    def _act_and_pass_on(self, action: Callable[[], None], frame: bytes) -> None:
        action()
        self._pass_on(frame)

    def _lose(self, _: bytes) -> None:
        self.cut()


def _listeners(count: int) -> list[socket.socket]:
    """Return so many listeners on neighbouring ports that are free."""
    while True:
        first = socket.create_server((_HOST, 0))
        port = first.getsockname()[1]
        found = [first]
        try:
            found += [socket.create_server((_HOST, port + node)) for node in range(1, count)]
        except (OSError, OverflowError):
            for listener in found:
                listener.close()
        else:
            return found


def _swallow(_: bytes) -> None:
    """The answer of the second of two: the client asked once."""


def _framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


def _receive(connection: socket.socket) -> bytes | None:
    """Return the next frame without its length, None at the end of the stream."""
    header = _exactly(connection, 4)
    return None if header is None else _exactly(connection, struct.unpack(">i", header)[0])


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)
