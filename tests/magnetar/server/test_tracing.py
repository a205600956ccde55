"""Spans of requests: what they say, that a collector gets them, and that nothing waits for it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from confluent_kafka import Producer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from magnetar.broker import Broker
from magnetar.config.load import ConfigError
from magnetar.server import span_export
from magnetar.server.tracing import LINKS_MAX, Tracing
from tests.logstore.partitions import batch_of
from tests.magnetar.conftest import RawClient, StartBroker
from wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.records import Compression, SimpleRecord, build_batch

Connect = Callable[[Broker], Awaitable[RawClient]]
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADER = f"00-{TRACE}-{SPAN}-01".encode()


def produce(topic: str, records: bytes) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=records)
    topics = [TopicProduceData(name=topic, partition_data=[data])]
    return ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics)


def fetch(max_wait_ms: int = 0, *, names: bool = True, **session: Any) -> FetchRequest:
    partitions = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
    topics = [FetchTopic(topic="t", partitions=partitions)] if names else []
    return FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, topics=topics, **session
    )


class Spans:
    """The spans of one broker that have ended."""

    def __init__(self, broker: Broker) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        broker.server.dispatcher.tracing = Tracing(provider.get_tracer("test"))

    def last(self) -> ReadableSpan:
        return self._exporter.get_finished_spans()[-1]

    def names(self) -> list[str]:
        return [span.name for span in self._exporter.get_finished_spans()]


def said(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.fixture
def spans(broker: Broker) -> Spans:
    return Spans(broker)


async def created(client: RawClient, topic: str = "t") -> None:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=True
    )
    await client.ask(request, 9, MetadataResponse)


async def test_a_span_says_who_asked_for_what(spans: Spans, client: RawClient) -> None:
    await created(client)
    await client.ask(produce("t", bytes(batch_of(b"x"))), 9, ProduceResponse)
    span = spans.last()
    assert (span.name, span.kind) == ("Produce t", SpanKind.SERVER)
    assert span.status.status_code is StatusCode.UNSET
    found = said(span)
    assert found.pop("kafka.request.size") > 60
    assert found == {
        "messaging.system": "kafka",
        "messaging.operation.name": "Produce",
        "messaging.client.id": "raw",
        "messaging.destination.name": "t",
        "client.address": "127.0.0.1",
        "enduser.id": "User:ANONYMOUS",
        "kafka.api.key": 0,
        "kafka.api.version": 9,
        "kafka.correlation_id": 2,
    }
    assert span.start_time is not None and span.end_time is not None
    assert 0 < span.end_time - span.start_time < 60e9


async def test_errors_are_those_of_the_answer(spans: Spans, client: RawClient) -> None:
    await client.ask(produce("none", bytes(batch_of(b"x"))), 9, ProduceResponse)
    span = spans.last()
    assert said(span)["error.type"] == "UNKNOWN_TOPIC_OR_PARTITION"
    assert span.status.status_code is StatusCode.ERROR
    end = EndTxnRequest(transactional_id="tx", producer_id=1, producer_epoch=0, committed=True)
    await client.ask(end, 3, EndTxnResponse)
    assert said(spans.last())["kafka.transactional_id"] == "tx"
    assert said(spans.last())["error.type"] == "INVALID_PRODUCER_ID_MAPPING"


async def test_several_topics_are_counted(spans: Spans, client: RawClient) -> None:
    names = [MetadataRequestTopic(name=name) for name in ("a", "b")]
    await client.ask(MetadataRequest(topics=names), 9, MetadataResponse)
    assert (spans.last().name, said(spans.last())["kafka.topic_count"]) == ("Metadata", 2)


async def test_a_fetch_in_a_session_is_named_by_what_it_returns(
    spans: Spans, client: RawClient
) -> None:
    await created(client)
    session = await client.ask(fetch(session_epoch=0), 12, FetchResponse)
    await client.ask(produce("t", bytes(batch_of(b"x"))), 9, ProduceResponse)
    again = fetch(names=False, session_id=session.session_id, session_epoch=1)
    await client.ask(again, 12, FetchResponse)
    assert spans.last().name == "Fetch t"


async def test_the_span_of_a_client_that_has_gone_ends(
    spans: Spans, broker: Broker, connect: Connect
) -> None:
    client = await connect(broker)
    await created(client)
    client.send(fetch(max_wait_ms=60_000), 12)
    await client.writer.drain()
    async with asyncio.timeout(10):
        while not broker.server.dispatcher.request_counts[FetchRequest.api_key]:
            await asyncio.sleep(0)
        client.close()
        while "Fetch t" not in spans.names():
            await asyncio.sleep(0)
    assert said(spans.last())["error.type"] == "client_gone"


# Links to the spans of producers.


def with_headers(*values: bytes, compression: Compression = Compression.NONE) -> bytes:
    records = [SimpleRecord(None, b"v", 1_000, [("traceparent", value)]) for value in values]
    return bytes(build_batch(records, compression=compression))


async def test_produced_records_link_to_the_spans_that_made_them(
    spans: Spans, client: RawClient
) -> None:
    await created(client)
    other = HEADER.replace(b"b7", b"c8")
    records = with_headers(HEADER, HEADER, other, b"00-nonsense", HEADER.replace(b"00-", b"ff-"))
    await client.ask(produce("t", records), 9, ProduceResponse)
    links = [link.context for link in spans.last().links]
    assert [f"{link.span_id:x}" for link in links] == [SPAN, SPAN.replace("b7", "c8")]
    assert {f"{link.trace_id:032x}" for link in links} == {TRACE}


async def test_links_are_bounded_and_not_looked_for_in_compressed_batches(
    spans: Spans, client: RawClient
) -> None:
    await created(client)
    many = [f"00-{TRACE}-{number:016x}-01".encode() for number in range(1, LINKS_MAX + 9)]
    await client.ask(produce("t", with_headers(*many)), 9, ProduceResponse)
    assert len(spans.last().links) == LINKS_MAX
    records = with_headers(HEADER, compression=Compression.LZ4)
    await client.ask(produce("t", records), 9, ProduceResponse)
    assert not spans.last().links
    await client.ask(produce("t", b"short"), 9, ProduceResponse)
    assert not spans.last().links


# To a collector.


class Collector(ThreadingHTTPServer):
    """Receives what OTLP exporters post, as a collector does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiver)
        self.received: list[ExportTraceServiceRequest] = []
        self.paths: set[str] = set()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.paths.add(self.path)
        self.server.received.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.endpoint)
        yield server
        server.shutdown()
        thread.join()


async def test_a_collector_gets_the_spans_of_a_producer(
    collector: Collector, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    broker = await start_broker({"traces.exporter": "otlp", "node.id": "7"})

    def send() -> None:
        settings = {"bootstrap.servers": f"127.0.0.1:{broker.listeners[0].port}"}
        producer = Producer({**settings, "client.id": "shop"})
        producer.produce("orders", b"a dozen", headers={"traceparent": HEADER})
        assert producer.flush(10) == 0

    await asyncio.to_thread(send)
    await broker.stop()
    assert collector.paths == {"/v1/traces"}
    (resource,) = {
        tuple(sorted((each.key, each.value.string_value) for each in spans.resource.attributes))
        for request in collector.received
        for spans in request.resource_spans
    }
    named = dict(resource)
    assert (named["service.name"], named["service.instance.id"]) == ("magnetar", "7")
    assert named["deployment.environment.name"] == "test"
    found = {
        span.name: span
        for request in collector.received
        for spans in request.resource_spans
        for scope in spans.scope_spans
        for span in scope.spans
    }
    assert "ApiVersions" in found
    (link,) = found["Produce orders"].links
    assert (link.trace_id.hex(), link.span_id.hex()) == (TRACE, SPAN)
    texts = {each.key: each.value.string_value for each in found["Produce orders"].attributes}
    assert texts["messaging.client.id"] == "shop"


async def test_the_standard_variables_say_the_name_and_the_sampler(
    collector: Collector,
    start_broker: StartBroker,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "orders-kafka")
    for sampler in ("always_on", "always_off"):
        collector.received.clear()
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
        broker = await start_broker({"traces.exporter": "otlp"})
        await created(await connect(broker))
        await broker.stop()
        names = {
            each.value.string_value
            for request in collector.received
            for spans in request.resource_spans
            for each in spans.resource.attributes
            if each.key == "service.name"
        }
        assert names == ({"orders-kafka"} if sampler == "always_on" else set())


async def test_a_collector_that_is_away_costs_no_request_and_holds_no_stop(
    start_broker: StartBroker,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(span_export, "CLOSES_WITHIN_S", 0.3)
    broker = await start_broker({"traces.exporter": "otlp"})
    await created(await connect(broker))
    began = asyncio.get_running_loop().time()
    await broker.stop()
    assert asyncio.get_running_loop().time() - began < 5
    assert "they are lost" in capsys.readouterr().err


async def test_nothing_is_around_a_handler_without_traces(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    broker = await start_broker()
    await created(await connect(broker))
    routes = broker.server.dispatcher._routes.values()
    assert routes and all(route.handler is route.api.handler for route in routes)


async def test_a_missing_library_is_named(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "magnetar.server.span_export")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"no module opentelemetry.*'magnetar\[otel\]'"):
        await start_broker({"traces.exporter": "otlp"})
