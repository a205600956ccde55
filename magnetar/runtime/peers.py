"""The port to other nodes, and the way in which many questions share one call.

What stands behind it is `magnetar.peers`. Calls may be lost, repeated and late; what is asked of a
peer must bear that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
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

    async def call(self, node_id: int, request: Message, version: int) -> Message:
        """Return a peer's response. Raises PeerUnreachable: the outcome is unknown."""
        ...

    async def tell_catalog_changed(self, version: int) -> Sequence[int]:
        """Return once all peers obey the catalog's changes up to `version`, or a second is over.

        The result are the nodes that did not answer.
        """
        ...


class SharedCalls(Generic[ItemT, AnswerT]):
    """One kind of question to peers: to each peer one call at a time, the rest rides the next."""

    def __init__(
        self, perform: Callable[[int, Sequence[ItemT]], Awaitable[Sequence[AnswerT]]]
    ) -> None:
        """`perform(node_id, items)` asks a peer and returns an answer for each item, in order.

        It raises PeerUnreachable, which all of them get.
        """
        self._perform = perform
        self._waiting: dict[int, list[tuple[ItemT, asyncio.Future[AnswerT]]]] = {}
        #: By node: the call under way. The event loop holds tasks weakly.
        self._calling: dict[int, asyncio.Task[None]] = {}
        self.call_count = 0  #: Calls made, for measurements.

    async def ask(self, node_id: int, item: ItemT) -> AnswerT:
        """Return a peer's answer. Raises PeerUnreachable."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[AnswerT] = loop.create_future()
        self._waiting.setdefault(node_id, []).append((item, answer))
        if node_id not in self._calling:
            self._calling[node_id] = loop.create_task(self._call(node_id))
        return await answer

    def cancel(self) -> None:
        """Give up every call under way."""
        for task in self._calling.values():
            task.cancel()

    async def _call(self, node_id: int) -> None:
        """Ask until no question is left."""
        try:
            while waiting := self._waiting.pop(node_id, None):
                if more := waiting[ITEMS_PER_CALL_MAX:]:
                    self._waiting[node_id] = more
                await self._ask_together(node_id, waiting[:ITEMS_PER_CALL_MAX])
        finally:
            del self._calling[node_id]

    async def _ask_together(
        self, node_id: int, asked: Sequence[tuple[ItemT, asyncio.Future[AnswerT]]]
    ) -> None:
        self.call_count += 1
        try:
            answers = await self._perform(node_id, [item for item, _ in asked])
        except PeerUnreachable as unreachable:
            for _, future in asked:
                if not future.done():
                    future.set_exception(PeerUnreachable(node_id, unreachable.reason))
            return
        except BaseException as failure:
            # A bug, or the end of the loop: who waits must hear of it.
            for _, future in asked:
                if not future.done():
                    future.set_exception(failure)
            raise
        for (_, future), answer in zip(asked, answers, strict=True):
            if not future.done():
                future.set_result(answer)
