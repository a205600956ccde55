"""Quotas on a running broker: who is throttled, how, and who does not notice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from magnetar.broker import Broker
from magnetar.config.addresses import plain_address
from magnetar.runtime import quotas
from magnetar.runtime.quotas import Kind
from magnetar.storage.client_quotas import Change, make_entity
from tests.logstore.partitions import batch_of
from tests.magnetar.clocks import HeldClock
from tests.magnetar.conftest import RawClient, StartBroker
from wire.error_code import ErrorCode
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from wire.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

Connect = Callable[[Broker], Awaitable[RawClient]]
#: What the tests' clients call themselves.
CLIENT = [("client-id", "raw")]
WHOLE_BURST_S = 10


@pytest.fixture
def held() -> HeldClock:
    return HeldClock()


@pytest.fixture
async def broker(start_broker: StartBroker, held: HeldClock) -> Broker:
    broker = await start_broker(clock=held)
    broker.topics.ensure("t")
    return broker


def set_quota(broker: Broker, key: Kind, value: float | None, parts: Any = CLIENT) -> None:
    stored = broker.services.client_quotas
    entity = make_entity(parts)
    stored.replace(
        {entity: stored.check(entity, [Change(key.value, None if value is None else float(value))])}
    )


def produce(size_bytes: int = 1_000, acks: int = -1) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=bytes(batch_of(b"x" * size_bytes)))
    topics = [TopicProduceData(name="t", partition_data=[data])]
    return ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=topics)


def fetch(offset: int = 0, session_id: int = 0, session_epoch: int = -1) -> FetchRequest:
    part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic="t", partitions=[part])] if session_epoch <= 0 else []
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 24,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=topics,
    )


def create(name: str, partition_count: int) -> CreateTopicsRequest:
    topic = CreatableTopic(name=name, num_partitions=partition_count, replication_factor=1)
    return CreateTopicsRequest(topics=[topic], timeout_ms=10_000)


async def is_muted(client: RawClient) -> bool:
    """Whether a request is not answered; other connections are meanwhile."""
    client.send(ApiVersionsRequest(), 0)
    try:
        await asyncio.wait_for(client.receive(), 0.3)
    except TimeoutError:
        return True
    return False


async def test_a_producer_over_its_quota_is_answered_at_once_and_then_muted(
    broker: Broker, connect: Connect
) -> None:
    set_quota(broker, Kind.PRODUCE, 100)
    client, other = await connect(broker), await connect(broker)
    answer = await client.ask(produce(3_000), 9, ProduceResponse)
    assert answer.responses[0].partition_responses[0].error_code == 0
    # What it took beyond the burst of 1,000 bytes.
    assert 20_000 <= answer.throttle_time_ms <= 23_000
    assert await is_muted(client)
    assert not await is_muted(other)
    throttled = broker.services.quotas.throttled[Kind.PRODUCE]
    assert (throttled.count, throttled.total_ms) == (1, answer.throttle_time_ms)


async def test_a_node_gives_its_part_of_a_quota_also_when_nodes_have_come_and_gone(
    broker: Broker, connect: Connect
) -> None:
    set_quota(broker, Kind.PRODUCE, 300)
    client, own_id = await connect(broker), broker.node_id
    assert (await client.ask(produce(100), 9, ProduceResponse)).throttle_time_ms == 0
    broker.topics.placement.see_nodes([own_id, 98, 99], ())
    # 100 bytes a second, and a burst of 1,000.
    answer = await client.ask(produce(3_000), 9, ProduceResponse)
    assert 20_000 <= answer.throttle_time_ms <= 23_000
    broker.topics.placement.see_nodes([own_id], ())
    answer = await (await connect(broker)).ask(produce(1_000), 9, ProduceResponse)
    # The debt of both, at 300 bytes a second.
    assert 10_000 <= answer.throttle_time_ms <= 11_500


async def test_a_muted_connection_is_read_again_when_its_time_is_over(
    broker: Broker, connect: Connect
) -> None:
    set_quota(broker, Kind.PRODUCE, 10_000)
    client = await connect(broker)
    # A debt of a fifth of a second or more.
    answer = await client.ask(produce(102_000), 9, ProduceResponse)
    assert 200 <= answer.throttle_time_ms < 1_000
    answered = await asyncio.wait_for(client.ask(ApiVersionsRequest(), 0, ApiVersionsResponse), 30)
    assert answered.error_code == 0


async def test_what_was_sent_before_the_mute_is_answered(broker: Broker, connect: Connect) -> None:
    set_quota(broker, Kind.PRODUCE, 100)
    client = await connect(broker)
    sent = client.send(produce(3_000), 9), client.send(HeartbeatRequest(group_id="g"), 0)
    await client.writer.drain()
    assert (await client.receive())[0] == sent[0]
    assert (await asyncio.wait_for(client.receive(), 30))[0] == sent[1]


async def test_a_change_of_quotas_ends_the_pauses_of_older_ones(
    broker: Broker, connect: Connect
) -> None:
    set_quota(broker, Kind.PRODUCE, 1)
    client = await connect(broker)
    answer = await client.ask(produce(10_000), 9, ProduceResponse)
    assert answer.throttle_time_ms > 1_000_000
    assert await is_muted(client)
    set_quota(broker, Kind.PRODUCE, None)
    await asyncio.wait_for(client.receive(), 30)
    assert (await client.ask(produce(10_000), 9, ProduceResponse)).throttle_time_ms == 0


async def test_a_producer_without_answers_is_muted_as_well(
    broker: Broker, connect: Connect
) -> None:
    set_quota(broker, Kind.PRODUCE, 100)
    client = await connect(broker)
    client.send(produce(3_000, acks=0), 9)
    await client.writer.drain()
    async with asyncio.timeout(30):
        while not broker.services.quotas.throttled[Kind.PRODUCE].count:
            await asyncio.sleep(0.01)
    assert await is_muted(client)


async def test_heartbeats_of_a_throttled_producers_other_connection_are_not_counted(
    broker: Broker, connect: Connect
) -> None:
    set_quota(broker, Kind.PRODUCE, 100)
    client, coordinator = await connect(broker), await connect(broker)
    await client.ask(produce(3_000), 9, ProduceResponse)
    beat = await coordinator.ask(HeartbeatRequest(group_id="g"), 1, HeartbeatResponse)
    assert beat.throttle_time_ms == 0


async def test_a_fetch_over_its_quota_is_empty_and_does_not_count(
    broker: Broker, connect: Connect, held: HeldClock
) -> None:
    client = await connect(broker)
    await client.ask(produce(800), 9, ProduceResponse)
    set_quota(broker, Kind.FETCH, 100)
    first = await client.ask(fetch(), 12, FetchResponse)
    assert first.throttle_time_ms == 0
    assert first.responses[0].partitions[0].records
    second = await client.ask(fetch(), 12, FetchResponse)
    assert second.throttle_time_ms > 5_000
    assert not second.responses
    held.passed_ms += second.throttle_time_ms
    another = await connect(broker)
    third = await another.ask(fetch(), 12, FetchResponse)
    assert third.throttle_time_ms == 0
    assert third.responses[0].partitions[0].records


async def test_a_session_brings_later_what_a_throttled_fetch_held_back(
    broker: Broker, connect: Connect, held: HeldClock
) -> None:
    client = await connect(broker)
    set_quota(broker, Kind.FETCH, 100)
    opened = await client.ask(fetch(session_epoch=0), 12, FetchResponse)
    assert opened.session_id
    await client.ask(produce(800), 9, ProduceResponse)
    session = opened.session_id
    first = await client.ask(fetch(0, session, 1), 12, FetchResponse)
    assert first.responses
    held_back = await client.ask(fetch(0, session, 2), 12, FetchResponse)
    assert held_back.throttle_time_ms
    assert held_back.error_code == 0
    assert not held_back.responses
    held.passed_ms += held_back.throttle_time_ms
    another = await connect(broker)
    assert (await another.ask(fetch(0, session, 3), 12, FetchResponse)).responses


async def test_a_batch_larger_than_any_burst_is_sent_and_paid_for_later(
    broker: Broker, connect: Connect, held: HeldClock
) -> None:
    client = await connect(broker)
    await client.ask(produce(5_000), 9, ProduceResponse)
    set_quota(broker, Kind.FETCH, 100)
    answer = await client.ask(fetch(), 12, FetchResponse)
    assert answer.responses[0].partitions[0].records
    assert answer.throttle_time_ms > 40_000


async def test_request_time_pauses_a_client_for_a_second_at_most(
    broker: Broker, connect: Connect
) -> None:
    set_quota(broker, Kind.REQUEST, 0.000001)
    client = await connect(broker)
    answer = await client.ask(ListGroupsRequest(), 1, ListGroupsResponse)
    assert answer.throttle_time_ms == 1_000
    # A heartbeat of the same connection comes through after that second.
    client.send(HeartbeatRequest(group_id="g"), 0)
    await asyncio.wait_for(client.receive(), 30)


async def test_a_refused_request_says_its_throttle_time_too(
    broker: Broker, connect: Connect
) -> None:
    set_quota(broker, Kind.REQUEST, 0.000001)
    client = await connect(broker)
    answer = await client.ask(HeartbeatRequest(group_id="none"), 1, HeartbeatResponse)
    assert answer.error_code != 0
    assert answer.throttle_time_ms == 1_000


async def test_mutations_beyond_the_quota_are_refused_until_their_debt_is_paid(
    broker: Broker, connect: Connect, held: HeldClock
) -> None:
    set_quota(broker, Kind.MUTATION, 1)
    client = await connect(broker)
    passed = await client.ask(create("a", 20), 7, CreateTopicsResponse)
    assert (passed.topics[0].error_code, passed.throttle_time_ms) == (0, 0)
    refused = await client.ask(create("b", 1), 7, CreateTopicsResponse)
    assert refused.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert refused.throttle_time_ms == 9_000
    another = await connect(broker)
    older = await another.ask(create("c", 1), 5, CreateTopicsResponse)
    assert (older.topics[0].error_code, older.throttle_time_ms) == (0, 10_000)
    held.passed_ms += 10_000
    yet_another = await connect(broker)
    assert not (await yet_another.ask(create("b", 1), 7, CreateTopicsResponse)).topics[0].error_code


async def test_growth_and_deletion_of_topics_are_mutations(
    broker: Broker, connect: Connect
) -> None:
    set_quota(broker, Kind.MUTATION, 1)
    client = await connect(broker)
    growth = [CreatePartitionsTopic(name="t", count=20, assignments=None)]
    grow = CreatePartitionsRequest(topics=growth, timeout_ms=10_000)
    grown = await client.ask(grow, 3, CreatePartitionsResponse)
    assert grown.results[0].error_code == 0
    delete = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=10_000)
    refused = await client.ask(delete, 6, DeleteTopicsResponse)
    assert refused.responses[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    # 19 partitions from a burst of 11.
    assert refused.throttle_time_ms == 8_000
    assert broker.topics.by_name("t") is not None


async def test_the_most_specific_entity_counts(broker: Broker, connect: Connect) -> None:
    user, client_id = ("user", "ANONYMOUS"), ("client-id", "raw")
    any_user, any_client = ("user", None), ("client-id", None)
    order = [
        [any_client],
        [client_id],
        [any_user],
        [any_user, any_client],
        [any_user, client_id],
        [user],
        [user, any_client],
        [user, client_id],
    ]
    # From the last in the order to the first: each is found before all that were set before it.
    for rate, parts in enumerate(order, start=1):
        set_quota(broker, Kind.FETCH, rate * 1_000, parts)
        client = await connect(broker)
        await client.ask(produce(10), 9, ProduceResponse)
        buckets = next(iter(broker.services.quotas._clients.values()))
        assert buckets[Kind.FETCH].rate.per_s == rate * 1_000


async def test_addresses_that_connect_too_fast_are_closed_after_a_delay(
    broker: Broker, connect: Connect, held: HeldClock
) -> None:
    set_quota(broker, Kind.CONNECTION, 1, [("ip", "127.0.0.1")])
    for _ in range(WHOLE_BURST_S):
        client = await connect(broker)
        assert not (await client.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)).error_code
    one_too_many = await connect(broker)
    one_too_many.send(ApiVersionsRequest(), 0)
    assert await one_too_many.is_closed()
    held.passed_ms += 1_000
    client = await connect(broker)
    assert not (await client.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)).error_code


async def test_connections_beyond_a_listeners_rate_are_served_later(
    start_broker: StartBroker, connect: Connect, held: HeldClock
) -> None:
    rate = {"listener.name.plaintext.max.connection.creation.rate": "10"}
    broker = await start_broker(rate, clock=held)
    clients = [await connect(broker) for _ in range(10 * WHOLE_BURST_S + 3)]
    for client in clients:
        client.send(ApiVersionsRequest(), 0)
    async with asyncio.timeout(60):
        for client in clients:
            await client.receive()
    throttled = broker.services.quotas.throttled[Kind.CONNECTION]
    assert (throttled.count, throttled.total_ms) == (3, 100 + 200 + 300)


@pytest.mark.parametrize("of", ["", "listener.name.plaintext."])
async def test_a_crowd_that_came_and_went_keeps_no_client_out_for_long(
    start_broker: StartBroker, connect: Connect, held: HeldClock, of: str
) -> None:
    rate = {f"{of}max.connection.creation.rate": "10", "socket.listen.backlog.size": "5"}
    broker = await start_broker(rate, clock=held)
    for _ in range(10 * WHOLE_BURST_S + 100):
        (await connect(broker)).close()
    late = await connect(broker)
    late.send(ApiVersionsRequest(), 0)
    assert await late.is_closed()
    # Five wait, as would before an `accept`: half a second pays for them.
    held.passed_ms += 600
    client = await connect(broker)
    assert not (await client.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)).error_code
    throttled = broker.services.quotas.throttled[Kind.CONNECTION]
    assert throttled.count == 101


async def test_whom_the_brokers_rate_turns_away_is_no_debt_of_the_listener(
    start_broker: StartBroker, connect: Connect, held: HeldClock
) -> None:
    rates = {
        "max.connection.creation.rate": "10",
        "listener.name.plaintext.max.connection.creation.rate": "12",
        "socket.listen.backlog.size": "5",
    }
    broker = await start_broker(rates, clock=held)
    for _ in range(12 * WHOLE_BURST_S + 100):
        (await connect(broker)).close()
    # The broker took 105 of them, the listener's burst is 120.
    held.passed_ms += 600
    client = await connect(broker)
    assert not (await client.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)).error_code
    throttled = broker.services.quotas.throttled[Kind.CONNECTION]
    assert throttled.count == 2 * WHOLE_BURST_S + 100, "each is told of once, by the broker's rate"


async def test_a_quota_counts_in_whichever_text_it_names_the_address(
    broker: Broker, connect: Connect
) -> None:
    quotas = broker.services.quotas
    for text, address in (("0:0:0:0:0:0:0:1", "::1"), ("::ffff:10.0.0.1", "10.0.0.1")):
        set_quota(broker, Kind.CONNECTION, 1, [("ip", text)])
        assert [quotas.refuses(address) for _ in range(WHOLE_BURST_S + 1)][-1] == 1_000


async def test_a_listener_and_an_address_have_limits_of_their_own(
    start_broker: StartBroker, connect: Connect
) -> None:
    for limit in (
        {"listener.name.plaintext.max.connections": "1"},
        {"max.connections.per.ip": "7", "max.connections.per.ip.overrides": "127.0.0.1:1,[::1]:9"},
        {
            "max.connections.per.ip": "7",
            "max.connections.per.ip.overrides": "[::ffff:127.0.0.1]:1",
        },
    ):
        broker = await start_broker(limit)
        first, second = await connect(broker), await connect(broker)
        assert await second.is_closed()
        assert not (await first.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)).error_code
        await broker.stop()


async def test_buckets_are_bounded_and_the_indebted_are_kept_longest(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "BUCKETS_MAX", 8)
    set_quota(broker, Kind.PRODUCE, 100, [("client-id", None)])
    debtor = await connect(broker)
    await debtor.ask(produce(3_000), 9, ProduceResponse)
    client = await connect(broker)
    for number in range(30):
        client.send(ApiVersionsRequest(), 0, client_id=f"client {number}")
        await client.receive()
        assert len(broker.services.quotas._buckets) <= 8
        assert len(broker.services.quotas._clients) <= 8
    again = await connect(broker)
    assert (await again.ask(produce(10), 9, ProduceResponse)).throttle_time_ms > 15_000


async def test_a_client_that_has_not_authenticated_takes_from_no_bucket(
    start_broker: StartBroker, connect: Connect
) -> None:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    broker = await start_broker(
        {
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
                f'{module} required user_ada="pw";'
            ),
        }
    )
    set_quota(broker, Kind.REQUEST, 0.000001, [("user", None)])
    client = await connect(broker)
    before = await client.ask(ApiVersionsRequest(), 1, ApiVersionsResponse)
    assert before.throttle_time_ms == 0
    await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1, SaslHandshakeResponse)
    login = SaslAuthenticateRequest(auth_bytes=b"\0ada\0pw")
    assert not (await client.ask(login, 1, SaslAuthenticateResponse)).error_code
    after = await client.ask(ApiVersionsRequest(), 1, ApiVersionsResponse)
    assert after.throttle_time_ms == 1_000


async def test_a_throttled_client_is_logged_once_with_its_name(
    broker: Broker, connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    set_quota(broker, Kind.PRODUCE, 100)
    for _ in range(3):
        client = await connect(broker)
        assert (await client.ask(produce(3_000), 9, ProduceResponse)).throttle_time_ms
    lines = [line for line in capsys.readouterr().err.splitlines() if "client throttled" in line]
    assert len(lines) == 1
    for part in ("producer_byte_rate=100", "User:ANONYMOUS", "raw", "127.0.0.1"):
        assert part in lines[0]


async def test_nothing_is_metered_without_quotas(broker: Broker, connect: Connect) -> None:
    client = await connect(broker)
    for is_limited in (False, True, False):
        set_quota(broker, Kind.PRODUCE, 1e9 if is_limited else None)
        await client.ask(produce(10), 9, ProduceResponse)
        routes = broker.server.dispatcher._routes.values()
        assert all((route.handler is not route.api.handler) == is_limited for route in routes)


async def test_a_change_of_one_address_looks_at_the_text_of_no_other(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[str] = []

    def counted(text: str) -> str:
        looked_at.append(text)
        return plain_address(text)

    monkeypatch.setattr("magnetar.runtime.quotas.plain_address", counted)
    for address in ("10.0.0.1", "::ffff:10.0.0.2", "10.0.0.3"):
        set_quota(broker, Kind.CONNECTION, 1, [("ip", address)])
    set_quota(broker, Kind.CONNECTION, None, [("ip", "10.0.0.3")])
    assert looked_at == ["10.0.0.1", "::ffff:10.0.0.2", "10.0.0.3"]
    assert [broker.services.quotas.refuses("10.0.0.2") > 0 for _ in range(30)][-1]
    assert not any(broker.services.quotas.refuses("10.0.0.3") for _ in range(30))
