"""Metrics that clients push (KIP-714): asked for, paced, bounded, and shown to Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import thread_time
from typing import Any
from uuid import UUID, uuid4

import pytest
from confluent_kafka import Producer
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from magnetar.broker import Broker
from magnetar.metrics.client_metrics import told_by_clients
from magnetar.runtime import telemetry as rules
from magnetar.runtime.patterns import compile_pattern
from magnetar.runtime.pushed_metrics import (
    METRIC_BYTES_MAX,
    SAMPLES_MAX,
    Sample,
    metric_name,
    read_push,
)
from magnetar.runtime.telemetry import ClientTelemetry
from magnetar.storage.stored_configs import StoredConfigs
from tests.magnetar.conftest import RawClient, StartBroker
from wire.error_code import ErrorCode
from wire.errors import KafkaError, WireError
from wire.message import ZERO_UUID
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.records import Compression
from wire.records.compression import compress
from wire.resource_type import ResourceType

Connect = Callable[[Broker], Awaitable[RawClient]]
ATTRIBUTES = {
    "client_id": "etl-1",
    "client_software_name": "librdkafka",
    "client_software_version": "2",
}


def pushed(*names: str, **labels: str) -> bytes:
    """Return a push of one gauge of each name."""
    told = MetricsData()
    scope = told.resource_metrics.add().scope_metrics.add()
    for name in names:
        point = scope.metrics.add(name=name).gauge.data_points.add(as_double=1.5)
        for label, text in labels.items():
            point.attributes.add(key=label).value.string_value = text
    return told.SerializeToString()


@pytest.fixture
async def telemetry(start_broker: StartBroker) -> ClientTelemetry:
    broker = await start_broker({})
    return ClientTelemetry(broker.stored_configs, 10_000, broker.turns)


def subscribed(telemetry: ClientTelemetry, name: str = "all", **texts: str) -> None:
    stored: StoredConfigs = telemetry._stored
    given = {"metrics": "*", "interval.ms": "1000", **texts}
    stored.replace(ResourceType.CLIENT_METRICS, name, given)


async def code_of(work: Callable[[], Awaitable[object]]) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        await work()
    return refused.value.code


async def test_a_client_is_asked_for_what_its_subscriptions_want(
    telemetry: ClientTelemetry,
) -> None:
    nothing = await telemetry.subscribe(ZERO_UUID, ATTRIBUTES, 0)
    assert nothing.subscription.metrics == []
    assert nothing.instance_id != ZERO_UUID
    subscribed(telemetry, "etl", match="client_id=etl-.*", metrics="org.apache.kafka.producer.")
    subscribed(telemetry, "java", match="client_software_name=apache-kafka-java")
    subscribed(telemetry, "late", match="client_id=etl-1", metrics="b,a", **{"interval.ms": "500"})
    asked = (await telemetry.subscribe(uuid4(), ATTRIBUTES, 0)).subscription
    assert asked.metrics == ["a", "b", "org.apache.kafka.producer."]
    assert asked.interval_ms == 500
    # Look-around cannot be matched in linear time: nothing is.
    subscribed(telemetry, "etl", match="client_id=(?!x).*", metrics="c")
    asked = (await telemetry.subscribe(uuid4(), ATTRIBUTES, 0)).subscription
    assert "c" not in asked.metrics


async def test_clients_share_the_names_that_they_are_asked_for(telemetry: ClientTelemetry) -> None:
    """1,000 clients that were asked for 980 names of 95 characters held 144 MB."""
    names = [f"{number}." + "x" * 1000 for number in range(9)]
    subscribed(telemetry, metrics=",".join(names))
    one, other = [await telemetry.subscribe(ZERO_UUID, ATTRIBUTES, 0) for _ in range(2)]
    assert one.subscription.metrics == other.subscription.metrics == names
    pairs = zip(one.subscription.metrics, other.subscription.metrics, strict=True)
    assert all(first is second for first, second in pairs)


async def test_a_push_before_its_time_or_for_another_subscription_is_refused(
    telemetry: ClientTelemetry,
) -> None:
    subscribed(telemetry)
    client = await telemetry.subscribe(ZERO_UUID, ATTRIBUTES, 0)
    number = client.subscription.subscription_id

    def push(
        at_ms: int, number: int = number, codec: int = 0, size: int = 9, last: bool = False
    ) -> Awaitable[object]:
        return telemetry.admit(client.instance_id, number, codec, size, at_ms, is_terminating=last)

    early = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert await code_of(lambda: telemetry.subscribe(client.instance_id, ATTRIBUTES, 999)) is early
    await push(1)
    assert await code_of(lambda: push(1000)) is early
    await push(1001)
    assert await code_of(lambda: push(2100, codec=9)) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert await code_of(lambda: push(3200, size=10_001)) is ErrorCode.TELEMETRY_TOO_LARGE
    subscribed(telemetry, metrics="other")
    assert await code_of(lambda: push(4300)) is ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    # It may ask at once what has changed.
    asked = (await telemetry.subscribe(client.instance_id, ATTRIBUTES, 4301)).subscription
    assert asked.metrics == ["other"]
    await push(4302, asked.subscription_id, last=True)
    assert await code_of(lambda: push(9000, asked.subscription_id)) is ErrorCode.INVALID_REQUEST
    stranger = ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    admit = telemetry.admit
    assert await code_of(lambda: admit(uuid4(), 1, 0, 1, 0, is_terminating=False)) is stranger
    invalid = ErrorCode.INVALID_REQUEST
    assert await code_of(lambda: admit(ZERO_UUID, 1, 0, 1, 0, is_terminating=False)) is invalid


async def test_clients_and_their_samples_are_bounded_and_forgotten(
    telemetry: ClientTelemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscribed(telemetry)
    monkeypatch.setattr(rules, "CLIENTS_MAX", 2)
    monkeypatch.setattr(rules, "SAMPLES_MAX", 3)
    samples, left_out = read_push(pushed("a", "b"), Compression.NONE, 1000)
    for number in range(3):
        client = await telemetry.subscribe(UUID(int=number + 1), ATTRIBUTES, number)
        telemetry.keep(client, samples, left_out)
    assert telemetry.client_count == 2
    # Two of each: the second client has no room.
    assert [client.instance_id.int for client in telemetry.told(10)] == [2]
    assert list(telemetry.told(1 + 60_000)) != []
    assert list(telemetry.told(3 + 60_000)) == []
    assert telemetry.client_count == 0


@pytest.mark.parametrize("codec", list(Compression))
def test_every_codec_is_read(codec: Compression) -> None:
    data = compress(codec, pushed("org.apache.kafka.producer.request.latency.avg", topic="a"))
    (sample,), left_out = read_push(data, codec, 1000)
    assert sample.name == "kafka_client_producer_request_latency_avg"
    assert (sample.labels, sample.value, left_out) == ((("topic", "a"),), 1.5, 0)


def test_what_is_no_push_or_too_much_is_refused_or_cut() -> None:
    for garbage in (b"\xff\xff", compress(Compression.GZIP, bytes(1_000_000))):
        codec = Compression.GZIP if garbage.startswith(b"\x1f") else Compression.NONE
        with pytest.raises(WireError):
            read_push(garbage, codec, 1000)
    names = [f"m{number}" for number in range(SAMPLES_MAX + 7)]
    samples, left_out = read_push(pushed(*names), Compression.NONE, 100_000)
    assert (len(samples), left_out) == (SAMPLES_MAX, 7)
    labels: dict[str, Any] = {"__name__": "up", "ok": "v" * 500, "1st": "x"}
    hostile = pushed('x"}\n1', **labels)
    (sample,), _ = read_push(hostile, Compression.NONE, 10_000)
    assert sample.name == "kafka_client_x_1"
    assert [(name, len(value)) for name, value in sample.labels] == [("ok", 100)]
    assert metric_name("...") == "kafka_client_"


async def test_names_of_clients_are_cut_where_their_samples_show_them(
    telemetry: ClientTelemetry,
) -> None:
    subscribed(telemetry)
    # As long as a client may send them: with 10,000 samples they would fill a gigabyte.
    attributes = dict.fromkeys(
        ("client_id", "client_software_name", "client_software_version"), "x" * 32_000
    )
    client = await telemetry.subscribe(ZERO_UUID, attributes, 0)
    samples, _ = read_push(pushed("a"), Compression.NONE, 1000)
    telemetry.keep(client, samples, 0)
    (family, *_) = await told_by_clients(telemetry, 0)
    assert max(len(value) for value in family.samples[0].labels.values()) < 300


async def test_the_samples_of_many_clients_leave_the_loop_to_others(
    telemetry: ClientTelemetry,
) -> None:
    samples, _ = read_push(pushed("a"), Compression.NONE, 1000)
    for _ in range(3):
        telemetry.keep(await telemetry.subscribe(ZERO_UUID, ATTRIBUTES, 0), samples, 0)
    shown = asyncio.ensure_future(told_by_clients(telemetry, 0))
    turns = 0
    while not shown.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 3
    assert len((await shown)[0].samples) == 3


async def test_many_subscriptions_are_compared_in_turns_and_for_a_push_not_again(
    telemetry: ClientTelemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        subscribed(telemetry, f"s{number}", match="client_id=etl.*", metrics=f"m{number}")
    compiled: list[str] = []

    def compile_noted(pattern: str, memory_bytes_max: int) -> object:
        compiled.append(pattern)
        return compile_pattern(pattern, memory_bytes_max)

    monkeypatch.setattr(rules, "compile_pattern", compile_noted)
    client = await telemetry.subscribe(ZERO_UUID, ATTRIBUTES, 0)
    assert len(compiled) == 3
    number = client.subscription.subscription_id
    await telemetry.admit(client.instance_id, number, 0, 9, 1, is_terminating=False)
    assert len(compiled) == 3
    monkeypatch.setattr(rules, "METRICS_MAX", 2)
    assert (await telemetry.subscribe(uuid4(), ATTRIBUTES, 0)).subscription.metrics == ["*"]


async def test_librdkafka_pushes_and_prometheus_sees(
    start_broker: StartBroker, connect: Connect
) -> None:
    broker = await start_broker({"metrics.listen": "127.0.0.1:0"})
    texts = {"metrics": "*", "interval.ms": "100"}
    broker.stored_configs.replace(ResourceType.CLIENT_METRICS, "all", texts)
    address = f"127.0.0.1:{broker.listeners[0].port}"
    settings = {"bootstrap.servers": address, "client.id": "etl", "linger.ms": 0}
    producers = []

    def produce() -> None:
        producers.append(Producer(settings))
        producers[0].produce("a", b"x")
        producers[0].flush(10)

    await asyncio.to_thread(produce)
    async with asyncio.timeout(30):
        while True:
            found = {each.name: each.samples for each in await broker.gather_metrics()}
            names = [name for name in found if name.startswith("kafka_client_")]
            if names:
                break
            await asyncio.sleep(0.05)
    assert found["magnetar_telemetry_clients"][0].value >= 1
    labels = found[names[0]][0].labels
    assert labels["client_id"] == "etl"
    assert labels["client_software_name"] == "confluent-kafka-python"
    # The client goes before the broker.
    await asyncio.to_thread(producers.pop)


async def test_the_apis_are_told_only_where_metrics_are_served(
    start_broker: StartBroker, connect: Connect
) -> None:
    for listen, expected in (("", set()), ("127.0.0.1:0", {71, 72})):
        broker = await start_broker({"metrics.listen": listen})
        client = await connect(broker)
        request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
        answer = await client.ask(request, 3, ApiVersionsResponse)
        assert {each.api_key for each in answer.api_keys} & {71, 72} == expected


def seconds_of(work: Callable[[], object]) -> float:
    """Return the processor time that work takes."""
    began_s = thread_time()
    work()
    return thread_time() - began_s


def test_a_push_of_millions_of_empty_messages_is_not_looked_through() -> None:
    # A kilobyte, which inflates to ten megabytes.
    bomb = compress(Compression.ZSTD, b"\x0a\x00" * (5 << 20))
    read_push(b"", Compression.NONE, 1)  # Imports the library.
    told: list[tuple[object, int]] = []
    seconds = seconds_of(lambda: told.append(read_push(bomb, Compression.ZSTD, 1 << 20)))
    assert told == [([], 1)]
    # It took 12 s, and its parsing alone half a second in which no other thread could run.
    assert seconds < 1


def test_names_are_cut_before_they_are_looked_at_and_lists_make_no_label() -> None:
    told = MetricsData()
    metric = told.resource_metrics.add().scope_metrics.add().metrics.add(name="a." * 50_000)
    for _ in range(SAMPLES_MAX + 100):
        point = metric.gauge.data_points.add(as_int=1)
    metric.gauge.data_points[0].attributes.add(key="list").value.array_value.values.add()
    point.attributes.add(key="late").value.bool_value = True
    data = told.SerializeToString()
    found: list[tuple[list[Sample], int]] = []
    assert seconds_of(lambda: found.append(read_push(data, Compression.NONE, 1 << 20))) < 0.5
    ((samples, left_out),) = found
    assert (len(samples), left_out) == (SAMPLES_MAX, 100)
    assert samples[0].labels == ()
    assert len(samples[0].name) < 200
    # A metric that is too large for one parse is left out, and the next one is read.
    metric.name = "a" * METRIC_BYTES_MAX
    told.resource_metrics[0].scope_metrics[0].metrics.add(name="b").sum.data_points.add(as_int=2)
    (sample,), left_out = read_push(told.SerializeToString(), Compression.NONE, 1 << 20)
    assert (sample.name, sample.value, left_out) == ("kafka_client_b", 2.0, 1)
