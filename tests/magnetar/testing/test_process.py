"""What users' tests start: brokers with and without a directory, and the pytest fixture."""

from __future__ import annotations

import socket
import sys
import warnings
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient

from magnetar.client import Client
from magnetar.client.configs import Resource, describe_configs
from magnetar.spark import register
from magnetar.testing import BrokerProcess, NotReady, allow, start_broker
from magnetar.testing.process import _bound, _free_ports
from wire.resource_type import ResourceType


def test_without_a_directory_the_data_goes_with_the_broker() -> None:
    with start_broker() as broker:
        assert broker.data_dir.is_dir()
        broker.kill()
        broker.start()
    assert not broker.data_dir.exists()


@pytest.mark.parametrize(
    ("host", "workers"), [("127.0.0.1", 1), ("127.0.0.1", 2), ("[::1]", 1), ("[::1]", 2)]
)
def test_no_other_program_gets_the_ports_of_a_broker_that_is_down(host: str, workers: int) -> None:
    """The kernel gives free ports to clients, too, and a restart needs its own ones."""
    family, address = socket.AF_INET6 if ":" in host else socket.AF_INET, host.strip("[]")
    with start_broker(host=host, workers=workers) as broker:
        ports = range(broker.port, broker.port + workers)
        broker.kill()
        for port in ports:
            with socket.socket(family) as other, pytest.raises(OSError, match="in use"):
                other.bind((address, port))
        broker.start()
        assert broker.port == ports[0]
    for port in ports:
        with socket.socket(family) as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind((address, port))


def test_a_cluster_gets_no_port_that_is_held_for_a_broker_that_is_down() -> None:
    with ExitStack() as held, ExitStack() as others:
        port = _free_ports("127.0.0.1", 1, held)
        with pytest.raises(OSError, match="in use"):
            _bound("127.0.0.1", port, others)


@pytest.mark.parametrize("host", ["[::1]", "localhost"])
def test_a_broker_may_be_at_any_name_of_this_machine(host: str) -> None:
    with start_broker(host=host) as broker:
        socket.create_connection((host.strip("[]"), broker.port)).close()


def test_a_broker_that_cannot_start_says_why() -> None:
    broker = start_broker(settings={"num.partitions": "x"})
    with pytest.raises(NotReady, match=r"num\.partitions=x is not a whole number"), broker:
        pass
    assert not broker.data_dir.exists()


def test_a_start_that_hangs_is_ended_and_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broker = BrokerProcess(start_timeout_s=0.2)
    silent = tmp_path / "python"
    # In the interpreter's place, a program that says nothing for longer than anyone waits.
    silent.write_text("#!/bin/sh\nexec sleep 600\n")
    silent.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(silent))
    with pytest.raises(NotReady, match=r"not ready within 0\.2 s"), broker:
        pass


ACLS = [
    allow("ada", "WRITE", "READ", topic="orders"),
    allow("ada", "CREATE", cluster="kafka-cluster"),
    allow("bob", "DESCRIBE", topic="*"),
]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_tls_users_and_acls_are_an_argument_each(mechanism: str) -> None:
    users = {"ada": 'pw; of "ada"', "bob": "pw of bob"}
    with start_broker(tls=True, users=users, acls=ACLS, mechanism=mechanism) as broker:
        producer = Producer(broker.confluent_settings("ada"))
        producer.produce("orders", b"first")
        assert producer.flush(20) == 0
        refused: list[KafkaError | None] = []
        theirs = Producer(broker.confluent_settings("bob"))
        theirs.produce("orders", b"second", on_delivery=lambda error, _: refused.append(error))
        theirs.flush(20)
        assert [error and error.name() for error in refused] == ["TOPIC_AUTHORIZATION_FAILED"]
        broker.kill()
        broker.start()
        shown = AdminClient(broker.confluent_settings("bob")).list_topics(timeout=20)
        assert shown.topics.keys() == {"orders"}
    javas = broker.client_settings("ada")
    assert javas["security.protocol"] == "SASL_SSL"
    assert 'username="ada"' in javas["sasl.jaas.config"]
    assert broker.kafka_python_settings("ada")["sasl_plain_password"] == users["ada"]


def test_acls_without_users_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="acls= needs users="):
        start_broker(acls=ACLS)


def test_certificates_without_their_library_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.delitem(sys.modules, "magnetar.testing.certificates", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'magnetar\[security\]'"):
        start_broker(tls=True)


@pytest.mark.parametrize(
    ("name", "library", "extra"),
    [
        ("magnetar.testing.tokens", "jwt", "security"),
        ("magnetar.testing.containers", "testcontainers", "containers"),
        ("magnetar.spark.data_source", "pyspark", "spark"),
    ],
)
def test_what_needs_an_extra_names_it(
    name: str, library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in [each for each in sys.modules if each.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, each)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ModuleNotFoundError, match=rf"needs {library}.*'magnetar\[{extra}\]'"):
        if extra == "spark":
            register(None)  # type: ignore[arg-type]  # it is not reached
        else:
            import_module(name)


def test_numbers_and_booleans_are_values_of_settings() -> None:
    settings = {"num.partitions": 3, "log.cleaner.min.cleanable.ratio": 0.25}
    with start_broker(settings={**settings, "auto.create.topics.enable": True}) as broker:
        admin = AdminClient(broker.confluent_settings())
        shown = admin.list_topics("made-by-use", timeout=20).topics["made-by-use"]
        assert len(shown.partitions) == 3


def test_numbers_and_booleans_are_values_of_a_topics_settings_too() -> None:
    with start_broker() as broker:
        topic = broker.topic(configs={"retention.ms": 60_000, "preallocate": False})
        with Client(broker.bootstrap_servers) as client:
            ((_, entries),) = describe_configs(client, [Resource(ResourceType.TOPIC, topic)])
        assert [each.value for each in entries if each.name == "retention.ms"] == ["60000"]
        with pytest.raises(TypeError, match=r"setting retention\.ms is None"):
            broker.topic(configs={"retention.ms": None})  # type: ignore[dict-item]  # as meant


async def test_aiokafka_logs_in_over_tls_with_its_own_settings() -> None:
    with start_broker(tls=True, users={"ada": "secret"}, mechanism="SCRAM-SHA-256") as broker:
        topic = broker.topic()
        async with AIOKafkaProducer(**broker.aiokafka_settings("ada")) as producer:
            await producer.send_and_wait(topic, b"x")
        assert broker.values(topic) == [b"x"]
    assert start_broker().aiokafka_settings().keys() == {"bootstrap_servers", "security_protocol"}


def test_a_broker_has_one_node_at_least() -> None:
    with pytest.raises(ValueError, match="workers=0: a broker has one node at least"):
        start_broker(workers=0)


@pytest.mark.parametrize("value", [None, ["PLAINTEXT"]])
def test_what_is_no_value_is_told_with_the_settings_name(value: Any) -> None:
    with pytest.raises(TypeError, match=r"setting num\.partitions is .*: give text, a number"):
        start_broker(settings={"num.partitions": value})


def test_a_mistyped_setting_is_a_warning() -> None:
    with (
        pytest.warns(UserWarning, match="num.partitons is not a setting .* Did you mean num.part"),
        start_broker(settings={"num.partitons": "4"}) as broker,
    ):
        broker.kill()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            broker.start()
