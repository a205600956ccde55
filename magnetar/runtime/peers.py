"""The port to other nodes, and the way in which many questions share one call.

`magnetar.peers` implements the port. A call may be lost, repeated or late, so a request to a peer
must be safe to repeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from wire.message import Message

ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")
AnswerT_contra = TypeVar("AnswerT_contra", contravariant=True)

#: How many questions share one call. A frame between nodes stays small, and a peer's turn short.
ITEMS_PER_CALL_MAX = 256


class PeerUnreachable(Exception):
    """A peer has not answered. It may have done what it was asked, or may still do it."""

    def __init__(self, node_id: int, reason: str) -> None:
        super().__init__(f"node {node_id} does not answer: {reason}")
        self.node_id = node_id
        self.reason = reason


class Answer(Protocol[AnswerT_contra]):
    """What waits for an answer: a future, or an object that goes on in the step of the answer."""

    def done(self) -> bool:
        """Return whether nothing waits for the answer any more."""
        ...

    def set_result(self, result: AnswerT_contra, /) -> None:
        """Take the answer."""
        ...

    def set_exception(self, failure: BaseException, /) -> None:
        """Take the failure in place of the answer."""
        ...

    def cancel(self) -> object:
        """Note that this node stops: no answer comes."""
        ...


class Peers(Protocol):
    """The other nodes of the cluster."""

    def call(self, node_id: int, request: Message, version: int) -> asyncio.Future[Message]:
        """Ask a peer; the result is its response, or PeerUnreachable: the outcome is unknown."""
        ...

    def send(self, node_id: int, request: Message, version: int, answer: Answer[Message]) -> None:
        """Ask a peer. `answer` takes its response in the step in which it arrives, or, in a step of
        its own, PeerUnreachable: the outcome is unknown."""
        ...

    def give_up(self, node_id: int) -> None:
        """Wait no longer for a peer whose lease has ended: its calls raise PeerUnreachable."""
        ...

    async def tell_catalog_changed(self, version: int) -> Sequence[int]:
        """Return when all peers have the catalog's changes up to `version`, or after a second.

        The result is the nodes that did not answer.
        """
        ...


class SharedCalls(Generic[ItemT, AnswerT]):
    """One kind of question to peers. Each peer has one call at a time, with many questions."""

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
        self.decode = decode
        #: By node: the questions of the next call.
        self._waiting: dict[int, list[tuple[ItemT, Answer[AnswerT]]]] = {}
        #: By node: the call under way.
        self._calls: dict[int, _Call[ItemT, AnswerT]] = {}
        self.call_count = 0  #: Calls made, for measurements.

    def ask(self, node_id: int, item: ItemT) -> asyncio.Future[AnswerT]:
        """Ask a peer; the result is its answer, or PeerUnreachable."""
        answer: asyncio.Future[AnswerT] = asyncio.get_running_loop().create_future()
        self.send(node_id, item, answer)
        return answer

    def send(self, node_id: int, item: ItemT, answer: Answer[AnswerT]) -> None:
        """Ask a peer. `answer` takes its answer in the step in which it arrives, or, in a step of
        its own, PeerUnreachable."""
        waiting = self._waiting.get(node_id)
        if waiting is not None:
            waiting.append((item, answer))
            return
        self._waiting[node_id] = [(item, answer)]
        if node_id not in self._calls:
            # At the end of the step, which may have more questions.
            asyncio.get_running_loop().call_soon(self._call, node_id)

    def cancel(self) -> None:
        """Give up every call under way, and what waits for it."""
        for call in self._calls.values():
            call.cancel()
        for waiting in self._waiting.values():
            for _, answer in waiting:
                answer.cancel()
        self._calls.clear()
        self._waiting.clear()

    def _call(self, node_id: int) -> None:
        # A client that has gone waits for no answer. While a peer is silent there may be many.
        asked = [each for each in self._waiting.pop(node_id, ()) if not each[1].done()]
        if not asked:
            return
        if len(asked) > ITEMS_PER_CALL_MAX:
            self._waiting[node_id] = asked[ITEMS_PER_CALL_MAX:]
            del asked[ITEMS_PER_CALL_MAX:]
        self.call_count += 1
        request = self._encode([item for item, _ in asked])
        call = self._calls[node_id] = _Call(self, node_id, asked)
        self._peers.send(node_id, request, self._version, call)

    def answered(self, node_id: int) -> None:
        """Begin the next call to a peer, whose last one has ended."""
        del self._calls[node_id]
        if node_id in self._waiting:
            self._call(node_id)

    def failed(
        self,
        node_id: int,
        asked: Sequence[tuple[ItemT, Answer[AnswerT]]],
        failure: BaseException,
    ) -> None:
        """End a call to a peer, which has not answered.

        What waits for the next call fails too: the peer may hang as long again, and another node
        may lead by now.
        """
        del self._calls[node_id]
        self._fail([*asked, *self._waiting.pop(node_id, ())], failure)

    def _fail(self, asked: Sequence[tuple[ItemT, Answer[AnswerT]]], failure: BaseException) -> None:
        """Give the questions their failure, in each turn as many as a call has."""
        for _, answer in asked[:ITEMS_PER_CALL_MAX]:
            fail(answer, _copied(failure))
        if len(asked) > ITEMS_PER_CALL_MAX:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._fail, asked[ITEMS_PER_CALL_MAX:], failure)


class _Call(Generic[ItemT, AnswerT]):
    """One call of `SharedCalls`. It takes the response, and gives each question its answer."""

    __slots__ = ("_asked", "_calls", "_is_over", "_node_id")

    def __init__(
        self,
        calls: SharedCalls[ItemT, AnswerT],
        node_id: int,
        asked: Sequence[tuple[ItemT, Answer[AnswerT]]],
    ) -> None:
        self._calls = calls
        self._node_id = node_id
        self._asked = asked
        self._is_over = False

    def done(self) -> bool:
        return self._is_over

    def set_result(self, response: Message, /) -> None:
        self._is_over = True
        found = self._calls.decode(response)
        self._calls.answered(self._node_id)
        for (_, answer), one in zip(self._asked, found, strict=True):
            if not answer.done():
                answer.set_result(one)

    def set_exception(self, failure: BaseException, /) -> None:
        self._is_over = True
        self._calls.failed(self._node_id, self._asked, failure)

    def cancel(self) -> None:
        self._is_over = True
        for _, answer in self._asked:
            answer.cancel()


def fail(answer: Answer[Any], failure: BaseException) -> None:
    """Let `answer` take a failure, if something still waits for it."""
    if not answer.done():
        answer.set_exception(failure)


def _copied(failure: BaseException) -> BaseException:
    """Return a copy of a call's failure: each question raises its own exception."""
    if isinstance(failure, PeerUnreachable):
        return PeerUnreachable(failure.node_id, failure.reason)
    return failure
