"""One connection to a peer, as the node that dials it sees it: proofs first, then calls.

Nothing is tried again here. A call whose answer does not come has an unknown outcome: the peer may
have done what it was asked, or may do it later. It does not do it after a later connection of this
node was admitted (`listening`), so a call that is made again on a new connection is the last one
that has an effect.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Callable
from typing import NamedTuple, cast

from magnetar.peers.frames import (
    FRAME_BYTES_MAX,
    FrameSplitter,
    UnexpectedTls,
    correlation_id_of,
    decode_response,
    encode_request,
)
from magnetar.peers.proofs import (
    NONCE_BYTES,
    Introduction,
    dialler_proof,
    is_proven,
    listener_proof,
)
from magnetar.peers.tls import channel_of_dialler
from magnetar.runtime.peer_messages import (
    VERSION,
    PeerHelloRequest,
    PeerHelloResponse,
    PeerProofRequest,
    PeerProofResponse,
)
from magnetar.runtime.peers import Answer, PeerUnreachable, fail
from wire.errors import WireError
from wire.message import Message, response_class_of

#: The correlation id of what has no answer.
_UNANSWERED = -1
#: A peer that has so much to read is told nothing more.
_UNREAD_BYTES_MAX = 1 << 20


class Own(NamedTuple):
    """The identity of this node among its peers."""

    cluster_id: str
    node_id: int
    incarnation: int
    """The number of the node's start: of two connections the one of the later start counts."""


class _Call(NamedTuple):
    """A call that has no answer yet."""

    answer: Answer[Message]
    response_class: type[Message]
    version: int
    ends_at_s: float


class DialledPeer(asyncio.Protocol):
    """One connection to a peer. `begin` it, then `call`."""

    def __init__(
        self,
        own: Own,
        node_id: int,
        connection: int,
        key: bytes,
        on_lost: Callable[[DialledPeer], None],
        timeout_s: float,
    ) -> None:
        """`connection` is the number of this one among those to the peer, in this incarnation.

        `timeout_s`: how long each call may take.
        """
        self._own = own
        #: The peer that was dialled.
        self.node_id = node_id
        self._connection = connection
        self._key = key
        self._on_lost = on_lost
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._splitter = FrameSplitter()
        self._transport: asyncio.Transport | None = None
        #: What the proofs are bound to; empty without TLS.
        self._channel = b""
        self._is_proven = False
        #: Why it is useless to dial again before settings or certificates change; else empty.
        self.refusal = ""
        self._correlation_id = 0
        #: By correlation id, the oldest first.
        self._calls: dict[int, _Call] = {}
        #: Looks for calls that have taken too long; None where there was none at its last look.
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Whether a call may be made on the connection."""
        return self._transport is not None and not self._transport.is_closing()

    # --- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._channel = channel_of_dialler(transport)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._splitter.feed(data):
                self._on_response(frame)
        except UnexpectedTls as mistake:
            self.refusal = str(mistake)
            self.abort(self.refusal)
        except WireError as error:
            self.abort(f"what it answers is not of a node: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._channel and not self._is_proven:
            # TLS 1.3: the side that dials is the first to be done, and learns of a refusal later.
            self.refusal = (
                f"it ended the connection{_alert(exc)}: it may not trust this node's certificate"
            )
        self._fail_all(self.refusal or str(exc or "the connection has ended"))
        self._on_lost(self)

    # ---

    async def begin(self) -> None:
        """Return when each side has proven itself. Raises PeerUnreachable."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        own = self._own
        hello = await self.call(
            PeerHelloRequest(
                cluster_id=own.cluster_id,
                node_id=own.node_id,
                incarnation=own.incarnation,
                connection=self._connection,
                nonce=nonce,
            ),
            VERSION,
        )
        assert isinstance(hello, PeerHelloResponse)
        if len(hello.nonce) != NONCE_BYTES:
            raise self._unproven()
        said = Introduction(*own, self._connection, self.node_id, nonce, hello.nonce, self._channel)
        # Before the own proof leaves: a stranger learns nothing.
        if not is_proven(hello.proof, listener_proof(self._key, said)):
            raise self._unproven()
        proof = PeerProofRequest(proof=dialler_proof(self._key, said))
        admitted = await self.call(proof, 0)
        assert isinstance(admitted, PeerProofResponse)
        if admitted.error_code:
            raise self._unproven()
        self._is_proven = True
        self._splitter.bytes_max = FRAME_BYTES_MAX

    def call(self, request: Message, version: int) -> asyncio.Future[Message]:
        """Send a request; the result is its response, or PeerUnreachable."""
        answer: asyncio.Future[Message] = self._loop.create_future()
        self.send(request, version, answer)
        return answer

    def send(self, request: Message, version: int, answer: Answer[Message]) -> None:
        """Send a request. `answer` takes its response in the step in which it arrives, or, in a
        step of its own, PeerUnreachable."""
        transport = self._transport
        if transport is None or transport.is_closing():
            self._fail(answer, "the connection has ended")
            return
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFF_FFFF
        self._calls[correlation_id] = _Call(
            answer,
            response_class_of(type(request)),
            version,
            self._loop.time() + self._timeout_s,
        )
        transport.write(encode_request(request, version, correlation_id))
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._look)

    def tell(self, request: Message, version: int) -> None:
        """Send what has no answer. It may be lost; else it arrives in order with all calls."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        # A peer that reads nothing: what waits for an answer gives the connection up.
        if transport.get_write_buffer_size() <= _UNREAD_BYTES_MAX:
            transport.write(encode_request(request, version, _UNANSWERED))

    def abort(self, reason: str = "the connection was given up") -> None:
        """End the connection at once. Calls without an answer raise PeerUnreachable."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        self._fail_all(reason)
        self._on_lost(self)

    def _on_response(self, frame: bytes) -> None:
        correlation_id = correlation_id_of(frame)
        call = self._calls.get(correlation_id)
        if call is None:
            return
        # Only then is the call over: one whose response cannot be read fails with the connection.
        response = decode_response(frame, call.response_class, call.version)
        del self._calls[correlation_id]
        if call.answer.done():  # It was given up.
            return
        try:
            call.answer.set_result(response)
        except Exception as error:  # not the connection's: what goes on with the answer has failed
            # The event loop's handler ends the node, as after an error in any other callback.
            self._loop.call_soon(_raise, error)

    def _look(self) -> None:
        """Give the connection up where a call has taken too long.

        It may hang for good, as a host that has vanished does. The next call dials again. One timer
        serves all calls: nearly every one is over long before.
        """
        self._timer = None
        if not self._calls:
            return
        oldest = next(iter(self._calls.values()))
        left_s = oldest.ends_at_s - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._look)
            return
        self._fail_all(f"no answer within {self._timeout_s:g} s")
        self.abort()

    def _fail_all(self, reason: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        calls, self._calls = self._calls, {}
        for call in calls.values():
            self._fail(call.answer, reason)

    def _fail(self, answer: Answer[Message], reason: str) -> None:
        """Tell a call that it failed. In the next turn: what goes on may call again at once."""
        self._loop.call_soon(fail, answer, PeerUnreachable(self.node_id, reason))

    def _unproven(self) -> PeerUnreachable:
        self.abort()
        return PeerUnreachable(self.node_id, "it has not proven that it is of this cluster")


def _raise(error: Exception) -> None:
    raise error


def _alert(error: Exception | None) -> str:
    """Return what the other side of TLS has said at the end, as a part of a sentence."""
    reason = error.reason if isinstance(error, ssl.SSLError) else None
    return f" ({reason.lower().replace('_', ' ')})" if reason else ""
