"""The server: it listens, accepts connections within limits, and closes idle and slow ones."""

from __future__ import annotations

import asyncio
import functools
import math
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from magnetar.apis.registry import Api
from magnetar.clock import Clock
from magnetar.config.broker import BrokerConfig
from magnetar.config.listeners import Listener
from magnetar.config.load import ConfigError
from magnetar.config.security import listener_security
from magnetar.logging import get_logger
from magnetar.runtime.authentication import Authentication
from magnetar.runtime.delayed_response import DelayedResponses
from magnetar.runtime.response_memory import ROOM_BYTES_MIN, ResponseMemory
from magnetar.runtime.services import Services
from magnetar.runtime.turns import Turns
from magnetar.security.handshakes import Handshakes, Verdict
from magnetar.server import unread
from magnetar.server.admission import Admission
from magnetar.server.connection import NOWHERE, ClientConnection
from magnetar.server.dispatch import Dispatcher
from magnetar.server.frames import SharedBuffer
from magnetar.server.memory import PROGRESS_BYTES_MIN, RequestMemory
from magnetar.server.shared import Shared
from magnetar.server.tls import ListenerTls
from magnetar.server.waiting import Waiting

#: The bytes of answers that may wait for a slow client in no account. Above it they are accounted
#: for, and no more requests of the connection are started.
WRITE_BUFFER_BYTES = ROOM_BYTES_MIN
#: The time that a stop waits for answers under way.
STOP_GRACE_SECONDS = 1.0
#: The interval of the search for idle connections, and for slow ones while memory is short.
_SWEEP_SECONDS = 1.0
#: How many of these searches are made between two looks at the files of certificates.
_SWEEPS_PER_RELOAD = 10

_log = get_logger("server")

#: What an empty host asks for.
_EVERY_INTERFACE = "0.0.0.0"  # noqa: S104  # only where a setting says so

#: Takes the address of a listener. Raises ConfigError.
Bind: TypeAlias = Callable[[Listener], socket.socket]


def bind_socket(listener: Listener) -> socket.socket:
    """Return a socket with the listener's address. Raises ConfigError for one that is taken."""
    try:
        return socket_at(listener.host, listener.port)
    except OSError as error:
        raise _taken(listener, error) from error


def _taken(listener: Listener, error: OSError) -> ConfigError:
    host = listener.host or _EVERY_INTERFACE
    return ConfigError(
        f"cannot listen on {listener.name}://{host}:{listener.port}: {error.strerror}."
        " Choose another address with --listen."
    )


def socket_at(host: str, port: int) -> socket.socket:
    """Return a socket with an address, of which an empty host is every interface. Raises
    OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host or _EVERY_INTERFACE, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


class Server:
    """The listeners and the connections they accepted."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        response_memory: ResponseMemory,
        turns: Turns,
        apis: Mapping[int, Api],
        on_fatal: Callable[[BaseException], None],
        bind: Bind = bind_socket,
    ) -> None:
        self._bind = bind
        self.loop = asyncio.get_running_loop()
        self.memory = RequestMemory(config.queued_max_request_bytes)
        self.dispatcher = Dispatcher(clock, apis, on_fatal, turns, self.memory, response_memory)
        self.response_memory = response_memory
        self.shared = Shared(
            loop=self.loop,
            dispatcher=self.dispatcher,
            delayed_responses=DelayedResponses(self.loop),
            memory=self.memory,
            response_memory=response_memory,
            turns=turns,
            buffer=SharedBuffer(),
            frame_bytes_max=config.socket_request_max_bytes,
            in_flight_max=config.connection_max_in_flight_requests,
            on_opened=self._opened,
            on_closed=self._closed,
        )
        turns.on_queue = self.shared.buffer.shorten
        self.listeners: list[Listener] = []
        self._config = config
        self._clock = clock
        self._admission: Admission
        self._tls: dict[str, ListenerTls] = {}
        self._bound: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        #: One for each listener with TLS.
        self.handshakes: list[Handshakes] = []
        #: In the order in which they were accepted.
        self._connections: dict[ClientConnection, None] = {}
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._all_closed = asyncio.Event()
        self._is_stopping = False
        #: Whether clients are served; else each is closed as it comes.
        self.is_serving = True
        self._sweep_count = 0
        #: The traffic of connections that have ended.
        self._received_bytes = 0
        self._sent_bytes = 0

    @property
    def received_bytes(self) -> int:
        """The bytes that clients have sent since the start."""
        return self._received_bytes + sum(one.received_bytes for one in self._connections)

    @property
    def sent_bytes(self) -> int:
        """The bytes of answers to clients since the start."""
        return self._sent_bytes + sum(one.sent_bytes for one in self._connections)

    @property
    def connections(self) -> tuple[ClientConnection, ...]:
        """The connections as they are now, in the order in which they were accepted."""
        return tuple(self._connections)

    @property
    def connection_count(self) -> int:
        """The number of connected clients."""
        return len(self._connections)

    def bind(self, listeners: Sequence[Listener]) -> None:
        """Take the addresses of `listeners`; afterwards `self.listeners` has their real ports.

        No client can connect before `start`. Raises ConfigError for an address that is taken.
        """
        for listener in listeners:
            try:
                bound = self._bind(listener)
            except ConfigError:
                self.unbind()
                raise
            self._bound.append(bound)
            self.listeners.append(listener.bound_to(bound.getsockname()[1]))
            if listener.protocol.has_tls:
                security = listener_security(self._config, listener.name)
                self._tls[listener.name] = ListenerTls(listener, security)

    def unbind(self) -> None:
        """Give back the addresses that `bind` took. For a start that fails before `start`."""
        for bound in self._bound:
            bound.close()

    async def start(self, services: Services) -> None:
        """Accept connections; `services` answer their requests.

        Raises ConfigError for an address at which another listener, or another process, listens.
        """
        self.dispatcher.services = services
        clock, is_serving = self._clock.steady_ms, lambda: self.is_serving
        self._admission = Admission(self._config, services.quotas, clock, is_serving)
        services.quotas.on_change = self._quotas_changed
        configs = services.config_resources.broker
        configs.check_change, configs.on_change = self._check_configs, self._configs_changed
        # Addresses were bound before the configs that an earlier process stored were read.
        self._configs_changed()
        for bound, listener in zip(self._bound, self.listeners, strict=True):
            connection = functools.partial(self._connection, services.authentication, listener)
            backlog = self._config.socket_listen_backlog_size
            try:
                # Several sockets may take an address as long as none listens. uvloop would pass
                # over the failure, and clients would reach another listener than they asked for.
                bound.listen(backlog)
            except OSError as error:
                raise _taken(listener, error) from error
            tls = self._tls.get(listener.name)
            if tls is None:
                served = await self.loop.create_server(connection, sock=bound, backlog=backlog)
                self._servers.append(served)
            else:
                handshakes = Handshakes(
                    self.loop, listener.name, tls.newest, self._admission, connection
                )
                handshakes.start(bound, backlog)
                self.handshakes.append(handshakes)
        self._sweep()

    async def stop(self) -> None:
        """Accept no more, answer the requests under way for a moment, then close everything."""
        self._is_stopping = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for server in self._servers:
            server.close()
        for handshakes in self.handshakes:
            handshakes.stop()
        for connection in self.connections:
            connection.close()
        if self._connections:
            self._all_closed.clear()
            try:
                async with asyncio.timeout(STOP_GRACE_SECONDS):
                    await self._all_closed.wait()
            except TimeoutError:
                for connection in self.connections:
                    connection.abort()
                await asyncio.sleep(0)
        self.dispatcher.close()

    def turn_away(self) -> None:
        """Close all connections, and close new ones, until `serve_again`.

        The requests under way are not answered. What they have appended stays as it is.
        """
        self.is_serving = False
        for connection in self.connections:
            connection.abort()

    def serve_again(self) -> None:
        """Serve clients as before `turn_away`."""
        self.is_serving = True

    def _connection(self, authentication: Authentication, listener: Listener) -> ClientConnection:
        tls = self._tls.get(listener.name)
        rules = () if tls is None else tls.rules
        return ClientConnection(self.shared, listener, authentication.session(listener), rules)

    def _opened(self, connection: ClientConnection, transport: asyncio.Transport) -> None:
        """Count a connection that was accepted, or close it where it is one too many."""
        self._connections[connection] = None
        listener = connection.listener
        # One with TLS was counted before its handshake.
        is_admitted = listener.protocol.has_tls
        verdict = (
            Verdict() if is_admitted else self._admission.enter(listener.name, connection.host)
        )
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        accepted = transport.get_extra_info("socket")
        if accepted is not None:
            self._tune(accepted)
        reason = verdict.refusal
        if is_admitted and not self.is_serving:
            reason = "its handshake ended after this node's lease"
        if self._is_stopping:
            # The event loop accepted it before the stop. After the stop nothing may be appended.
            reason = "the broker stops"
        if connection.host == NOWHERE:
            # What it has sent before it went must not count: rules and limits go by addresses.
            connection.abort()
        elif reason:
            _log.warning(
                "connection refused", client_address=connection.client_address, reason=reason
            )
            connection.abort()
        elif verdict.close_after_ms:
            connection.close_after(verdict.close_after_ms)
        elif verdict.serve_after_ms:
            Waiting(self.loop, connection, transport, verdict.serve_after_ms)

    def _check_configs(self, candidate: BrokerConfig) -> None:
        """Raise ConfigError unless the listeners could serve by a configuration."""
        for tls in self._tls.values():
            tls.check(listener_security(candidate, tls.name))

    def _configs_changed(self) -> None:
        """Serve new connections by the configuration as it is now."""
        for tls in self._tls.values():
            tls.use(listener_security(self._config, tls.name))
        self._admission.look()

    def _quotas_changed(self) -> None:
        """Serve by the quotas as they are now, also clients that older ones had muted."""
        self.dispatcher.forget_routes()
        for connection in self.connections:
            connection.unmute()

    def _closed(self, connection: ClientConnection) -> None:
        """Forget a connection that has ended."""
        self._connections.pop(connection, None)
        self._received_bytes += connection.received_bytes
        self._sent_bytes += connection.sent_bytes
        self._admission.leave(connection.listener.name, connection.host)
        if not self._connections:
            self._all_closed.set()

    def _tune(self, accepted: socket.socket) -> None:
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # As Kafka does it: the operating system finds peers that have vanished without a word.
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._config.socket_send_buffer_bytes > 0:
            accepted.setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDBUF, self._config.socket_send_buffer_bytes
            )
        if self._config.socket_receive_buffer_bytes > 0:
            accepted.setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVBUF, self._config.socket_receive_buffer_bytes
            )

    def _sweep(self) -> None:
        """Close connections that were idle for too long, and those that hold memory others need."""
        self._sweep_count += 1
        if self._sweep_count % _SWEEPS_PER_RELOAD == 0:
            for tls in self._tls.values():
                tls.reload()
        overdue = self.memory.overdue()
        if isinstance(overdue, ClientConnection):
            overdue.cut_off("it sends too slowly while queued.max.request.bytes is used up")
        self._close_idle()
        self._sweep_timer = self.loop.call_later(_SWEEP_SECONDS, self._sweep)

    def _close_idle(self) -> None:
        """Close connections without traffic, those whose clients do not read their answers or have
        stopped in the midst of a request, and those whose clients have gone unseen."""
        now = self.loop.time()
        idle_ms = self._config.connections_max_idle_ms
        idle_s = idle_ms / 1000 if idle_ms >= 0 else math.inf
        for connection in self.connections:
            is_stalled = connection.stalled_seconds(now) > unread.SHORT_OF_MEMORY_S
            if connection.slow_seconds(now) > idle_s:
                _cut_off_slow(connection, f"connections.max.idle.ms={idle_ms}")
            elif connection.idle_seconds(now) > idle_s:
                _log.debug("idle connection closed", client_address=connection.client_address)
                connection.end()
            elif is_stalled and self.memory.is_crowded:
                _cut_off_stalled(connection)
            else:
                connection.show_end()
        if self.response_memory.room_bytes <= 0:
            self._make_room(now)

    def _make_room(self, now_s: float) -> None:
        """Cut off clients that do not read their answers, the slowest first, until answers have
        some room again. No more: an application may rest for a while, and reads on."""
        memory = self.response_memory
        room_bytes_wanted = memory.limit_bytes // unread.ROOM_PART
        slowest = sorted(
            self.connections, key=lambda connection: connection.slow_seconds(now_s), reverse=True
        )
        for connection in slowest:
            is_slow = connection.slow_seconds(now_s) > unread.SHORT_OF_MEMORY_S
            if not is_slow or memory.room_bytes >= room_bytes_wanted:
                return
            seconds = f"{unread.SHORT_OF_MEMORY_S:g} s"
            _cut_off_slow(connection, f"{seconds} while answers hold queued.max.request.bytes")


def _cut_off_stalled(connection: ClientConnection) -> None:
    connection.cut_off(
        f"it sent less than {PROGRESS_BYTES_MIN >> 10} KB of a request in"
        f" {unread.SHORT_OF_MEMORY_S:g} s while such requests hold queued.max.request.bytes"
    )


def _cut_off_slow(connection: ClientConnection, slow_by: str) -> None:
    kilobytes = unread.TAKEN_BYTES_MIN >> 10
    connection.cut_off(f"it took less than {kilobytes} KB of its answers in {slow_by}")
