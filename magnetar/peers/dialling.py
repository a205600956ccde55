"""One connection to a peer, as the node that dials it sees it: proofs first, then calls.

Nothing is tried again here. A call whose answer does not come has an unknown outcome: the peer may
have done what it was asked, or may do it later. It does not do it after a later connection of this
node was admitted (`listening`), so who asks again on a new connection is the last to be heard.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, cast

from magnetar.peers.frames import FRAME_BYTES_MAX, FrameSplitter, correlation_id_of, encode_request
from magnetar.peers.proofs import (
    NONCE_BYTES,
    Introduction,
    dialler_proof,
    is_proven,
    listener_proof,
)
from magnetar.peers.tables import response_class_of
from magnetar.runtime.peer_messages import (
    PeerHelloRequest,
    PeerHelloResponse,
    PeerProofRequest,
    PeerProofResponse,
)
from magnetar.runtime.peers import PeerUnreachable
from wire.errors import WireError
from wire.message import Message
from wire.messages.header import ResponseHeader


class Own(NamedTuple):
    """Who this node is among its peers."""

    cluster_id: str
    node_id: int
    incarnation: int
    """How often the node has started: of two connections the one of the later start is good."""


class DialledPeer(asyncio.Protocol):
    """One connection to a peer. `begin` it, then `call`."""

    def __init__(
        self,
        own: Own,
        node_id: int,
        connection: int,
        key: bytes,
        on_lost: Callable[[DialledPeer], None],
    ) -> None:
        """`connection` is the number of this one among those to the peer, in this incarnation."""
        self._own = own
        self._node_id = node_id
        self._connection = connection
        self._key = key
        self._on_lost = on_lost
        self._splitter = FrameSplitter()
        self._transport: asyncio.Transport | None = None
        self._correlation_id = 0
        #: By correlation id: who waits, and how the answer is read.
        self._calls: dict[int, tuple[asyncio.Future[Message], type[Message], int]] = {}

    @property
    def node_id(self) -> int:
        """The peer that was dialled."""
        return self._node_id

    @property
    def is_open(self) -> bool:
        """Whether a call may be made on the connection."""
        return self._transport is not None and not self._transport.is_closing()

    # --- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._splitter.feed(data):
                self._on_response(frame)
        except WireError:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._fail_all(str(exc or "the connection has ended"))
        self._on_lost(self)

    # ---

    async def begin(self, timeout_s: float) -> None:
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
            0,
            timeout_s,
        )
        assert isinstance(hello, PeerHelloResponse)
        if len(hello.nonce) != NONCE_BYTES:
            raise self._unproven()
        said = Introduction(*own, self._connection, self._node_id, nonce, hello.nonce)
        # Before the own proof leaves: a stranger learns nothing.
        if not is_proven(hello.proof, listener_proof(self._key, said)):
            raise self._unproven()
        proof = PeerProofRequest(proof=dialler_proof(self._key, said))
        admitted = await self.call(proof, 0, timeout_s)
        assert isinstance(admitted, PeerProofResponse)
        if admitted.error_code:
            raise self._unproven()
        self._splitter.bytes_max = FRAME_BYTES_MAX

    async def call(self, request: Message, version: int, timeout_s: float) -> Message:
        """Send a request and return its response. Raises PeerUnreachable."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise PeerUnreachable(self._node_id, "the connection has ended")
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFF_FFFF
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Message] = loop.create_future()
        self._calls[correlation_id] = (answer, response_class_of(type(request)), version)
        transport.write(encode_request(request, version, correlation_id))
        late = loop.call_later(timeout_s, partial(self._on_late, answer, timeout_s))
        try:
            return await answer
        finally:
            late.cancel()
            self._calls.pop(correlation_id, None)

    def abort(self) -> None:
        """End the connection at once. Calls without an answer raise PeerUnreachable."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        self._fail_all("the connection was given up")
        self._on_lost(self)

    def _on_response(self, frame: bytes) -> None:
        waiting = self._calls.get(correlation_id_of(frame))
        if waiting is None:
            return  # The call was cancelled.
        answer, response_class, version = waiting
        _, start = ResponseHeader.decode_from(frame, response_class.header_version(version))
        response = response_class.decode(memoryview(frame)[start:], version)
        if not answer.done():
            answer.set_result(response)

    def _on_late(self, answer: asyncio.Future[Message], timeout_s: float) -> None:
        if not answer.done():
            answer.set_exception(
                PeerUnreachable(self._node_id, f"no answer within {timeout_s:g} s")
            )
            # It may hang for good, as a host that has vanished does. The next call dials again.
            self.abort()

    def _fail_all(self, reason: str) -> None:
        for answer, _, _ in self._calls.values():
            if not answer.done():
                answer.set_exception(PeerUnreachable(self._node_id, reason))

    def _unproven(self) -> PeerUnreachable:
        self.abort()
        return PeerUnreachable(self._node_id, "it has not proven that it is of this cluster")
