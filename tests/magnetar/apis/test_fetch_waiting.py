"""Fetches that wait, as a client sees them: idle sessions, their end, their memory and rights."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from magnetar.broker import Broker
from magnetar.runtime.fetching import Fetch, IdleFetch
from magnetar.runtime.response_memory import PARTITION_BYTES
from magnetar.security.acls import Acl, Operation, Pattern, Permission, Resource
from magnetar.server import listening
from magnetar.storage.acls import STANDARD_AUTHORIZER
from tests.magnetar.apis.test_produce_and_fetch import TOPIC, batch, fetch_request, produce
from tests.magnetar.clocks import MovedClock
from tests.magnetar.conftest import RawClient, StartBroker
from wire.error_code import ErrorCode
from wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from wire.messages.fetch import FetchRequest, FetchResponse
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from wire.messages.metadata import MetadataRequest
from wire.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

Connect = Callable[[Broker], Awaitable[RawClient]]
PARTITIONS = 3


@pytest.fixture
def topic(broker: Broker) -> str:
    broker.topics.create(TOPIC, PARTITIONS)
    return TOPIC


async def opened(client: RawClient) -> int:
    """Open a session of all partitions, whose first fetch finds nothing."""
    full = fetch_request(dict.fromkeys(range(PARTITIONS), 0), session_epoch=0)
    answer = await client.ask(full, 12, FetchResponse)
    assert answer.session_id > 0
    return answer.session_id


def following(session_id: int, epoch: int, max_wait_ms: int = 60_000) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=session_id,
        session_epoch=epoch,
    )


async def received(broker: Broker, count: int) -> None:
    """Return when the broker has begun that many fetches."""
    for _ in range(1000):
        if broker.server.dispatcher.request_counts[1] >= count:
            return
        await asyncio.sleep(0.005)
    raise AssertionError("no fetch came")


@pytest.mark.usefixtures("topic")
async def test_an_idle_session_is_answered_by_what_moves(
    broker: Broker, client: RawClient, connect: Connect
) -> None:
    session_id = await opened(client)
    waiting = asyncio.create_task(client.ask(following(session_id, 1), 12, FetchResponse))
    await received(broker, 2)
    await produce(await connect(broker), batch(b"apple"), partition=2)
    answer = await asyncio.wait_for(waiting, 10)
    (partition,) = answer.responses[0].partitions
    assert (partition.partition_index, partition.high_watermark) == (2, 1)
    # Data that the client did not ask to go on from is given out again.
    again = await client.ask(following(session_id, 2), 12, FetchResponse)
    assert [len(each.records or b"") > 0 for each in again.responses[0].partitions] == [True]


async def test_a_wall_clock_that_is_set_back_keeps_no_session_for_longer(
    start_broker: StartBroker, connect: Connect, clock: MovedClock
) -> None:
    slots = {"max.incremental.fetch.session.cache.slots": "1"}
    broker = await start_broker(slots, clock=clock)
    broker.topics.create(TOPIC, PARTITIONS)
    assert await opened(await connect(broker))
    clock.set_by_ms -= 86_400_000
    clock.passed_ms += 121_000
    assert await opened(await connect(broker))


@pytest.mark.usefixtures("topic")
async def test_an_idle_session_is_answered_in_time_with_nothing(client: RawClient) -> None:
    session_id = await opened(client)
    for epoch in (1, 2, 3):
        answer = await client.ask(following(session_id, epoch, max_wait_ms=20), 12, FetchResponse)
        assert (answer.error_code, answer.session_id, answer.responses) == (0, session_id, [])


@pytest.mark.usefixtures("topic")
async def test_an_idle_session_learns_that_its_topic_is_deleted(
    broker: Broker, client: RawClient
) -> None:
    session_id = await opened(client)
    waiting = asyncio.create_task(client.ask(following(session_id, 1), 12, FetchResponse))
    await received(broker, 2)
    found = broker.topics.by_name(TOPIC)
    assert found is not None
    await broker.topics.deletion.perform([found])
    answer = await asyncio.wait_for(waiting, 10)
    codes = {each.error_code for each in answer.responses[0].partitions}
    assert codes == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.usefixtures("topic")
async def test_a_session_that_another_connection_moves_on_ends_the_wait(
    broker: Broker, client: RawClient, connect: Connect
) -> None:
    session_id = await opened(client)
    waiting = asyncio.create_task(client.ask(following(session_id, 1), 12, FetchResponse))
    await received(broker, 2)
    other = await connect(broker)
    answer = await other.ask(following(session_id, 2, max_wait_ms=20), 12, FetchResponse)
    assert (answer.error_code, answer.session_id) == (0, session_id)
    overtaken = await asyncio.wait_for(waiting, 10)
    assert overtaken.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


@pytest.mark.usefixtures("topic")
async def test_a_fetch_that_waits_is_in_the_account_until_its_client_goes(
    broker: Broker, client: RawClient
) -> None:
    full = fetch_request(dict.fromkeys(range(PARTITIONS), 0), max_wait_ms=60_000)
    client.send(full, 12)
    await received(broker, 1)
    assert broker.response_memory.held_bytes == PARTITIONS * PARTITION_BYTES
    client.close()
    for _ in range(1000):
        if not broker.response_memory.held_bytes:
            break
        await asyncio.sleep(0.005)
    assert broker.response_memory.held_bytes == 0
    # Nothing is left that hears of the partitions.
    log = broker.topics.partition(TOPIC, 0)
    assert not log.reader._subscribers


@pytest.fixture
def do_partitions_move(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker.topics.placement, "moves", True)


@pytest.mark.parametrize("kind", ["whole", "idle"])
@pytest.mark.usefixtures("topic", "do_partitions_move")
async def test_where_partitions_move_a_fetch_that_waits_gives_way_to_another_request(
    client: RawClient, kind: str
) -> None:
    fetch = fetch_request(dict.fromkeys(range(PARTITIONS), 0), max_wait_ms=60_000)
    if kind == "idle":
        fetch = following(await opened(client), 1)
    waiting = client.send(fetch, 12)
    behind = client.send(MetadataRequest(topics=[]), 4)
    async with asyncio.timeout(30):
        assert (await client.receive())[0] == waiting
        assert (await client.receive())[0] == behind


@pytest.mark.parametrize("kind", ["whole", "idle"])
@pytest.mark.usefixtures("topic")
async def test_else_another_request_is_read_after_the_wait_as_in_kafka(
    client: RawClient, kind: str
) -> None:
    fetch = fetch_request(dict.fromkeys(range(PARTITIONS), 0), max_wait_ms=200)
    if kind == "idle":
        fetch = following(await opened(client), 1, max_wait_ms=200)
    began_s = asyncio.get_running_loop().time()
    waiting = client.send(fetch, 12)
    behind = client.send(MetadataRequest(topics=[]), 4)
    assert [(await client.receive())[0] for _ in range(2)] == [waiting, behind]
    assert asyncio.get_running_loop().time() - began_s >= 0.2


@pytest.mark.usefixtures("topic", "do_partitions_move")
async def test_a_fetch_leaves_nothing_to_the_garbage_collection(client: RawClient) -> None:
    session_id = await opened(client)
    gc.collect()
    gc.disable()
    try:
        assert not _fetches()
        # One that waits to its end, one that gives way, one with records.
        await client.ask(following(session_id, 1, max_wait_ms=20), 12, FetchResponse)
        client.send(following(session_id, 2), 12)
        client.send(MetadataRequest(topics=[]), 4)
        for _ in range(2):
            await client.receive()
        await produce(client, batch(b"apple"), partition=0)
        found = await client.ask(fetch_request({0: 0}), 12, FetchResponse)
        assert found.responses[0].partitions[0].records
        # What the event loop still has goes in its next turns.
        await asyncio.sleep(0.01)
        assert not _fetches()
    finally:
        gc.enable()


def _fetches() -> list[object]:
    return [each for each in gc.get_objects() if isinstance(each, (Fetch, IdleFetch))]


@pytest.mark.usefixtures("topic", "do_partitions_move")
async def test_a_fetch_gives_no_way_to_a_fetch(client: RawClient) -> None:
    # Two that are sent again whenever they are answered would never rest.
    fetch = fetch_request(dict.fromkeys(range(PARTITIONS), 0), max_wait_ms=200)
    began_s = asyncio.get_running_loop().time()
    sent = [client.send(fetch, 12) for _ in range(2)]
    assert [(await client.receive())[0] for _ in sent] == sent
    assert asyncio.get_running_loop().time() - began_s >= 0.4


@pytest.fixture
async def guarded(start_broker: StartBroker) -> Broker:
    """A broker that allows everything until a rule says otherwise."""
    broker = await start_broker(
        {
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "allow.everyone.if.no.acl.found": "true",
        }
    )
    broker.topics.create(TOPIC, PARTITIONS)
    return broker


def deny_read(broker: Broker, resource: Resource, name: str) -> None:
    rule = Acl(resource, name, Pattern.LITERAL, "User:*", "*", Operation.READ, Permission.DENY)
    assert broker.acls is not None
    broker.acls.add([rule])


async def test_a_session_is_told_of_what_is_denied_by_now(
    guarded: Broker, connect: Connect
) -> None:
    client = await connect(guarded)
    session_id = await opened(client)
    answer = await client.ask(following(session_id, 1, max_wait_ms=20), 12, FetchResponse)
    assert answer.responses == []
    deny_read(guarded, Resource.TOPIC, TOPIC)
    answer = await client.ask(following(session_id, 2), 12, FetchResponse)
    codes = [each.error_code for each in answer.responses[0].partitions]
    assert codes == [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * PARTITIONS


@pytest.mark.parametrize("session_epoch", [-1, 0])
async def test_a_right_that_is_lost_during_the_wait_takes_the_records_back(
    guarded: Broker, connect: Connect, session_epoch: int
) -> None:
    client, operator = await connect(guarded), await connect(guarded)
    await produce(operator, batch(b"early"))
    request = fetch_request({0: 0}, session_epoch=session_epoch)
    request.min_bytes, request.max_wait_ms = 1 << 19, 500
    client.send(request, 12)
    await received(guarded, 1)
    deny_read(guarded, Resource.TOPIC, TOPIC)
    _, body = await client.receive()
    answer = FetchResponse.decode(body[FetchResponse.header_version(12) :], 12)
    (found,) = answer.responses[0].partitions
    assert found.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert not found.records


async def test_a_member_whose_right_is_lost_is_told_at_its_next_heartbeat(
    guarded: Broker, connect: Connect
) -> None:
    client = await connect(guarded)
    protocol = JoinGroupRequestProtocol(name="range", metadata=b"")
    joining = JoinGroupRequest(
        group_id="classic",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[protocol],
    )
    joined = await client.ask(joining, 3, JoinGroupResponse)
    who: dict[str, Any] = {"member_id": joined.member_id, "generation_id": joined.generation_id}
    assignment = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")
    syncing = SyncGroupRequest(group_id="classic", assignments=[assignment], **who)
    assert (await client.ask(syncing, 3, SyncGroupResponse)).error_code == ErrorCode.NONE
    beat = HeartbeatRequest(group_id="classic", **who)
    consumer_beat = ConsumerGroupHeartbeatRequest(
        group_id="consumer",
        member_id="m",
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=[TOPIC],
        topic_partitions=[],
    )
    for code in (ErrorCode.NONE, ErrorCode.GROUP_AUTHORIZATION_FAILED):
        assert (await client.ask(beat, 4, HeartbeatResponse)).error_code == code
        answer = await client.ask(consumer_beat, 1, ConsumerGroupHeartbeatResponse)
        assert answer.error_code == code
        consumer_beat.member_epoch = answer.member_epoch
        for group in ("classic", "consumer"):
            deny_read(guarded, Resource.GROUP, group)


@pytest.mark.parametrize("kind", ["whole", "idle"])
async def test_no_fetch_waits_for_a_client_that_has_gone_while_nothing_is_read(
    kind: str, start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that had sent many fetches, and had gone, kept their connections and the memory of
    their fetches for five minutes each."""
    monkeypatch.setattr(listening, "_SWEEP_SECONDS", 0.02)
    broker = await start_broker({"connection.max.in.flight.requests": "3"})
    broker.topics.create(TOPIC, PARTITIONS)
    gone, alone = await connect(broker), await connect(broker)
    for client, count in ((gone, 20), (alone, 1)):
        session_id = await opened(client) if kind == "idle" else 0
        fetch = fetch_request(dict.fromkeys(range(PARTITIONS), 0), max_wait_ms=300_000)
        for number in range(1, count + 1):
            client.send(following(session_id, number) if session_id else fetch, 12)
    gone.close()
    async with asyncio.timeout(30):
        while broker.server.connection_count > 1:
            await asyncio.sleep(0.001)
    # A client with one fetch is read, and waits as long as it likes.
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(alone.receive(), 0.2)
