"""What strangers and peers say to a node's listener for peers: frames in any order, and no frames.

Who has not proven to know the secret of the cluster gets nothing done. No bytes raise: the
connection ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any

from magnetar.peers.dialling import Own
from magnetar.peers.frames import FrameSplitter, UnexpectedTls, encode_request
from magnetar.peers.listening import ListeningPeers
from magnetar.peers.proofs import Introduction, dialler_proof, is_proven, listener_proof
from magnetar.peers.tables import PeerApi
from magnetar.runtime.peer_messages import (
    CatalogChangedRequest,
    CatalogChangedResponse,
    PeerHelloRequest,
    PeerHelloResponse,
    PeerProofRequest,
)
from tools.fuzz.mutations import mutated
from tools.fuzz.target import Target, judge
from wire.message import Message
from wire.messages.header import ResponseHeader

_KEY = b"k" * 32
_OWN = Own("cluster", 2, 0)
_NONCE = b"n" * 32
_HELLO = PeerHelloRequest(cluster_id="cluster", node_id=1, connection=1, nonce=_NONCE)
_SAID = (
    encode_request(_HELLO, 0, 1),
    encode_request(PeerProofRequest(proof=b"p" * 32), 0, 2),
    encode_request(CatalogChangedRequest(version=7), 0, 3),
)
#: A step that the harness performs itself, since it needs what the listener has said: the proof.
_PROVE = b"\xff"
_STEPS_MAX = 8


def _generate(random: Random) -> bytes:
    steps = []
    if random.random() < 0.7:
        steps.append(_SAID[0])
    for _ in range(random.randint(1, _STEPS_MAX)):
        chosen = random.choice((*_SAID, _PROVE))
        if chosen is not _PROVE and random.random() < 0.5:
            chosen = mutated(random, chosen, _SAID)
        steps.append(chosen)
    return b"".join(len(step).to_bytes(4) + step for step in steps)


def _steps(given: bytes) -> list[bytes]:
    steps = []
    while len(given) >= 4:
        end = 4 + int.from_bytes(given[:4])
        steps.append(given[4:end])
        given = given[end:]
    return steps


class _Wire(asyncio.Transport):
    """Keeps what the listener says."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[bytes] = []
        self.is_aborted = False

    def write(self, data: Any) -> None:
        self.said.append(bytes(data))

    def abort(self) -> None:
        self.is_aborted = True

    def close(self) -> None:
        self.is_aborted = True


class _Stranger:
    """One connection to a listener."""

    def __init__(self) -> None:
        self.has_proven = False
        self.failures: list[BaseException] = []
        apis = {CatalogChangedRequest.api_key: PeerApi(CatalogChangedRequest, 0, self._perform)}
        listening = ListeningPeers(_OWN, _KEY, apis, self.failures.append)
        self.wire = _Wire()
        self.listened = listening.accept()
        self.listened.connection_made(self.wire)

    def _perform(self, request: CatalogChangedRequest) -> Callable[[], Awaitable[Message]]:
        judge(self.has_proven, "who has proven nothing gets nothing done")

        async def answer() -> Message:
            return CatalogChangedResponse()

        return answer

    def prove(self) -> None:
        """Send the proof for what the listener has said, if it has."""
        hello = self._hello()
        if hello is None:
            return
        said = Introduction("cluster", 1, 0, 1, _OWN.node_id, _NONCE, hello.nonce)
        # Of a changed hello another proof would be good.
        if is_proven(hello.proof, listener_proof(_KEY, said)):
            self.has_proven = True
        proof = PeerProofRequest(proof=dialler_proof(_KEY, said))
        self.listened.data_received(encode_request(proof, 0, 9))

    def _hello(self) -> PeerHelloResponse | None:
        # A stranger that speaks TLS is answered in TLS, which has no frames.
        with suppress(UnexpectedTls):
            for frame in FrameSplitter().feed(b"".join(self.wire.said)):
                _, start = ResponseHeader.decode_from(frame, 0)
                return PeerHelloResponse.decode(frame[start:], 0)
        return None


def _run(given: bytes) -> None:
    async def talk() -> None:
        stranger = _Stranger()
        for step in _steps(given):
            if step == _PROVE:
                stranger.prove()
            else:
                stranger.listened.data_received(step)
            await asyncio.sleep(0)
        stranger.listened.abort()
        stranger.listened.connection_lost(None)
        await asyncio.sleep(0)
        judge(not stranger.failures, f"no bytes end a node: {stranger.failures}")

    asyncio.run(talk())


TARGET = Target("peers", _generate, _run)
