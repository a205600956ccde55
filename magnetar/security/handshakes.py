"""The TLS connections of one listener, from `accept` until they are encrypted.

A socket counts against the limits of connections as soon as it is accepted; one that may not be
served costs no handshake. A client's hello takes up to a millisecond of the event loop. So a hello
is waited for without reading it, and in each turn of the loop one handshake begins: a thousand
clients that come at once hold up no other. A client that sends no TLS is told apart by its first
byte. After `HANDSHAKE_S` an unfinished handshake ends, whatever it waits for.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from magnetar.config.addresses import plain_address
from magnetar.logging import get_logger
from magnetar.security.crowding import gives_way

#: The time that a client has for its handshake, and for the end of its connection.
HANDSHAKE_S = 10.0
SHUTDOWN_S = 2.0
#: What is left for a handshake whose hello came at the last moment: event loops want more than 0.
_HANDSHAKE_S_MIN = 0.1
#: Sockets accepted in one turn, and the pause where the process may open no more.
_ACCEPTED_MAX = 16
_NO_FILES_PAUSE_S = 1.0
#: A TLS record that carries a handshake begins with this byte.
_HANDSHAKE_RECORD = 0x16
#: The alert that OpenSSL would send: a fatal one, unexpected_message.
UNEXPECTED_MESSAGE = b"\x15\x03\x01\x00\x02\x02\x0a"
_PLAIN_BYTES_MAX = 1 << 16

_log = get_logger("server")


class Outcome(StrEnum):
    """How a handshake ended."""

    DONE = "done"
    FAILED = "failed"
    PLAIN_TEXT = "plain-text"
    TIMEOUT = "timeout"
    #: The client closed before it began.
    GONE = "gone"


class Verdict(NamedTuple):
    """`refusal` is why the connection is closed at once, or empty. Else the delays count."""

    refusal: str = ""
    close_after_ms: int = 0
    serve_after_ms: int = 0


class Gate(Protocol):
    """Counts the connections of listeners, and says which of them are served."""

    def enter(self, listener: str, host: str) -> Verdict:
        """Count a new connection and judge it. `leave` must follow in any case."""
        ...

    def leave(self, listener: str, host: str) -> None:
        """Forget a connection that has ended."""
        ...


def tell(address: str, listener: str, reason: str) -> None:
    """Write down a handshake that failed."""
    _log.warning("handshake failed", client_address=address, listener=listener, reason=reason)


def answer(refused: socket.socket, alert: bytes) -> None:
    """Tell the other side why its connection ends."""
    with suppress(OSError):
        # Read first: what is left unread at the close would take the answer with it.
        refused.recv(_PLAIN_BYTES_MAX)
    with suppress(OSError):
        refused.send(alert)


#: The socket that a task encrypts.
_encrypted: ContextVar[socket.socket | None] = ContextVar("_encrypted", default=None)


class _Refusing(ssl.SSLObject):
    """Sends the alert of a handshake that fails: event loops close without it."""

    outgoing: ssl.MemoryBIO
    accepted: socket.socket | None

    def do_handshake(self) -> None:
        """Go on with the handshake. Raises SSLError."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLSyscallError):
            raise
        except ssl.SSLError:
            if self.accepted is not None:
                answer(self.accepted, self.outgoing.read())
            raise


class ListeningContext(ssl.SSLContext):
    """What `Handshakes` encrypts with: the other side learns why it is refused."""

    sslobject_class = _Refusing

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **kwargs: Any
    ) -> ssl.SSLObject:
        """Return what one handshake is done with."""
        wrapped = super().wrap_bio(incoming, outgoing, *args, **kwargs)
        assert isinstance(wrapped, _Refusing)
        wrapped.outgoing, wrapped.accepted = outgoing, _encrypted.get()
        return wrapped


class Handshakes:
    """Accepts the connections of a listener with TLS."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: str,
        context: Callable[[], ssl.SSLContext],
        gate: Gate,
        connection: Callable[[], asyncio.BaseProtocol],
        on_failed: Callable[[str, str, str], None] = tell,
        open_max: int | None = None,
    ) -> None:
        """`context` returns what the next handshake is done with. `connection` makes the protocol
        of one that is encrypted: `gate` still counts it.

        `on_failed` is told the other side's address, the listener and the reason. At most
        `open_max` sockets are not encrypted yet: for one more another one gives way (`crowding`).
        """
        self.outcomes: Counter[Outcome] = Counter()
        self._loop = loop
        self._listener = listener
        self._context = context
        self._gate = gate
        self._connection = connection
        self._on_failed = on_failed
        self._open_max = open_max
        self._bound: socket.socket | None = None
        #: Handshakes under way, the oldest first, each with the address of its client.
        self._open: dict[_Handshake, str] = {}
        #: Handshakes whose client has sent its hello, in the order of these hellos.
        self._ready: deque[_Handshake] = deque()
        self._will_begin = False

    @property
    def count(self) -> int:
        """The number of sockets that are not encrypted yet."""
        return len(self._open)

    def start(self, bound: socket.socket, backlog: int) -> None:
        """Accept connections to a bound socket."""
        bound.listen(backlog)
        bound.setblocking(False)
        self._bound = bound
        self._loop.add_reader(bound.fileno(), self._accept)

    def stop(self) -> None:
        """Accept no more, and end the handshakes under way."""
        if self._bound is not None:
            self._loop.remove_reader(self._bound.fileno())
            self._bound.close()
            self._bound = None
        for handshake in tuple(self._open):
            handshake.end(Outcome.GONE)

    def _accept(self) -> None:
        bound = self._bound
        if bound is None:
            return
        for _ in range(_ACCEPTED_MAX):
            try:
                accepted, address = bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Out of descriptors, or of memory: the socket would stay readable for ever.
                _log.error("cannot accept", listener=self._listener, reason=error.strerror)
                self._loop.remove_reader(bound.fileno())
                self._loop.call_later(_NO_FILES_PAUSE_S, self._accept_again)
                return
            accepted.setblocking(False)
            host = plain_address(address[0])
            self._admit(accepted, host, f"{host}:{address[1]}")

    def _accept_again(self) -> None:
        if self._bound is not None:
            self._loop.add_reader(self._bound.fileno(), self._accept)

    def _admit(self, accepted: socket.socket, host: str, address: str) -> None:
        verdict = self._gate.enter(self._listener, host)
        handshake = _Handshake(self, accepted, host, address)
        if self._open_max is not None and len(self._open) >= self._open_max:
            self._crowd_out(gives_way(self._open))
        self._open[handshake] = host
        if verdict.refusal:
            _log.warning("connection refused", client_address=address, reason=verdict.refusal)
            handshake.end(None)
        elif verdict.close_after_ms:
            handshake.close_after(verdict.close_after_ms / 1000)
        else:
            handshake.wait(verdict.serve_after_ms / 1000)

    def _crowd_out(self, crowding: _Handshake) -> None:
        # At once: one that OpenSSL has begun ends in a later turn.
        self._open.pop(crowding)
        crowding.end(Outcome.TIMEOUT, f"{self._open_max} others came before it was encrypted")

    # What one handshake calls.

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the server."""
        return self._loop

    def enqueue(self, handshake: _Handshake) -> None:
        """Begin a handshake whose hello has come, in its turn."""
        self._ready.append(handshake)
        if not self._will_begin:
            self._will_begin = True
            self._loop.call_soon(self._begin_next)

    def _begin_next(self) -> None:
        self._will_begin = bool(self._ready)
        if not self._ready:
            return
        self._ready.popleft().begin()
        # In the next turn: the event loop hears everyone else in between.
        self._loop.call_soon(self._begin_next)

    async def encrypt(self, accepted: socket.socket, timeout_s: float) -> None:
        """Do the handshake; the connection is served from there on. Raises OSError."""
        _encrypted.set(accepted)
        await self._loop.connect_accepted_socket(
            self._connection,
            accepted,
            ssl=self._context(),
            ssl_handshake_timeout=timeout_s,
            ssl_shutdown_timeout=SHUTDOWN_S,
        )

    def ended(self, handshake: _Handshake, outcome: Outcome | None, detail: str) -> None:
        """Account for the end of a handshake; None: it never began."""
        self._open.pop(handshake, None)
        if outcome is not Outcome.DONE:
            self._gate.leave(self._listener, handshake.host)
        if outcome is None:
            return
        self.outcomes[outcome] += 1
        if detail:
            self._on_failed(handshake.address, self._listener, detail)


class _Handshake:
    """One accepted socket, until it is encrypted or closed."""

    def __init__(
        self, listener: Handshakes, accepted: socket.socket, host: str, address: str
    ) -> None:
        self.host = host
        self.address = address
        self._listener = listener
        self._socket = accepted
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._deadline_s = 0.0
        self._is_over = False

    def close_after(self, delay_s: float) -> None:
        """Serve nothing, and close after a delay."""
        self._timer = self._listener.loop.call_later(delay_s, self.end, None)

    def wait(self, delay_s: float) -> None:
        """Wait for the client's hello, once its turn has come."""
        loop = self._listener.loop
        if delay_s:
            self._timer = loop.call_later(delay_s, self._listen)
        else:
            self._listen()

    def _listen(self) -> None:
        loop = self._listener.loop
        self._deadline_s = loop.time() + HANDSHAKE_S
        self._timer = loop.call_at(
            self._deadline_s, self.end, Outcome.TIMEOUT, f"nothing came within {HANDSHAKE_S:g} s"
        )
        loop.add_reader(self._socket.fileno(), self._heard)

    def _heard(self) -> None:
        self._listener.loop.remove_reader(self._socket.fileno())
        try:
            first = self._socket.recv(1, socket.MSG_PEEK)
        except OSError:
            first = b""
        if not first:
            self.end(Outcome.GONE)
        elif first[0] != _HANDSHAKE_RECORD:
            # So that a client that speaks no TLS can tell what it has reached.
            answer(self._socket, UNEXPECTED_MESSAGE)
            self.end(
                Outcome.PLAIN_TEXT,
                "not TLS: the other side is set up for PLAINTEXT or SASL_PLAINTEXT",
            )
        else:
            self._listener.enqueue(self)

    def begin(self) -> None:
        """Do the handshake."""
        if self._is_over:
            return
        self._cancel_timer()
        self._task = self._listener.loop.create_task(self._encrypt())

    async def _encrypt(self) -> None:
        outcome, detail = Outcome.GONE, ""
        left_s = self._deadline_s - self._listener.loop.time()
        try:
            await self._listener.encrypt(self._socket, max(left_s, _HANDSHAKE_S_MIN))
            outcome = Outcome.DONE
        except ConnectionAbortedError:
            # What an event loop raises when the time for a handshake is over.
            outcome, detail = Outcome.TIMEOUT, f"it was not over within {HANDSHAKE_S:g} s"
        except OSError as error:
            outcome, detail = Outcome.FAILED, _reason(error)
        finally:
            self._finish(outcome, detail)

    def end(self, outcome: Outcome | None, detail: str = "") -> None:
        """Close the socket, if it is not encrypted yet."""
        if self._is_over:
            return
        if self._task is not None:
            # The event loop owns the socket by now, and closes it.
            self._task.cancel()
            return
        self._listener.loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._finish(outcome, detail)

    def _finish(self, outcome: Outcome | None, detail: str) -> None:
        self._is_over = True
        self._cancel_timer()
        self._listener.ended(self, outcome, detail)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _reason(error: OSError) -> str:
    """Return what OpenSSL, or the operating system, says of a handshake that failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    if isinstance(error, ConnectionResetError):
        return "the other side ended it: it may not trust the certificate, or have none"
    return error.strerror or str(error) or type(error).__name__
