"""Every client's records arrive: in order, whole, once, in every mode and codec."""

from __future__ import annotations

import pytest

from compat_tests.brokers import Broker
from compat_tests.client import CODECS, MODES, Client, Codec, Mode
from compat_tests.clients import CLIENTS, CONFLUENT, PYTHON_CLIENTS, client_name
from compat_tests.conftest import MakeTopic

PAIRS = [(f"key-{n}".encode(), f"value-{n}".encode() * (n % 7 + 1)) for n in range(60)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("client", PYTHON_CLIENTS, ids=client_name)
def test_a_client_reads_what_it_wrote(
    broker: Broker, topic: MakeTopic, client: Client, mode: Mode
) -> None:
    orders = topic("orders")
    client.produce(broker.bootstrap, orders, PAIRS, mode=mode)
    found = client.consume(broker.bootstrap, orders)
    assert [(key, value) for _, key, value in found] == PAIRS
    assert [read.offset for read in found] == list(range(len(PAIRS)))


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("client", PYTHON_CLIENTS, ids=client_name)
def test_every_codec_of_every_client_is_read_by_another(
    broker: Broker, topic: MakeTopic, client: Client, codec: Codec
) -> None:
    orders = topic("orders", compression_type="producer")
    client.produce(broker.bootstrap, orders, PAIRS, mode="idempotent", codec=codec)
    reader = PYTHON_CLIENTS[(PYTHON_CLIENTS.index(client) + 1) % len(PYTHON_CLIENTS)]
    assert [(key, value) for _, key, value in reader.consume(broker.bootstrap, orders)] == PAIRS


@pytest.mark.parametrize("reader", CLIENTS, ids=client_name)
def test_each_client_reads_what_each_other_wrote(
    broker: Broker, topic: MakeTopic, reader: Client
) -> None:
    orders = topic("orders")
    expected = []
    for writer in CLIENTS:
        pairs = [(writer.name.encode(), f"{writer.name}-{n}".encode()) for n in range(5)]
        writer.produce(broker.bootstrap, orders, pairs, mode="idempotent")
        expected += pairs
    assert [(key, value) for _, key, value in reader.consume(broker.bootstrap, orders)] == expected


@pytest.mark.parametrize("codec", CODECS)
def test_java_writes_in_every_codec(broker: Broker, topic: MakeTopic, codec: Codec) -> None:
    orders = topic("orders")
    java = CLIENTS[-1]
    java.produce(broker.bootstrap, orders, PAIRS[:20], mode="idempotent", codec=codec)
    found = CONFLUENT.consume(broker.bootstrap, orders)
    assert [(key, value) for _, key, value in found] == PAIRS[:20]


@pytest.mark.parametrize("client", PYTHON_CLIENTS, ids=client_name)
def test_null_and_empty_keys_and_values_stay_apart(
    broker: Broker, topic: MakeTopic, client: Client
) -> None:
    pairs = [(None, b"v"), (b"k", None), (b"", b"v"), (b"k", b"")]
    tombstones = topic("tombstones")
    client.produce(broker.bootstrap, tombstones, pairs)
    found = client.consume(broker.bootstrap, tombstones)
    assert [(key, value) for _, key, value in found] == pairs
