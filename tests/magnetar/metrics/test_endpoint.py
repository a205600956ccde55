"""Metrics show the broker's state over HTTP, and hold no client up."""

from __future__ import annotations

import asyncio
import socket
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from coordinator.groups.committing import Committer
from coordinator.groups.offsets.committed import CommittedOffset
from magnetar.broker import Broker
from magnetar.config.load import ConfigError, Given, load
from magnetar.metrics import endpoint, exporter_names, gathering, http_server, jmx_names
from magnetar.metrics.document import document
from magnetar.metrics.endpoint import MetricsEndpoint, bind
from magnetar.metrics.families import FAMILIES
from magnetar.metrics.positions import Position, Positions
from tests.logstore.partitions import batch_of
from tests.magnetar.committing import durably
from tests.magnetar.conftest import RawClient, StartBroker
from tests.magnetar.metrics.watched_families import Watch
from tests.magnetar.raw_producer import RawProducer

Connect = Callable[[Broker], Awaitable[RawClient]]
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
async def served(broker: Broker) -> AsyncIterator[MetricsEndpoint]:
    """An endpoint that tells of `broker`."""
    served = MetricsEndpoint(bind("127.0.0.1", 0))
    served.start(broker.gather_metrics)
    yield served
    await served.stop()


async def scrape(served: MetricsEndpoint) -> Samples:
    """Return the samples by name and labels, as a scraper reads them."""

    def get() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics", timeout=60) as found:
            text: bytes = found.read()
            return text.decode()

    text = await asyncio.to_thread(get)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_an_open_transaction_is_seen_with_its_names_and_what_it_holds_back(
    broker: Broker,
    client: RawClient,
    served: MetricsEndpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker.topics.create("a", 2)
    producer = RawProducer(client, "tx")
    assert await producer.init() == await producer.add() == await producer.produce(11) == 0
    txn = broker.transactions.find("tx")
    assert txn is not None
    names = (("transactional_id", "tx"), ("txn_id", str(txn.txn_id)))
    found = await scrape(served)
    assert found["magnetar_transactions_open", ()] == 1
    assert found["magnetar_transactional_ids", ()] == 1
    unnamed = (("transactional_id", ""), ("txn_id", ""))
    assert 0 <= found["magnetar_oldest_open_transaction_seconds", unnamed] < 10
    assert ("magnetar_oldest_open_transaction_seconds", names) not in found
    monkeypatch.setattr(gathering, "NAMED_FROM_SECONDS", 0)
    assert 0 <= (await scrape(served))["magnetar_oldest_open_transaction_seconds", names] < 60
    assert found["magnetar_stable_offset_lag_records", (("topic", "a"),)] == 1
    assert found["magnetar_stable_offset_lag_all_records", ()] == 1
    assert await producer.end(commit=True) == 0
    found = await scrape(served)
    assert found["magnetar_transactions_open", ()] == 0
    assert ("magnetar_oldest_open_transaction_seconds", names) not in found
    assert found["magnetar_stable_offset_lag_all_records", ()] == 0


async def test_votes_are_seen_until_they_are_decided(
    broker: Broker,
    client: RawClient,
    served: MetricsEndpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker.topics.create("a", 2)
    child = RawProducer(client, "etl~>1")
    assert await child.init() == await child.add() == await child.produce(11) == 0
    assert await child.end(commit=True) == 0
    found = await scrape(served)
    assert found["magnetar_votes_waiting", ()] == 1
    assert found["magnetar_transactions_open", ()] == 0
    assert found["magnetar_stable_offset_lag_all_records", ()] == 1
    assert 0 <= found["magnetar_oldest_vote_seconds", (("transactional_id", ""),)] < 10
    monkeypatch.setattr(gathering, "NAMED_FROM_SECONDS", 0)
    name = (("transactional_id", "etl~>1"),)
    assert 0 <= (await scrape(served))["magnetar_oldest_vote_seconds", name] < 60
    assert await child.init() == 0  # takes the vote back
    found = await scrape(served)
    assert found["magnetar_votes_waiting", ()] == found["magnetar_votes_expired_total", ()] == 0
    assert ("magnetar_oldest_vote_seconds", name) not in found
    assert found["magnetar_stable_offset_lag_all_records", ()] == 0


async def test_traffic_is_counted(
    broker: Broker, client: RawClient, connect: Connect, served: MetricsEndpoint
) -> None:
    before = await scrape(served)
    assert before["magnetar_connections", ()] == 1
    assert before["magnetar_received_bytes_total", ()] == 0
    leaving = await connect(broker)
    assert await RawProducer(leaving, "gone").init() == 0
    assert await RawProducer(client, "here").init() == 0
    found = await scrape(served)
    assert found["magnetar_connections", ()] == 2
    assert found["magnetar_requests_total", (("api", "InitProducerId"),)] == 2
    received = found["magnetar_received_bytes_total", ()]
    sent = found["magnetar_sent_bytes_total", ()]
    assert received > 2 * 20 and sent > 2 * 20
    leaving.close()
    while broker.server.connection_count == 2:
        await asyncio.sleep(0.001)
    found = await scrape(served)
    assert found["magnetar_received_bytes_total", ()] == received
    assert found["magnetar_sent_bytes_total", ()] == sent


async def test_groups_are_counted_by_protocol_and_state(
    broker: Broker, served: MetricsEndpoint
) -> None:
    commit = [("a", 0, CommittedOffset(1))]
    for group_id in ("one", "two"):
        committer = Committer(group_id=group_id)
        await durably(broker.groups.offsets.commit(committer, commit, knows_group_not_found=True))
    kind = (("protocol", "classic"), ("state", "Empty"))
    assert (await scrape(served))["magnetar_groups", kind] == 2


async def test_syncs_are_counted_by_duration(start_broker: StartBroker, connect: Connect) -> None:
    broker = await start_broker({"durability": "fsync"})
    assert await RawProducer(await connect(broker), "tx").init() == 0
    (syncs,) = [one for one in await broker.gather_metrics() if one.name == "magnetar_sync_seconds"]
    samples = {(one.name, one.labels.get("le")): one.value for one in syncs.samples}
    count = samples["magnetar_sync_seconds_count", None]
    assert count > 0
    assert samples["magnetar_sync_seconds_bucket", "+Inf"] == count
    assert samples["magnetar_sync_seconds_sum", None] > 0


async def test_everything_that_is_told_is_in_the_table_and_the_other_way_round(
    broker: Broker, served: MetricsEndpoint
) -> None:
    told = {metric.name for metric in await broker.gather_metrics()}
    expected = {**FAMILIES, **exporter_names.FAMILIES}
    assert told == {name.removesuffix("_total") for name in expected}
    assert ("process_open_fds", ()) in await scrape(served)


async def test_the_names_are_those_that_are_asked_for(start_broker: StartBroker) -> None:
    jmx = {name.removesuffix("_total") for name in jmx_names.FAMILIES}
    exporter = set(exporter_names.FAMILIES)
    for names, expected in (("jmx", jmx), ("jmx,kafka_exporter", jmx | exporter), ("", set())):
        broker = await start_broker({"metrics.names": names})
        told = {metric.name for metric in await broker.gather_metrics()}
        assert {name for name in told if name.startswith("kafka_")} == expected
    with pytest.raises(ConfigError, match="not one of kafka_exporter, jmx"):
        load([Given("metrics.names", "influx", "--set")])


async def test_offsets_and_lag_have_the_names_of_kafka_exporter(
    broker: Broker, client: RawClient, served: MetricsEndpoint
) -> None:
    broker.topics.create("a", 2)
    producer = RawProducer(client, "tx")
    assert await producer.init() == await producer.add() == await producer.produce(11) == 0
    commit = [("a", 0, CommittedOffset(0)), ("deleted", 0, CommittedOffset(7))]
    committer = Committer(group_id="g")
    await durably(broker.groups.offsets.commit(committer, commit, knows_group_not_found=True))
    found = await scrape(served)
    place = (("partition", "0"), ("topic", "a"))
    of_group = (("consumergroup", "g"), *place)
    assert found["kafka_brokers", ()] == 1
    assert found["kafka_topic_partitions", (("topic", "a"),)] == 2
    assert found["kafka_topic_partition_oldest_offset", place] == 0
    assert found["kafka_consumergroup_current_offset", of_group] == 0
    assert found["kafka_consumergroup_members", (("consumergroup", "g"),)] == 0
    lag = found["kafka_topic_partition_current_offset", place]
    assert lag == 1
    assert found["kafka_consumergroup_lag", of_group] == lag
    assert found["magnetar_group_lag_all_records", ()] == lag
    assert not any("deleted" in dict(labels).values() for _, labels in found)


async def test_latencies_and_refusals_are_counted(
    broker: Broker, client: RawClient, served: MetricsEndpoint
) -> None:
    producer = RawProducer(client, "tx")
    assert await producer.init() == 0
    assert await producer.produce(11) != 0  # the topic does not exist
    found = await scrape(served)
    api = (("api", "InitProducerId"),)
    assert found["magnetar_request_seconds_count", api] == 1
    assert found["magnetar_request_seconds_bucket", (*api, ("le", "+Inf"))] == 1
    assert 0 < found["magnetar_request_seconds_sum", api] < 60
    refused = {labels: value for (name, labels), value in found.items() if "refusals" in name}
    assert sum(refused.values()) >= 1


async def test_a_broker_is_alive_before_it_is_ready(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = MetricsEndpoint(bind("127.0.0.1", 0))

    async def codes() -> list[int]:
        paths = ("healthz", "readyz", "metrics", "nothing")
        return [await asyncio.to_thread(_code, served.port, path) for path in paths]

    assert await codes() == [200, 503, 503, 404]
    served.start(broker.gather_metrics, is_serving=lambda: broker.server.is_serving)
    assert await codes() == [200, 200, 200, 404]
    broker.server.turn_away()
    assert await codes() == [200, 503, 200, 404]
    monkeypatch.setattr(endpoint, "GATHERING_SECONDS", 0.05)
    asked = asyncio.get_running_loop().run_in_executor(None, _code, served.port, "healthz")
    time.sleep(0.5)  # the event loop hangs
    assert await asked == 503
    await served.stop()


def _code(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=60) as found:
            code: int = found.status
            return code
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code


def test_the_page_is_the_table() -> None:
    page = ROOT / "docs" / "metrics.md"
    assert page.read_text() == document(), "run python -m magnetar.metrics.document"


async def test_all_lag_is_summed_and_the_worst_topics_are_named(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = broker.clock.now_ms()
    for count in (2, 4, 1, 3, 0):
        log = broker.topics.create(f"lags-{count}", 2).local[1]
        for sequence in range(count):
            batch = batch_of(
                b"v",
                timestamp=now_ms,
                producer_id=7,
                epoch=0,
                sequence=sequence,
                transactional=True,
            )
            await log.durable(log.append(log.check(batch, now_ms)).end_offset)
    monkeypatch.setattr(gathering, "TOPICS_MAX", 2)
    metrics = {metric.name: metric.samples for metric in await broker.gather_metrics()}
    named = [
        (one.labels["topic"], one.value) for one in metrics["magnetar_stable_offset_lag_records"]
    ]
    assert named == [("lags-4", 4), ("lags-3", 3)]
    assert metrics["magnetar_stable_offset_lag_all_records"][0].value == 10
    assert metrics["magnetar_partitions"][0].value == 10


async def test_what_is_told_is_let_go_of_bit_by_bit() -> None:
    watch = Watch()

    async def gather() -> list[Metric]:
        return watch.families(9)

    served = MetricsEndpoint(bind("127.0.0.1", 0))
    served.start(gather)
    try:
        assert ("lag_8", (("topic", "a"),)) in await scrape(served)
    finally:
        await served.stop()
    # All of them at once would hold all threads.
    assert watch.reads[-1].alive_count <= 2


async def test_a_scrape_of_a_large_broker_leaves_the_loop_to_others(broker: Broker) -> None:
    broker.topics.create("wide", 2500)
    gathering_it = asyncio.ensure_future(broker.gather_metrics())
    turns = 0
    while not gathering_it.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 2


async def test_a_wide_topic_and_a_large_family_take_many_turns(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9,000 partitions of one topic took 25 ms in one step, and the samples of a family 10 ms."""
    for module in (gathering, exporter_names):
        monkeypatch.setattr(module, "SLICE", 10)
    wide = broker.topics.create("wide", 100)
    partitions = gathering._partitions([wide], has_bucket=False)
    assert len([*partitions.__await__()]) == 10
    samples = [((f"topic-{number}",), float(number)) for number in range(100)]
    families = exporter_names._in_turns([("kafka_topic_partitions", samples)])
    assert len([*families.__await__()]) == 10


async def test_a_scrape_of_many_offsets_leaves_the_loop_to_others(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offsets of 50,000 groups took 82 ms in one step."""
    turn = 0
    looked_at = Counter[int]()

    class Noted(list[Position]):
        def __iter__(self) -> Iterator[Position]:
            for each in super().__iter__():
                looked_at[turn] += 1
                yield each

    async def positions(*_: object) -> Positions:
        return Noted(Position(f"g-{number}", "orders", 0, 1, 1) for number in range(5_000))

    monkeypatch.setattr(gathering, "positions", positions)
    gathering_it = asyncio.ensure_future(broker.gather_metrics())
    while not gathering_it.done():
        await asyncio.sleep(0)
        turn += 1
    assert looked_at.total() == 5_000
    assert max(looked_at.values()) == 1_000


async def test_a_client_that_says_nothing_is_dropped_and_the_next_one_served(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "SILENCE_SECONDS", 0.3)
    served = MetricsEndpoint(bind("127.0.0.1", 0))
    served.start(broker.gather_metrics)
    with socket.create_connection(("127.0.0.1", served.port)) as silent:
        silent.sendall(b"GET /met")
        assert ("magnetar_connections", ()) in await scrape(served)
        assert silent.recv(1) == b""
    await served.stop()


async def test_a_client_that_does_not_read_is_dropped_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(http_server, "SILENCE_SECONDS", 0.3)
    # More than the buffers of both sides hold.
    large = Metric("large", "x" * 20_000_000, "unknown")

    async def gather() -> list[Metric]:
        return [large]

    served = MetricsEndpoint(bind("127.0.0.1", 0))
    served.start(gather)
    with socket.socket() as unread:
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await asyncio.to_thread(unread.connect, ("127.0.0.1", served.port))
        unread.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        # It is heard when the client is dropped.
        await asyncio.to_thread(_until_closed_for_writing, unread)
    await served.stop()
    assert "Traceback" not in capfd.readouterr().err


def _until_closed_for_writing(client: socket.socket) -> None:
    deadline_s = time.monotonic() + 30
    with suppress(OSError):
        while time.monotonic() < deadline_s:
            client.sendall(b"x")
            time.sleep(0.05)
        raise AssertionError("never dropped")


@pytest.mark.parametrize("version", ["x.y", "1.x", "", "9" * 5000, "1.0.0;escaping=values"])
@pytest.mark.parametrize("kind", ["application/openmetrics-text", "text/plain"])
async def test_a_version_that_is_none_gets_the_usual_metrics(
    broker: Broker, kind: str, version: str, capfd: pytest.CaptureFixture[str]
) -> None:
    served = MetricsEndpoint(bind("127.0.0.1", 0))
    served.start(broker.gather_metrics)
    request = urllib.request.Request(
        f"http://127.0.0.1:{served.port}/metrics", headers={"Accept": f"{kind};version={version}"}
    )

    def ask() -> bytes:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return bytes(answer.read())

    assert b"magnetar_connections" in await asyncio.to_thread(ask)
    await served.stop()
    assert "Traceback" not in capfd.readouterr().err


async def test_clients_that_say_nothing_keep_no_probe_waiting(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """A probe that waited for them, five seconds for each, had a healthy broker killed."""
    served = MetricsEndpoint(bind("127.0.0.1", 0))
    served.start(broker.gather_metrics)
    with ExitStack() as clients:
        silent = [
            clients.enter_context(socket.create_connection(("127.0.0.1", served.port)))
            for _ in range(3 * http_server.CONNECTIONS_MAX)
        ]
        async with asyncio.timeout(http_server.SILENCE_SECONDS):
            assert await asyncio.to_thread(_healthz, served.port) == "ok"
            assert ("magnetar_connections", ()) in await scrape(served)
            # The oldest were dropped, and the newest are heard.
            assert await asyncio.to_thread(silent[0].recv, 1) == b""
            silent[-1].sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
            assert b"200 OK" in await asyncio.to_thread(silent[-1].recv, 1000)
            # Nor does a stop wait for them.
            await served.stop()
    told = capsys.readouterr().err
    assert told.count("too many clients of metrics") == 1 and "Traceback" not in told


def _healthz(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=30) as answer:
        return str(answer.read().decode().strip())


async def test_a_client_that_trickles_is_dropped_and_keeps_nobody_from_stopping(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "SILENCE_SECONDS", 0.5)
    served = MetricsEndpoint(bind("127.0.0.1", 0))
    served.start(broker.gather_metrics)
    first = asyncio.create_task(asyncio.to_thread(_trickle, served.port))
    await asyncio.sleep(0.1)
    assert ("magnetar_connections", ()) in await scrape(served)
    await first
    second = asyncio.create_task(asyncio.to_thread(_trickle, served.port))
    await asyncio.sleep(0.1)
    async with asyncio.timeout(30):
        await served.stop()
    await second


def _trickle(port: int) -> None:
    """Send a byte now and then, until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port)) as client, suppress(OSError):
        for _ in range(100):
            client.sendall(b"G")
            time.sleep(0.05)
        raise AssertionError("never dropped")


async def test_a_stop_in_any_moment_of_the_start_is_heard(broker: Broker) -> None:
    for delay_s in (0, 0.001, 0.01):
        served = MetricsEndpoint(bind("127.0.0.1", 0))
        served.start(broker.gather_metrics)
        await asyncio.sleep(delay_s)
        async with asyncio.timeout(30):
            await served.stop()


async def test_a_broker_that_does_not_get_to_it_fails_the_scrape_alone(
    broker: Broker, served: MetricsEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forever(*_: object) -> list[Metric]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(endpoint, "GATHERING_SECONDS", 0.05)
    monkeypatch.setattr(gathering, "gather", forever)
    with pytest.raises(urllib.error.HTTPError) as failed:
        await scrape(served)
    assert failed.value.code == 500
    failed.value.close()
    monkeypatch.undo()
    assert ("magnetar_connections", ()) in await scrape(served)


def test_an_address_that_is_taken_is_found_out_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"metrics.listen: cannot listen on 127.0.0.1:{port}"):
            bind("127.0.0.1", port)
