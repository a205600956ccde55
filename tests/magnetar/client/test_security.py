"""Settings of security by Kafka's names, and connections that come or do not come to be by them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.client import Client, ClientError, NotLetIn, Unreachable
from magnetar.client.security import (
    PLAINTEXT,
    BadSettings,
    parse_security,
    read_properties,
)
from magnetar.testing import BrokerProcess, allow, start_broker
from magnetar.testing.certificates import COMMON_NAME, make, named

LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.username": "ada", "sasl.password": "pw"}


def test_without_settings_it_is_plain_text() -> None:
    assert parse_security({"acks": "all"}) == PLAINTEXT
    assert PLAINTEXT.for_librdkafka() == {"security.protocol": "PLAINTEXT"}


def test_java_and_librdkafka_name_the_same_things() -> None:
    javas = parse_security(
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": 'org.X required username="ada" password="p;w";',
            "ssl.truststore.location": "authority.pem",
            "ssl.truststore.type": "PEM",
            "ssl.keystore.location": "client.pem",
            "ssl.endpoint.identification.algorithm": "",
        }
    )
    librdkafkas = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "ada",
        "sasl.password": "p;w",
        "ssl.ca.location": "authority.pem",
        "ssl.certificate.location": "client.pem",
        "ssl.key.location": "client.pem",
        "ssl.endpoint.identification.algorithm": "none",
    }
    assert javas.for_librdkafka() == librdkafkas
    assert parse_security(librdkafkas) == javas


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"security.protocol": "TLS"}, "there are PLAINTEXT, SSL"),
        (LOGIN, "sasl.mechanism is missing"),
        ({**LOGIN, "sasl.mechanism": "GSSAPI"}, "sasl.mechanism is GSSAPI: there are PLAIN"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "needs sasl.username"),
        ({**LOGIN, "sasl.mechanism": "PLAIN", "sasl.jaas.config": "x"}, "is no JAAS entry"),
        ({"ssl.truststore.location": "trust.jks"}, "reads PEM alone"),
        ({"ssl.keystore.location": "x", "ssl.keystore.type": "PKCS12"}, "reads PEM alone"),
        ({"ssl.keystore.key": "x"}, "ssl.keystore.key is not served"),
        (
            {
                **LOGIN,
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.jaas.config": 'a.ScramLoginModule required username="id" tokenauth="true";',
            },
            "tokenauth is not served",
        ),
    ],
)
def test_a_setting_that_cannot_be_followed_is_named(
    settings: dict[str, str], complaint: str
) -> None:
    with pytest.raises(BadSettings, match=complaint):
        parse_security(settings)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="cannot read"):
        read_properties(tmp_path / "missing")
    with pytest.raises(BadSettings, match="cannot read"):
        _ = parse_security({"ssl.ca.location": str(tmp_path / "missing")}).context()
    (tmp_path / "noise").write_text("noise")
    with pytest.raises(BadSettings, match="not PEM"):
        _ = parse_security({"ssl.ca.location": str(tmp_path / "noise")}).context()


@pytest.fixture(scope="module")
def secured() -> Iterator[BrokerProcess]:
    acls = [allow("ada", "DESCRIBE", topic="*")]
    settings = {"connections.max.reauth.ms": "1500"}
    with start_broker(settings=settings, tls=True, users={"ada": "pw"}, acls=acls) as broker:
        yield broker


def connected(broker: BrokerProcess, **changes: str) -> Client:
    settings = broker.confluent_settings()
    settings |= {name.replace("_", "."): value for name, value in changes.items()}
    return Client(broker.bootstrap_servers, 5.0, security=parse_security(settings))


def test_a_client_with_the_right_settings_is_let_in(secured: BrokerProcess) -> None:
    with connected(secured) as client:
        assert client.node_ids


def test_a_login_is_renewed_before_it_ends(secured: BrokerProcess) -> None:
    with connected(secured) as client:
        deadline = time.monotonic() + 4
        # The broker closes a connection whose session has ended at its next request.
        while time.monotonic() < deadline:
            client.metadata([])
            time.sleep(0.1)


def test_a_wrong_password_is_said(secured: BrokerProcess) -> None:
    with pytest.raises(NotLetIn, match="refused the login of 'ada' by PLAIN: Authentication"):
        connected(secured, sasl_password="wrong")


def test_a_mechanism_that_is_not_served_is_said_with_those_that_are(secured: BrokerProcess) -> None:
    with pytest.raises(NotLetIn, match="does not serve sasl.mechanism SCRAM-SHA-256.*PLAIN"):
        connected(secured, sasl_mechanism="SCRAM-SHA-256")


def test_an_unknown_authority_is_said(secured: BrokerProcess, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.pem"
    stranger.write_text(make(named((COMMON_NAME, "stranger"))).certificate_pem)
    with pytest.raises(NotLetIn, match=r"is not trusted: .*ssl\.truststore\.location"):
        connected(secured, ssl_ca_location=str(stranger))


def test_another_name_than_the_certificates_is_said(secured: BrokerProcess) -> None:
    security = parse_security(secured.confluent_settings())
    with pytest.raises(NotLetIn, match="identification"):
        Client(f"127.1:{secured.port}", 5.0, security=security)


def test_plain_text_on_a_port_with_tls_is_said(secured: BrokerProcess) -> None:
    with pytest.raises(ClientError, match=r"speak PLAINTEXT|answers in TLS"):
        Client(secured.bootstrap_servers, 5.0)


def test_tls_and_sasl_on_a_plain_port_are_said() -> None:
    with start_broker() as broker:
        with pytest.raises(NotLetIn, match="does not speak TLS"):
            Client(broker.bootstrap_servers, security=parse_security({"security.protocol": "SSL"}))
        login = parse_security({**LOGIN, "sasl.mechanism": "PLAIN"})
        with pytest.raises((NotLetIn, Unreachable), match=r"has no SASL|closed"):
            Client(broker.bootstrap_servers, security=login)
