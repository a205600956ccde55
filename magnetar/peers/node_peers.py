"""All peers of a node: it listens to them, and dials each when it first has a question."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from magnetar.logging import get_logger
from magnetar.peers.addresses import PeerNetwork, Refused
from magnetar.peers.dialling import DialledPeer, Own
from magnetar.peers.listening import ListeningPeers
from magnetar.peers.proofs import key_of
from magnetar.peers.tables import PeerApis
from magnetar.runtime.peer_messages import CatalogChangedRequest, CatalogChangedResponse
from magnetar.runtime.peers import Answer, PeerUnreachable, fail
from wire.error_code import ErrorCode
from wire.message import Message

#: How long a peer may take to answer. A peer that takes longer is treated as one that is gone; it
#: is dialled again for the next call.
CALL_TIMEOUT_S = 5.0
#: How long a change of the catalog waits for the nodes to apply it.
CATALOG_TIMEOUT_S = 1.0
#: The pause before a peer that has refused a connection is dialled again. It refuses again until a
#: setting or a certificate has changed.
REFUSED_PAUSE_S = 1.0

_log = get_logger("peers")


class NodePeers:
    """The other nodes of the cluster, as one of them sees them."""

    def __init__(
        self,
        own: Own,
        cluster_secret: bytes,
        network: PeerNetwork,
        others: Callable[[], Sequence[int]],
        call_timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        """`others` returns the ids of the other nodes."""
        self._own = own
        self._key = key_of(cluster_secret)
        self._network = network
        self._others = others
        self._call_timeout_s = call_timeout_s
        self._listening: ListeningPeers | None = None
        #: By node: the connection that is good, or is being dialled.
        self._dialled: dict[int, DialledPeer] = {}
        self._dialling: dict[int, asyncio.Task[DialledPeer]] = {}
        #: By node: why it has refused the last connection, and until when it is not dialled again.
        self._refused: dict[int, tuple[str, float]] = {}
        #: How many connections were ever dialled.
        self._count = 0
        self._is_closed = False

    async def listen(self, apis: PeerApis, fail: Callable[[BaseException], None]) -> None:
        """Serve `apis` to peers from here on. Raises OSError.

        `fail` ends this node after an error that it must not go on from.
        """
        self._listening = ListeningPeers(self._own, self._key, apis, fail)
        await self._network.listen(self._listening.accept)

    def close(self) -> None:
        """End every connection; calls under way raise PeerUnreachable."""
        self._is_closed = True
        self._network.close()
        if self._listening is not None:
            self._listening.close()
        for task in self._dialling.values():
            task.cancel()
        for dialled in tuple(self._dialled.values()):
            dialled.abort()

    def give_up(self, node_id: int) -> None:
        """End the connection to a peer whose lease has ended, or the dialling of one.

        It may hang. Its calls raise PeerUnreachable now, not when their time is over.
        """
        if (dialling := self._dialling.get(node_id)) is not None:
            dialling.cancel()
        if (dialled := self._dialled.get(node_id)) is not None:
            dialled.abort("its lease has ended")

    def call(self, node_id: int, request: Message, version: int) -> asyncio.Future[Message]:
        """Ask a peer; the result is its response, or PeerUnreachable: it may have done what was
        asked."""
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.send(node_id, request, version, answer)
        return answer

    def send(self, node_id: int, request: Message, version: int, answer: Answer[Message]) -> None:
        """Ask a peer. `answer` takes its response in the step in which it arrives, or, in a step of
        its own, PeerUnreachable: it may have done what was asked."""
        dialled = self._dialled.get(node_id)
        # It may have ended between its last proof and the step that kept it.
        if dialled is not None and dialled.is_open:
            dialled.send(request, version, answer)
            return
        try:
            dialling = self._dial(node_id)
        except PeerUnreachable as failure:
            asyncio.get_running_loop().call_soon(fail, answer, failure)
            return
        # All that ask meanwhile share the connection.
        dialling.add_done_callback(partial(_send_on, node_id, request, version, answer))

    def tell(self, node_id: int, request: Message, version: int) -> None:
        """Tell a peer what it need not know, where there is a connection. It may be lost.

        What arrives takes effect in order with what `call` has sent.
        """
        dialled = self._dialled.get(node_id)
        if dialled is not None:
            dialled.tell(request, version)

    async def tell_catalog_changed(self, version: int) -> Sequence[int]:
        """Return when all peers have applied a version of the catalog, or after the bound.

        Returns the ids of those that have not answered. Each finds the change at its next one, or
        when it starts.
        """
        request = CatalogChangedRequest(version=version)
        others = self._others()
        told = await asyncio.gather(*(self._told(node_id, request) for node_id in others))
        return [node_id for node_id, is_applied in zip(others, told, strict=True) if not is_applied]

    async def _told(self, node_id: int, request: CatalogChangedRequest) -> bool:
        try:
            async with asyncio.timeout(CATALOG_TIMEOUT_S):
                answer = await self.call(node_id, request, 0)
        except (PeerUnreachable, TimeoutError):
            return False
        assert isinstance(answer, CatalogChangedResponse)
        return answer.error_code == ErrorCode.NONE

    def _dial(self, node_id: int) -> asyncio.Task[DialledPeer]:
        """Return the dialling of a connection that will be proven. Raises PeerUnreachable."""
        if self._is_closed:
            raise PeerUnreachable(node_id, "this node stops")
        task = self._dialling.get(node_id)
        if task is None:
            loop = asyncio.get_running_loop()
            reason, until_s = self._refused.get(node_id, ("", 0.0))
            if reason and loop.time() < until_s:
                raise PeerUnreachable(node_id, reason)
            task = loop.create_task(self._dial_once(node_id))
            self._dialling[node_id] = task
            task.add_done_callback(partial(self._on_dialled, node_id))
        return task

    async def _dial_once(self, node_id: int) -> DialledPeer:
        self._count += 1
        timeout_s = self._call_timeout_s
        dialled = DialledPeer(self._own, node_id, self._count, self._key, self._lost, timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                await self._network.dial(node_id, dialled)
                await dialled.begin()
        except (OSError, TimeoutError) as error:
            dialled.abort()
            if isinstance(error, Refused):
                self._on_refused(node_id, str(error))
            error.__traceback__ = None  # It leads to the deadline, and so to this task.
            raise PeerUnreachable(node_id, str(error) or "it did not answer in time") from None
        except PeerUnreachable:
            if dialled.refusal:
                self._on_refused(node_id, dialled.refusal)
            raise
        except asyncio.CancelledError:
            # This node stops, or the peer is given up. The connection has no other owner yet.
            dialled.abort()
            raise
        self._dialled[node_id] = dialled
        if self._refused.pop(node_id, None) is not None:
            _log.info("node lets this one in again", node_id=node_id)
        return dialled

    def _on_refused(self, node_id: int, reason: str) -> None:
        """Say so once, and dial no more for a moment."""
        before, _ = self._refused.get(node_id, ("", 0.0))
        if reason != before:
            _log.warning("node cannot be reached", node_id=node_id, reason=reason)
        until_s = asyncio.get_running_loop().time() + REFUSED_PAUSE_S
        self._refused[node_id] = (reason, until_s)

    def _on_dialled(self, node_id: int, task: asyncio.Task[DialledPeer]) -> None:
        del self._dialling[node_id]
        if not task.cancelled():
            task.exception()  # The callers have it, unless all of them have given up.

    def _lost(self, dialled: DialledPeer) -> None:
        if self._dialled.get(dialled.node_id) is dialled:
            del self._dialled[dialled.node_id]


def _send_on(
    node_id: int,
    request: Message,
    version: int,
    answer: Answer[Message],
    dialling: asyncio.Task[DialledPeer],
) -> None:
    """Send a request on a connection that was dialled for it, or tell why there is none."""
    if dialling.cancelled():
        fail(answer, PeerUnreachable(node_id, "it was given up before it answered"))
    elif (failure := dialling.exception()) is not None:
        fail(answer, failure)
    elif not answer.done():
        dialling.result().send(request, version, answer)
