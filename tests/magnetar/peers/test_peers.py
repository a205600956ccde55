"""Nodes among each other: who is let in, what a call may rely on, and whom a stranger meets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from magnetar.peers.dialling import DialledPeer, Own
from magnetar.peers.node_peers import NodePeers
from magnetar.runtime.peer_messages import (
    CatalogChangedRequest,
    CatalogChangedResponse,
    PeerHelloRequest,
    PeerHelloResponse,
    PeerProofRequest,
)
from magnetar.runtime.peer_requests import PeerRequests
from magnetar.runtime.peers import PeerUnreachable
from tests.magnetar.peer_cluster import SECRET, Cluster, changed, node_tls
from wire.error_code import ErrorCode
from wire.message import Message


@pytest.fixture(params=["sockets", "tcp", "tls"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    # Longer than an address of a socket may be.
    data_dir = tmp_path / ("d" * 120)
    data_dir.mkdir()
    tls = node_tls() if request.param == "tls" else None
    cluster = Cluster(data_dir, over_tcp=request.param != "sockets", tls=tls)
    yield cluster
    cluster.close()
    await asyncio.sleep(0)
    assert not cluster.failures


async def test_a_node_asks_another_and_gets_its_answer(cluster: Cluster) -> None:
    one, _ = await cluster.start(1), await cluster.start(2)
    for version in range(3):
        assert await one.call(2, changed(version), 0) == CatalogChangedResponse()
    assert cluster.told == {2: [0, 1, 2]}


async def test_both_directions_are_connections_of_their_own(cluster: Cluster) -> None:
    one, two = await cluster.start(1), await cluster.start(2)
    await asyncio.gather(one.call(2, changed(1), 0), two.call(1, changed(2), 0))
    assert cluster.told == {2: [1], 1: [2]}


async def test_a_node_of_another_secret_is_not_believed_and_not_served(cluster: Cluster) -> None:
    await cluster.start(2)
    stranger = await cluster.start(1, secret=b"x" * 32)
    with pytest.raises(PeerUnreachable, match="has not proven"):
        await stranger.call(2, changed(1), 0)
    assert not cluster.told


async def test_who_sends_a_request_instead_of_a_proof_is_cut_off(cluster: Cluster) -> None:
    await cluster.start(2)
    stranger = DialledPeer(Own("cluster", 1, 0), 2, 1, b"k" * 32, lambda _: None, 1)
    await cluster.network(1).dial(2, stranger)
    with pytest.raises(PeerUnreachable):
        await stranger.call(changed(1), 0)
    assert not cluster.told


@pytest.mark.parametrize("cluster_id", ["other", ""])
async def test_a_node_of_another_cluster_is_cut_off(cluster: Cluster, cluster_id: str) -> None:
    await cluster.start(2)
    stranger = DialledPeer(Own(cluster_id, 1, 0), 2, 1, b"k" * 32, lambda _: None, 1)
    await cluster.network(1).dial(2, stranger)
    with pytest.raises(PeerUnreachable):
        await stranger.begin()


async def test_a_proof_that_is_wrong_ends_the_connection(cluster: Cluster) -> None:
    await cluster.start(2)
    stranger = DialledPeer(Own("cluster", 1, 0), 2, 1, b"k" * 32, lambda _: None, 1)
    await cluster.network(1).dial(2, stranger)
    hello = PeerHelloRequest(cluster_id="cluster", node_id=1, nonce=b"n" * 32)
    await stranger.call(hello, 0)
    with pytest.raises(PeerUnreachable):
        await stranger.call(PeerProofRequest(proof=b"p" * 32), 0)


async def test_a_node_that_does_not_run_is_unreachable_at_once(cluster: Cluster) -> None:
    one = await cluster.start(1)
    with pytest.raises(PeerUnreachable, match="node 2 does not answer"):
        await one.call(2, changed(1), 0)
    cluster.network(2)  # Its directory is there, as after a kill.
    with pytest.raises(PeerUnreachable):
        await one.call(2, changed(1), 0)


async def test_a_node_that_has_started_again_is_asked_on_a_new_connection(cluster: Cluster) -> None:
    one, two = await cluster.start(1), await cluster.start(2)
    await one.call(2, changed(1), 0)
    two.close()
    await asyncio.sleep(0)
    with pytest.raises(PeerUnreachable):
        await one.call(2, changed(2), 0)
    await cluster.start(2, incarnation=1)
    await one.call(2, changed(3), 0)
    assert cluster.told == {2: [1, 3]}


async def test_a_connection_that_ends_in_the_step_of_its_last_proof_is_dialled_again(
    cluster: Cluster,
) -> None:
    one, _ = await cluster.start(1), await cluster.start(2)
    await one.call(2, changed(1), 0)
    ended = one._dialled[2]
    ended.abort()
    one._dialled[2] = ended
    await one.call(2, changed(2), 0)
    assert cluster.told == {2: [1, 2]}


async def test_what_is_told_has_no_answer_and_arrives_in_order_with_calls(
    cluster: Cluster,
) -> None:
    arrived: list[int] = []

    async def answered() -> Message:
        return CatalogChangedResponse()

    def perform(request: CatalogChangedRequest) -> Callable[[], Awaitable[Message]] | None:
        arrived.append(request.version)
        return answered if request.version % 2 == 0 else None

    one = await cluster.start(1)
    await cluster.start(2, perform=perform)
    one.tell(2, changed(1), 0)
    for version in (2, 4):
        await one.call(2, changed(version), 0)
        one.tell(2, changed(version + 1), 0)
    await one.call(2, changed(6), 0)
    assert arrived == [2, 3, 4, 5, 6], "before the first call there is no connection"


async def test_a_node_that_reads_nothing_is_told_no_more(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await cluster.start(1)
    await cluster.start(2)
    await one.call(2, changed(0), 0)
    monkeypatch.setattr("magnetar.peers.dialling._UNREAD_BYTES_MAX", -1)
    one.tell(2, changed(1), 0)
    await one.call(2, changed(2), 0)
    assert cluster.told == {2: [0, 2]}


async def test_a_call_without_an_answer_gives_its_connection_up(cluster: Cluster) -> None:
    heard = asyncio.Event()

    async def never() -> Message:
        heard.set()
        await asyncio.Event().wait()
        return CatalogChangedResponse()

    # The connection takes some of it, with TLS on a busy machine a tenth of a second.
    one = await cluster.start(1, call_timeout_s=1)
    await cluster.start(2, perform=lambda _: never)
    with pytest.raises(PeerUnreachable, match="no answer within"):
        await one.call(2, changed(1), 0)
    assert heard.is_set()


async def test_a_peer_that_is_given_up_fails_its_call_at_once(cluster: Cluster) -> None:
    heard = asyncio.Event()

    async def never() -> Message:
        heard.set()
        await asyncio.Event().wait()
        return CatalogChangedResponse()

    one = await cluster.start(1, call_timeout_s=600)
    await cluster.start(2, perform=lambda _: never)
    call = one.call(2, changed(1), 0)
    await heard.wait()
    one.give_up(2)
    with pytest.raises(PeerUnreachable, match="its lease has ended"):
        await call


async def test_an_earlier_connection_is_not_read_once_a_later_one_is_admitted(
    cluster: Cluster,
) -> None:
    await cluster.start(2)
    key_holder = await cluster.start(1)
    await key_holder.call(2, changed(1), 0)
    early = key_holder._dialled[2]
    # The node loses patience, and asks again on a new connection.
    del key_holder._dialled[2]
    await key_holder.call(2, changed(2), 0)
    with pytest.raises(PeerUnreachable):
        await early.call(changed(3), 0)
    assert cluster.told == {2: [1, 2]}


async def test_a_connection_of_an_earlier_start_is_not_admitted_after_one_of_a_later(
    cluster: Cluster,
) -> None:
    await cluster.start(2)
    late = await cluster.start(1, incarnation=3)
    await late.call(2, changed(1), 0)
    zombie = NodePeers(Own("cluster", 1, 2), SECRET, cluster.network(1), lambda: ())
    with pytest.raises(PeerUnreachable, match="has not proven"):
        await zombie.call(2, changed(2), 0)
    await late.call(2, changed(3), 0)
    assert cluster.told == {2: [1, 3]}


async def test_a_node_that_stops_does_not_begin_what_was_asked_in_that_step(
    cluster: Cluster,
) -> None:
    nothing, seen = cast(Any, None), []

    async def see_changes() -> int:
        seen.append(1)
        return 1

    requests = PeerRequests(nothing, nothing, nothing, nothing, see_changes, None)

    def perform(request: CatalogChangedRequest) -> Callable[[], Awaitable[Message]]:
        asyncio.get_running_loop().call_soon(two.close)
        return requests.catalog_changed(request)

    one, two = await cluster.start(1), await cluster.start(2, perform=perform)
    with pytest.raises(PeerUnreachable):
        await one.call(2, changed(1), 0)
    assert not seen


async def test_a_failing_request_ends_its_connection_and_not_the_node(cluster: Cluster) -> None:
    async def failing() -> Message:
        raise ValueError("a bug")

    one, _ = await cluster.start(1), await cluster.start(2, perform=lambda _: failing)
    with pytest.raises(PeerUnreachable):
        await one.call(2, changed(1), 0)


async def test_an_answer_that_cannot_be_read_is_none_and_gives_its_connection_up(
    cluster: Cluster,
) -> None:
    async def other() -> Message:
        return PeerHelloResponse(node_id=2)

    one, _ = await cluster.start(1), await cluster.start(2, perform=lambda _: other)
    async with asyncio.timeout(5):
        with pytest.raises(PeerUnreachable, match="is not of a node"):
            await one.call(2, changed(1), 0)


async def test_a_failing_disk_of_a_peer_ends_the_peer(cluster: Cluster) -> None:
    failed = asyncio.Event()

    async def failing() -> Message:
        failed.set()
        raise OSError("no space left")

    one = await cluster.start(1)
    await cluster.start(2, perform=lambda _: failing)
    asked = asyncio.ensure_future(one.call(2, changed(1), 0))
    await failed.wait()
    one.close()
    with pytest.raises(PeerUnreachable):
        await asked
    assert [str(failure) for failure in cluster.failures] == ["no space left"]
    cluster.failures.clear()


async def test_an_error_of_what_goes_on_with_an_answer_is_not_the_connections(
    cluster: Cluster,
) -> None:
    errors: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(str(context["exception"])))

    class Failing(asyncio.Future[Message]):
        def set_result(self, result: Message, /) -> None:
            raise AssertionError("it cannot go on")

    one, _ = await cluster.start(1), await cluster.start(2)
    one.send(2, changed(1), 0, Failing())
    while not errors:
        await asyncio.sleep(0)
    assert errors == ["it cannot go on"]
    assert await one.call(2, changed(2), 0) == CatalogChangedResponse()
    assert cluster.told == {2: [1, 2]}


async def test_nodes_that_have_not_applied_a_change_are_named(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.start(2)
    own = Own("cluster", 1, 0)
    one = NodePeers(own, SECRET, cluster.network(1), lambda: (2, 3))
    assert await one.tell_catalog_changed(7) == [3]
    assert cluster.told == {2: [7]}
    one.close()


async def test_a_node_that_could_not_read_the_catalog_has_not_applied_a_change(
    cluster: Cluster,
) -> None:
    async def away() -> Message:
        return CatalogChangedResponse(error_code=ErrorCode.REQUEST_TIMED_OUT)

    await cluster.start(2, perform=lambda _: away)
    one = NodePeers(Own("cluster", 1, 0), SECRET, cluster.network(1), lambda: (2,))
    assert await one.tell_catalog_changed(7) == [2]
    one.close()
