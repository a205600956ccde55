"""Clients over TLS and SASL, with good and bad credentials, on magnetar and Apache Kafka alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AIOKafkaError
from aiokafka.helpers import create_ssl_context
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from compat_tests import tool_box
from compat_tests.brokers import Broker
from compat_tests.secured import (
    PASSWORDS,
    Certificates,
    Login,
    login_id,
    secured_brokers,
    write_certificates,
)
from compat_tests.waiting import eventually

TIMEOUT_S = 30.0
SCRAM_PASSWORD = "pw of eve"
GOOD = [
    Login("SASL_PLAINTEXT", "PLAIN", "ada", PASSWORDS["ada"]),
    Login("SASL_PLAINTEXT", "SCRAM-SHA-256", "eve", SCRAM_PASSWORD),
    Login("SASL_PLAINTEXT", "SCRAM-SHA-512", "eve", SCRAM_PASSWORD),
    Login("SASL_SSL", "PLAIN", "bob", PASSWORDS["bob"]),
    Login("SASL_SSL", "SCRAM-SHA-512", "eve", SCRAM_PASSWORD),
    Login("SSL"),
    Login("SSL", user="ada"),
]
BAD = [
    Login("SASL_PLAINTEXT", "PLAIN", "ada", "wrong"),
    Login("SASL_PLAINTEXT", "PLAIN", "stranger", "pw of ada"),
    Login("SASL_PLAINTEXT", "SCRAM-SHA-256", "eve", "wrong"),
    Login("SASL_PLAINTEXT", "SCRAM-SHA-512", "stranger", SCRAM_PASSWORD),
    Login("SASL_SSL", "SCRAM-SHA-256", "eve", "wrong"),
]


def make_users(broker: Broker) -> None:
    """Make eve, with both mechanisms, and let everyone describe the cluster."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        # One at a time: a user that is named twice in one request is refused.
        change = UserScramCredentialUpsertion(
            "eve", ScramCredentialInfo(mechanism, 4096), SCRAM_PASSWORD.encode()
        )
        for result in admin.alter_user_scram_credentials([change]).values():
            result.result(TIMEOUT_S)
    allow(admin, "User:*", ResourceType.BROKER, "kafka-cluster", AclOperation.ALL)


brokers = secured_brokers(make_users)


def allow(
    admin: AdminClient, principal: str, resource: ResourceType, name: str, operation: AclOperation
) -> None:
    acl = AclBinding(
        resource,
        name,
        ResourcePatternType.LITERAL,
        principal,
        "*",
        operation,
        AclPermissionType.ALLOW,
    )
    for result in admin.create_acls([acl]).values():
        result.result(TIMEOUT_S)


def node_count(broker: Broker, login: Login, certificates: Certificates) -> int:
    """Return how many nodes librdkafka sees. Raises KafkaException."""
    client = AdminClient(login.for_librdkafka(broker, certificates))
    return len(client.list_topics(timeout=TIMEOUT_S).brokers)


@pytest.mark.parametrize("login", GOOD, ids=login_id)
def test_librdkafka_is_let_in(secured: Broker, certificates: Certificates, login: Login) -> None:
    # Kafka's nodes learn of new users a moment after the answer.
    eventually(lambda: node_count(secured, login, certificates) == secured.node_count)


@pytest.mark.parametrize("login", BAD, ids=login_id)
def test_librdkafka_is_refused_and_told_why(
    secured: Broker, certificates: Certificates, login: Login
) -> None:
    told: list[str] = []
    settings = login.for_librdkafka(secured, certificates)
    client = Producer({**settings, "error_cb": lambda error: told.append(str(error))})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=2.0)

    def is_told() -> bool:
        client.poll(0.1)
        return any("_AUTHENTICATION" in each for each in told)

    eventually(is_told)


@pytest.mark.parametrize("login", GOOD, ids=login_id)
def test_kafka_python_is_let_in(secured: Broker, certificates: Certificates, login: Login) -> None:
    settings = login.for_kafka_python(secured, certificates)
    client = KafkaAdminClient(**settings)
    assert len(client.describe_cluster()["brokers"]) == secured.node_count
    client.close()


@pytest.mark.parametrize("login", BAD, ids=login_id)
def test_kafka_python_is_refused(secured: Broker, certificates: Certificates, login: Login) -> None:
    settings = login.for_kafka_python(secured, certificates)
    with pytest.raises(KafkaError):
        KafkaAdminClient(**settings, bootstrap_timeout_ms=2_000)


@pytest.mark.parametrize("login", [*GOOD, BAD[0], BAD[2]], ids=login_id)
async def test_aiokafka_is_let_in_or_refused(
    secured: Broker, certificates: Certificates, login: Login
) -> None:
    settings = login.for_kafka_python(secured, certificates)
    cafile, certfile = settings.pop("ssl_cafile", None), settings.pop("ssl_certfile", None)
    settings.pop("ssl_keyfile", None)
    if cafile:
        settings["ssl_context"] = create_ssl_context(cafile=cafile, certfile=certfile)
    client = AIOKafkaProducer(**settings, request_timeout_ms=30_000)
    if login in BAD:
        with pytest.raises(AIOKafkaError):
            await client.start()
    else:
        await client.start()
    await client.stop()


@pytest.mark.parametrize("login", [*GOOD, BAD[0], BAD[2]], ids=login_id)
def test_kafkas_own_tools_are_let_in_or_refused(
    secured: Broker, certificates: Certificates, login: Login, tmp_path: Path
) -> None:
    arguments = login.for_java(secured, certificates, tmp_path)
    ended = tool_box.call("TopicCommand", *arguments, "--list")
    assert (ended.status == 0) == (login in GOOD), ended
    if login in BAD:
        assert "Authentication failed" in ended.output + ended.errors


def test_kafkas_own_tools_are_told_that_their_certificate_is_refused(
    secured: Broker, certificates: Certificates, tmp_path: Path
) -> None:
    stranger = certificates._replace(client=write_certificates(tmp_path).client)
    arguments = Login("SSL", user="ada").for_java(secured, stranger, tmp_path)
    ended = tool_box.call("TopicCommand", *arguments, "--list")
    assert ended.status != 0
    # Not a connection that ends, which a client tries again until its time is over.
    assert "handshake" in ended.output


def test_a_client_is_who_its_certificate_or_its_login_says(
    secured: Broker, certificates: Certificates, tmp_path: Path
) -> None:
    topic = f"of-ada-{tmp_path.name}"
    admin = AdminClient({"bootstrap.servers": secured.bootstrap})
    allow(admin, "User:ada", ResourceType.TOPIC, topic, AclOperation.ALL)
    ada = Login("SSL", user="ada").for_librdkafka(secured, certificates)
    bob = Login("SASL_PLAINTEXT", "PLAIN", "bob", PASSWORDS["bob"]).for_librdkafka(
        secured, certificates
    )
    eventually(lambda: delivered(ada, topic) == "")
    assert "TOPIC_AUTHORIZATION_FAILED" in delivered(bob, topic)


def delivered(settings: dict[str, object], topic: str) -> str:
    """Return the error of one message; empty where it arrived."""
    errors: list[str] = []
    client = Producer({**settings, "message.timeout.ms": int(1000 * TIMEOUT_S)})
    client.produce(topic, b"x", on_delivery=lambda error, _: errors.append(str(error or "")))
    client.flush(2 * TIMEOUT_S)
    return errors[0]
