"""The metrics of several nodes at one endpoint."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import get_ident
from urllib.request import urlopen

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from magnetar.metrics import of_nodes
from magnetar.metrics.of_nodes import NodesCollector
from magnetar.peers.addresses import bind_local, connect_local
from magnetar.testing import start_broker
from tests.magnetar.metrics.watched_families import Watch

NAME = "metrics.sock"


class Fixed:
    def __init__(self, *families: Metric) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return [*self._families]


def gauge(value: float) -> Metric:
    family = GaugeMetricFamily("lag", "How far behind.", labels=["topic"])
    family.add_metric(["a"], value)
    return family


def counter(value: float) -> Metric:
    return CounterMetricFamily("served", "Requests.", value=value)


async def collected(
    own: Fixed, connect: dict[int, Callable[[], socket.socket]]
) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return labels and value of each sample, by the name of its family."""
    families = await asyncio.to_thread(lambda: [*NodesCollector(1, [own], connect).collect()])
    assert len({family.name for family in families}) == len(families)
    return {
        family.name: [(sample.labels, sample.value) for sample in family.samples]
        for family in families
    }


async def test_each_sample_names_its_node(tmp_path: Path) -> None:
    async def gather() -> list[Metric]:
        return [gauge(2.0), counter(7.0)]

    listening = bind_local(tmp_path, NAME)
    assert (tmp_path / NAME).stat().st_mode & 0o077 == 0
    server = await of_nodes.serve(listening, gather)
    found = await collected(Fixed(gauge(1.0)), {2: partial(connect_local, tmp_path, NAME)})
    server.close()
    assert found["lag"] == [
        ({"topic": "a", "node": "1"}, 1.0),
        ({"topic": "a", "node": "2"}, 2.0),
    ]
    assert [each for each in found["served"] if each[1] == 7.0] == [({"node": "2"}, 7.0)]
    # The process of the other node too.
    assert [labels for labels, _ in found["process_open_fds"]] == [{"node": "2"}]


async def test_a_family_of_many_samples_arrives_as_it_is(tmp_path: Path) -> None:
    family = GaugeMetricFamily("lag", "How far behind.", labels=["topic"])
    for number in range(1_203):
        family.add_metric([f'"{number}"\n\u00e4'], number / 8)
    family.add_metric(["none"], math.inf)
    samples = [*family.samples]

    async def gather() -> list[Metric]:
        return [family]

    server = await of_nodes.serve(bind_local(tmp_path, NAME), gather)
    found = await collected(Fixed(), {2: partial(connect_local, tmp_path, NAME)})
    server.close()
    assert found["lag"] == [({**each.labels, "node": "2"}, each.value) for each in samples]


async def test_a_node_tells_its_metrics_beside_the_event_loop(tmp_path: Path) -> None:
    watch = Watch()

    async def gather() -> list[Metric]:
        return watch.families(9)

    server = await of_nodes.serve(bind_local(tmp_path, NAME), gather)
    found = await collected(Fixed(), {2: partial(connect_local, tmp_path, NAME)})
    server.close()
    assert {f"lag_{number}" for number in range(9)} <= found.keys()
    assert get_ident() not in {each.thread for each in watch.reads}
    # Bit by bit: all of them at once would hold all threads.
    assert watch.reads[-1].alive_count <= 2


def test_what_is_merged_is_let_go_of_bit_by_bit() -> None:
    watch = Watch()
    left = watch.families(9)

    class Own:
        def collect(self) -> Iterator[Metric]:
            while left:
                yield left.pop()

    counts = [watch.alive_count for _ in NodesCollector(1, [Own()], {}).collect()]
    assert counts == [*range(9, 0, -1)]


async def test_a_node_that_is_away_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = await collected(Fixed(gauge(1.0)), {2: partial(connect_local, tmp_path, NAME)})
    assert found == {"lag": [({"topic": "a", "node": "1"}, 1.0)]}
    assert "metrics of a node are missing" in capsys.readouterr().err


async def test_a_node_that_does_not_answer_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_nodes, "ANSWER_SECONDS", 0.01)
    with bind_local(tmp_path, NAME):
        found = await collected(Fixed(gauge(1.0)), {2: partial(connect_local, tmp_path, NAME)})
    assert [*found] == ["lag"]


async def test_a_node_that_does_not_accept_is_left_out(tmp_path: Path) -> None:
    connect = partial(connect_local, tmp_path, NAME)
    with bind_local(tmp_path, NAME) as listening, ExitStack() as held:
        listening.listen(0)
        held.enter_context(connect())
        found = await asyncio.wait_for(collected(Fixed(gauge(1.0)), {2: connect}), 10)
    assert [*found] == ["lag"]


async def test_a_node_that_is_killed_while_it_writes_shows_no_part_of_a_number(
    tmp_path: Path,
) -> None:
    whole = b'["lag", "How far behind.", "gauge", [["lag", {"topic": "a"}, 12345.0]]]\n'
    with bind_local(tmp_path, NAME) as listening:
        listening.setblocking(True)
        for end in (0, whole.index(b"gauge"), whole.index(b"345"), len(whole)):
            asked = asyncio.create_task(
                collected(Fixed(gauge(1.0)), {2: partial(connect_local, tmp_path, NAME)})
            )
            accepted, _ = await asyncio.to_thread(listening.accept)
            with accepted:
                accepted.sendall(whole[:end])
            assert await asked == {"lag": [({"topic": "a", "node": "1"}, 1.0)]}


def test_what_is_of_the_whole_cluster_adds_up_over_its_nodes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {"metrics.listen": f"127.0.0.1:{port}", "metrics.names": "kafka_exporter,jmx"}
    with start_broker(workers=2, settings=settings) as broker:
        broker.topic(partitions=5)
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            told = [
                (sample.name, sample.labels["node"], sample.value)
                for family in text_string_to_metric_families(answer.read().decode())
                for sample in family.samples
            ]
    assert [(node, value) for name, node, value in told if name == "kafka_brokers"] == [("1", 2)]

    def total(suffix: str) -> float:
        return sum(value for name, _, value in told if name.endswith(suffix))

    assert total("kafka_topic_partitions") == 5 + 2 * 50
    assert total("_activecontrollercount") == 1
    # Those of the topic, and of the two coordinators' topics.
    assert total("_leadercount") == total("_partitioncount") == 5 + 2 * 50
