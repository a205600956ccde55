"""A client's connection: Kafka's frames out and in, pipelined, with timeouts and reconnects."""

from __future__ import annotations

import asyncio
from collections import deque
from struct import Struct
from typing import NamedTuple, TypeVar

from tests.simulation.simulated_broker import Gone
from tests.simulation.world.network import BROKER, Link, Network
from tests.simulation.world.process import Process
from wire.message import Message
from wire.messages import sasl_authenticate, sasl_handshake
from wire.messages.header import RequestHeader, ResponseHeader

M = TypeVar("M", bound=Message)

_SIZE = Struct(">i")
#: After it a client takes the connection for dead.
TIMEOUT_S = 5.0


class Login(NamedTuple):
    """A user with the password, for PLAIN."""

    user: str
    password: str


class _Sent:
    """A request that waits for its answer."""

    __slots__ = ("answer", "correlation_id", "response_class", "version")

    def __init__(
        self,
        correlation_id: int,
        response_class: type[Message],
        version: int,
        answer: asyncio.Future[Message],
    ) -> None:
        self.correlation_id = correlation_id
        self.response_class = response_class
        self.version = version
        self.answer = answer


class Connection:
    """A client of the broker: one connection at a time, made again when it was lost."""

    def __init__(
        self,
        network: Network,
        process: Process,
        name: str,
        *,
        may_arrive_late: bool = True,
        login: Login | None = None,
        address: str = BROKER,
    ) -> None:
        """`may_arrive_late`: requests of a connection that was given up may still be carried out.

        Of transaction version 1 they might land in the next transaction, in Kafka too. `login`:
        each connection begins with it; its first requests follow without waiting.
        """
        self.name = name
        self._login = login
        self._address = address
        self._may_arrive_late = may_arrive_late
        self._network = network
        self._process = process
        self._link: Link | None = None
        self._received = bytearray()
        self._waiting: deque[_Sent] = deque()
        self._correlation_id = 0
        #: What the broker did on this connection and must not do.
        self.witnesses: list[str] = []

    @property
    def is_open(self) -> bool:
        return self._link is not None

    @property
    def has_read_slowly(self) -> bool:
        """Whether answers of this connection may have come long after the broker sent them."""
        return self._link is None or self._link.has_read_slowly

    async def ask(
        self,
        request: Message,
        response_class: type[M],
        version: int,
        timeout_s: float = TIMEOUT_S,
    ) -> M:
        """Return the broker's answer. Gone: none came, and what became of the request is unknown.

        Requests that are asked without waiting are pipelined: none of them overtakes another.
        """
        sent = self._send(request, response_class, version)
        timer = self._process.call_later(timeout_s, self.drop)
        try:
            answer = await sent
        finally:
            timer.cancel()
        assert isinstance(answer, response_class)
        return answer

    def _send(
        self, request: Message, response_class: type[Message], version: int
    ) -> asyncio.Future[Message]:
        if self._link is None:
            self._received.clear()
            self._link = self._network.connect(
                self._process, self._on_data, self.drop, self._address
            )
            if self._link is not None and self._login is not None:
                self._log_in(self._link, self._login)
        if self._link is None:
            raise Gone
        return self._write(self._link, request, response_class, version)

    def _log_in(self, link: Link, login: Login) -> None:
        handshake = sasl_handshake.SaslHandshakeRequest(mechanism="PLAIN")
        self._write(link, handshake, sasl_handshake.SaslHandshakeResponse, 1)
        token = f"\0{login.user}\0{login.password}".encode()
        request = sasl_authenticate.SaslAuthenticateRequest(auth_bytes=token)
        answer = self._write(link, request, sasl_authenticate.SaslAuthenticateResponse, 2)
        answer.add_done_callback(self._logged_in)

    def _logged_in(self, answer: asyncio.Future[Message]) -> None:
        if answer.exception() is None:
            told = answer.result()
            assert isinstance(told, sasl_authenticate.SaslAuthenticateResponse)
            if told.error_code:
                self.witnesses.append(f"access: the login of {self.name}: {told.error_message}")

    def _write(
        self, link: Link, request: Message, response_class: type[Message], version: int
    ) -> asyncio.Future[Message]:
        self._correlation_id += 1
        header = RequestHeader(
            request_api_key=request.api_key,
            request_api_version=version,
            correlation_id=self._correlation_id,
            client_id=self.name,
        )
        body = header.encode(request.header_version(version)) + request.encode(version)
        answer: asyncio.Future[Message] = self._process.create_future()
        self._waiting.append(_Sent(self._correlation_id, response_class, version, answer))
        link.send(_SIZE.pack(len(body)) + body)
        return answer

    def drop(self) -> None:
        """Give the connection up: what was asked has no answer any more."""
        link, self._link = self._link, None
        if link is not None:
            link.close(may_arrive=self._may_arrive_late)
        waiting, self._waiting = self._waiting, deque()
        for sent in waiting:
            if not sent.answer.done():
                sent.answer.set_exception(Gone())
                # An answer that no task waits for is not missed.
                sent.answer.exception()

    def _on_data(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._received)
            end = _SIZE.size + size
            if len(self._received) < end:
                return
            frame = bytes(self._received[_SIZE.size : end])
            del self._received[:end]
            self._on_frame(frame)

    def _on_frame(self, frame: bytes) -> None:
        if not self._waiting:
            self.witnesses.append(f"protocol: {self.name} got an answer to no request")
            return
        sent = self._waiting.popleft()
        header, start = ResponseHeader.decode_from(
            frame, sent.response_class.header_version(sent.version)
        )
        if header.correlation_id != sent.correlation_id:
            self.witnesses.append(
                f"protocol: {self.name} got answer {header.correlation_id}"
                f" in place of {sent.correlation_id}"
            )
        answer = sent.response_class.decode(bytearray(frame[start:]), sent.version)
        if not sent.answer.done():
            sent.answer.set_result(answer)
