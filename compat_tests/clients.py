"""The list of clients that every shared test runs with."""

from __future__ import annotations

from compat_tests.aiokafka_client import AioKafkaClient
from compat_tests.client import Client
from compat_tests.confluent_client import ConfluentClient
from compat_tests.java import JavaClient
from compat_tests.kafka_python_client import KafkaPythonClient

CONFLUENT = ConfluentClient()
KAFKA_PYTHON = KafkaPythonClient()
AIOKAFKA = AioKafkaClient()
JAVA = JavaClient()

PYTHON_CLIENTS: tuple[Client, ...] = (CONFLUENT, KAFKA_PYTHON, AIOKAFKA)
CLIENTS: tuple[Client, ...] = (*PYTHON_CLIENTS, JAVA)


def client_name(client: Client) -> str:
    return client.name
