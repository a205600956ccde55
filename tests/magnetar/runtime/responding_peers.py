"""Peers that answer by a coroutine: the port to other nodes, as tests stand in for it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial

from magnetar.runtime.peers import Answer
from wire.message import Message


class RespondingPeers(ABC):
    """The other nodes of a cluster, all in one."""

    @abstractmethod
    async def respond(self, node_id: int, request: Message, version: int) -> Message:
        """Return the response of a node to a request, or raise PeerUnreachable."""

    def call(self, node_id: int, request: Message, version: int) -> asyncio.Future[Message]:
        return asyncio.ensure_future(self.respond(node_id, request, version))

    def send(self, node_id: int, request: Message, version: int, answer: Answer[Message]) -> None:
        self.call(node_id, request, version).add_done_callback(partial(_give, answer))

    def give_up(self, node_id: int) -> None:
        raise AssertionError("no lease ends")

    async def tell_catalog_changed(self, version: int) -> Sequence[int]:
        return ()


def _give(answer: Answer[Message], call: asyncio.Future[Message]) -> None:
    if answer.done():
        return
    if (failure := call.exception()) is not None:
        answer.set_exception(failure)
    else:
        answer.set_result(call.result())
