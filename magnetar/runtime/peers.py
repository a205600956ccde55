"""The port to other nodes, and the way in which many questions share one call.

What stands behind it is `magnetar.peers`. Calls may be lost, repeated and late; what is asked of a
peer must bear that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from wire.message import Message

ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")

#: How many questions ride one call: a frame between nodes stays small, and a peer's turn short.
ITEMS_PER_CALL_MAX = 256


class PeerUnreachable(Exception):
    """A peer has not answered. It may have done what it was asked, or may still do it."""

    def __init__(self, node_id: int, reason: str) -> None:
        super().__init__(f"node {node_id} does not answer: {reason}")
        self.node_id = node_id
        self.reason = reason


class Peers(Protocol):
    """The other nodes of the cluster."""

    def call(self, node_id: int, request: Message, version: int) -> Awaitable[Message]:
        """Ask a peer; the result is its response, or PeerUnreachable: the outcome is unknown."""
        ...

    async def tell_catalog_changed(self, version: int) -> Sequence[int]:
        """Return once all peers obey the catalog's changes up to `version`, or a second is over.

        The result are the nodes that did not answer.
        """
        ...


class SharedCalls(Generic[ItemT, AnswerT]):
    """One kind of question to peers: to each peer one call at a time, the rest rides the next."""

    def __init__(
        self,
        peers: Peers,
        version: int,
        encode: Callable[[Sequence[ItemT]], Message],
        decode: Callable[[Message], Sequence[AnswerT]],
    ) -> None:
        """`encode` makes a request of items; `decode` returns an answer for each, in order."""
        self._peers = peers
        self._version = version
        self._encode = encode
        self._decode = decode
        #: By node: what rides the next call.
        self._waiting: dict[int, list[tuple[ItemT, asyncio.Future[AnswerT]]]] = {}
        #: By node: the call under way.
        self._calls: dict[int, asyncio.Future[Message]] = {}
        self.call_count = 0  #: Calls made, for measurements.

    def ask(self, node_id: int, item: ItemT) -> asyncio.Future[AnswerT]:
        """Ask a peer; the result is its answer, or PeerUnreachable."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[AnswerT] = loop.create_future()
        waiting = self._waiting.get(node_id)
        if waiting is not None:
            waiting.append((item, answer))
        else:
            self._waiting[node_id] = [(item, answer)]
            if node_id not in self._calls:
                # At the end of the step, which may ask more.
                loop.call_soon(self._call, node_id)
        return answer

    def cancel(self) -> None:
        """Give up every call under way, and what waits for it."""
        for call in self._calls.values():
            call.cancel()

    def _call(self, node_id: int) -> None:
        # A client that has gone waits for no answer. While a peer is silent there may be many.
        asked = [each for each in self._waiting.pop(node_id) if not each[1].done()]
        if not asked:
            return
        if len(asked) > ITEMS_PER_CALL_MAX:
            self._waiting[node_id] = asked[ITEMS_PER_CALL_MAX:]
            del asked[ITEMS_PER_CALL_MAX:]
        self.call_count += 1
        request = self._encode([item for item, _ in asked])
        call = asyncio.ensure_future(self._peers.call(node_id, request, self._version))
        self._calls[node_id] = call
        call.add_done_callback(partial(self._answered, node_id, asked))

    def _answered(
        self,
        node_id: int,
        asked: Sequence[tuple[ItemT, asyncio.Future[AnswerT]]],
        call: asyncio.Future[Message],
    ) -> None:
        del self._calls[node_id]
        if call.cancelled():
            for _, answer in (*asked, *self._waiting.pop(node_id, ())):
                answer.cancel()
            return
        if node_id in self._waiting:
            self._call(node_id)
        if (failure := call.exception()) is not None:
            for _, answer in asked:
                if not answer.done():
                    answer.set_exception(_copied(failure))
            return
        for (_, answer), found in zip(asked, self._decode(call.result()), strict=True):
            if not answer.done():
                answer.set_result(found)


def _copied(failure: BaseException) -> BaseException:
    """Return the failure of a call for one of those who wait for it."""
    if isinstance(failure, PeerUnreachable):
        return PeerUnreachable(failure.node_id, failure.reason)
    return failure
