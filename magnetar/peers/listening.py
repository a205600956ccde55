"""The connections that peers have dialled: each proves itself, and is served.

Only the newest connection of a peer is served. If a peer has given up a connection, or was killed,
and comes again, bytes of the old connection may still arrive. They must not take effect after an
answer on the new one: a marker that is sent twice and arrives late would end the next transaction
of its producer. So in the step that admits a connection the earlier ones of that peer end, and
whatever they still hold is not read. A connection proves itself over a nonce of the listener, so
none that was dialled earlier can be admitted later.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple, cast

from magnetar.logging import get_logger, shown
from magnetar.peers.dialling import Own
from magnetar.peers.frames import (
    FRAME_BYTES_MAX,
    FrameSplitter,
    RequestHead,
    UnexpectedTls,
    decode_request,
    encode_response,
    request_head,
)
from magnetar.peers.proofs import (
    NONCE_BYTES,
    Introduction,
    dialler_proof,
    is_proven,
    listener_proof,
)
from magnetar.peers.tables import PeerApis
from magnetar.peers.telling import News
from magnetar.peers.tls import channel_of_listener
from magnetar.runtime.background import Tasks
from magnetar.runtime.delayed_response import DelayedResponse, DelayedResponses
from magnetar.runtime.failing import is_fatal
from magnetar.runtime.peer_messages import (
    VERSION,
    PeerHelloRequest,
    PeerHelloResponse,
    PeerProofRequest,
    PeerProofResponse,
)
from magnetar.security.crowding import gives_way
from magnetar.security.handshakes import UNEXPECTED_MESSAGE
from wire.error_code import ErrorCode
from wire.errors import WireError
from wire.message import Message

_log = get_logger("peers")

#: The time that a connection has to prove itself.
PROOF_TIMEOUT_S = 10.0
#: Strangers at the same time; for one more another one gives way (`crowding`). A node proves itself
#: within milliseconds, so a stranger that only holds connections keeps no node out.
_STRANGERS_MAX = 64


class ListeningPeers:
    """All connections that peers have dialled. `accept` makes the protocol of a new one."""

    def __init__(
        self, own: Own, key: bytes, apis: PeerApis, fail: Callable[[BaseException], None]
    ) -> None:
        self.own = own
        self.key = key
        self.apis = apis
        self.fail = fail
        self.tasks = Tasks(fail)
        self.delayed = DelayedResponses(asyncio.get_running_loop())
        self._is_closed = False
        self.news = News()
        #: The oldest first, and whose they are.
        self._strangers: dict[ListenedPeer, str] = {}
        #: By node: the connection that is served.
        self._admitted: dict[int, ListenedPeer] = {}
        #: By node: incarnation and number of the newest connection that was admitted.
        self._newest: dict[int, tuple[int, int]] = {}

    def accept(self) -> ListenedPeer:
        """Return the protocol of a connection that a peer has just dialled."""
        return ListenedPeer(self)

    def close(self) -> None:
        """End every connection, and those that the event loop has accepted before the end."""
        self._is_closed = True
        for one in (*self._strangers, *self._admitted.values()):
            one.abort()
        self.tasks.cancel()

    def opened(self, stranger: ListenedPeer) -> bool:
        """Return whether one more may prove itself."""
        if self._is_closed:
            return False
        if len(self._strangers) >= _STRANGERS_MAX:
            crowding = gives_way(self._strangers)
            crowding.end(f"{_STRANGERS_MAX} others came before it had proven itself")
            self._strangers.pop(crowding, None)
        self._strangers[stranger] = stranger.host
        return True

    def admit(self, peer: ListenedPeer, said: Introduction) -> bool:
        """Serve a connection that has proven itself, and no earlier one of that node any more.

        Returns whether it is the newest.
        """
        number = (said.incarnation, said.connection)
        if number <= self._newest.get(said.dialler, (-1, -1)):
            return False
        self._newest[said.dialler] = number
        earlier = self._admitted.get(said.dialler)
        if earlier is not None:
            earlier.abort()
        self._strangers.pop(peer, None)
        self._admitted[said.dialler] = peer
        return True

    def lost(self, peer: ListenedPeer) -> None:
        """Forget a connection that has ended."""
        self._strangers.pop(peer, None)
        if peer.said is not None and self._admitted.get(peer.said.dialler) is peer:
            del self._admitted[peer.said.dialler]


class _Asked(NamedTuple):
    """How a peer's request is answered."""

    request_class: type[Message]
    version: int
    correlation_id: int


class ListenedPeer(asyncio.Protocol):
    """One connection that a peer, or a stranger, has dialled."""

    def __init__(self, peers: ListeningPeers) -> None:
        self._peers = peers
        self._splitter = FrameSplitter()
        self._transport: asyncio.Transport | None = None
        #: What the proofs are bound to; empty without TLS.
        self._channel = b""
        self._is_ended = False
        self._is_admitted = False
        self._late: asyncio.TimerHandle | None = None
        #: What the other side has said of itself; proven once it is admitted.
        self.said: Introduction | None = None

    # --- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._channel = channel_of_listener(transport)
        if not self._peers.opened(self):
            self.abort()
            return
        loop = asyncio.get_running_loop()
        reason = f"it has not proven itself within {PROOF_TIMEOUT_S:g} s"
        self._late = loop.call_later(PROOF_TIMEOUT_S, self.end, reason)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._splitter.feed(data):
                if self._is_ended:
                    return
                self._on_frame(frame)
        except UnexpectedTls as mistake:
            self._tell(str(mistake))
            self._end()
            if self._transport is not None:
                # So that the other side knows, too.
                self._transport.write(UNEXPECTED_MESSAGE)
                self._transport.close()
        except WireError as error:
            self.end(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._peers.lost(self)

    # ---

    def end(self, reason: str) -> None:
        """End the connection, and say why."""
        self._tell(reason)
        self.abort()

    def abort(self) -> None:
        """End the connection. Nothing that has arrived and was not begun is begun any more."""
        self._end()
        if self._transport is not None:
            self._transport.abort()

    def _end(self) -> None:
        self._is_ended = True
        if self._late is not None:
            self._late.cancel()

    def _named(self) -> int | None:
        return self.said.dialler if self._is_admitted and self.said is not None else None

    def _tell(self, reason: str) -> None:
        """Write down why the connection ends: of strangers one line for each host, for a while."""
        named, address = self._named(), self._address()
        # A stranger's reason may be of its own choice, and another one each time.
        what = (self.host,) if named is None else (str(named), reason)
        if self._peers.news.is_new(*what):
            _log.warning(
                "connection of a peer closed", node_id=named, peer_address=address, reason=reason
            )

    @property
    def host(self) -> str:
        """Where the other side is, without its port; empty among nodes of one machine."""
        return self._address().rpartition(":")[0]

    def _address(self) -> str:
        """Return where the other side is; among nodes of one machine it has no address."""
        address = self._transport.get_extra_info("peername") if self._transport else None
        return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else ""

    def _on_frame(self, frame: bytes) -> None:
        head = request_head(frame)
        key, version, correlation_id = head
        if not self._is_admitted:
            self._introduce(frame, head)
            return
        api = self._peers.apis.get(key)
        if api is None or api.version != version:
            raise WireError(f"API key {key} version {version} is not served to peers")
        request = decode_request(frame, api.request_class, version)
        asked = _Asked(api.request_class, version, correlation_id)
        try:
            answer = api.perform(request)
        except Exception as error:  # the edge between two nodes: `_on_error` sorts them
            self._on_error(error, asked)
            return
        if isinstance(answer, Message):
            self._send(answer, version, correlation_id)
        elif answer is None:
            return
        elif isinstance(answer, DelayedResponse):
            self._peers.delayed.begin(answer, partial(self._finish, answer, asked))
        else:
            self._peers.tasks.spawn(self._respond(answer, asked))

    def _finish(self, delayed: DelayedResponse, asked: _Asked) -> None:
        """Answer a request whose syncs are over. One that takes too long is not waited for."""
        if delayed.is_late:
            self.abort()
            return
        try:
            response = delayed.make(False)
        except Exception as error:  # the edge between two nodes: `_on_error` sorts them
            self._on_error(error, asked)
            return
        assert response is not None, "a peer gets an answer"
        self._send(response, asked.version, asked.correlation_id)

    async def _respond(self, answer: Callable[[], Awaitable[Message]], asked: _Asked) -> None:
        try:
            response = await answer()
        except Exception as error:  # the edge between two nodes: `_on_error` sorts them
            self._on_error(error, asked)
            return
        self._send(response, asked.version, asked.correlation_id)

    def _on_error(self, error: Exception, asked: _Asked) -> None:
        """End the broker, or give the connection up: the peer asks again, on another one."""
        if is_fatal(error):
            self._peers.fail(error)
            return
        _log.error(
            "request of a peer failed",
            request=asked.request_class.__name__,
            node_id=self._named(),
            exc_info=error,
        )
        self.abort()

    def _introduce(self, frame: bytes, head: RequestHead) -> None:
        """Take one step of the proofs. Raises WireError for a stranger to this cluster."""
        key, version, correlation_id = head
        if self.said is None and key == PeerHelloRequest.api_key:
            if version != VERSION:
                raise WireError(
                    f"it speaks version {version} of the requests between nodes, and this node"
                    f" version {VERSION}: stop all nodes, and start one magnetar on all of them"
                )
            hello = decode_request(frame, PeerHelloRequest, VERSION)
            own, nonce = self._peers.own, secrets.token_bytes(NONCE_BYTES)
            if hello.cluster_id != own.cluster_id or len(hello.nonce) != NONCE_BYTES:
                raise WireError(
                    f"it is of cluster {shown(hello.cluster_id)!r}, not {own.cluster_id!r}"
                )
            self.said = Introduction(
                hello.cluster_id,
                hello.node_id,
                hello.incarnation,
                hello.connection,
                own.node_id,
                hello.nonce,
                nonce,
                self._channel,
            )
            proof = listener_proof(self._peers.key, self.said)
            answer = PeerHelloResponse(node_id=own.node_id, nonce=nonce, proof=proof)
            self._send(answer, VERSION, correlation_id)
        elif self.said is not None and (key, version) == (PeerProofRequest.api_key, 0):
            proof = decode_request(frame, PeerProofRequest, 0).proof
            if not is_proven(proof, dialler_proof(self._peers.key, self.said)):
                raise WireError("it has not proven that it is of this cluster")
            self._admit(self.said, correlation_id)
        else:
            raise WireError(f"API key {key} version {version} before any proof")

    def _admit(self, said: Introduction, correlation_id: int) -> None:
        if not self._peers.admit(self, said):
            refusal = PeerProofResponse(error_code=ErrorCode.INVALID_PRODUCER_EPOCH)
            self._send(refusal, 0, correlation_id)
            self.abort()
            return
        self._is_admitted = True
        self._splitter.bytes_max = FRAME_BYTES_MAX
        if self._late is not None:
            self._late.cancel()
        self._send(PeerProofResponse(), 0, correlation_id)

    def _send(self, response: Message, version: int, correlation_id: int) -> None:
        if not self._is_ended and self._transport is not None:
            self._transport.write(encode_response(response, version, correlation_id))
