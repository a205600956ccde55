"""Brokers with listeners for every security protocol, and the settings of clients for them.

PLAINTEXT stays open: the tests administer by it, as User:ANONYMOUS, a super user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from compat_tests.brokers import LONG_LIVED, Broker, make_broker, started_when_asked
from magnetar.testing.certificates import COMMON_NAME, ORGANIZATION, KeyPair, make, named

PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
#: Users of PLAIN. Those of SCRAM are made by the tests.
PASSWORDS = {"ada": "pw of ada", "bob": "pw of bob"}
_PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


class Certificates(NamedTuple):
    """The authority, and files of what it signed: key and certificate in one PEM each."""

    authority: Path
    server: Path
    client: Path
    signer: KeyPair

    def of_server(self, name: str, directory: Path) -> Path:
        """Write another certificate of a server at 127.0.0.1, with its key."""
        pair = make(named((COMMON_NAME, name)), self.signer)
        return pair.write_pem(directory / f"{pair.certificate.serial_number}.pem")


def write_certificates(directory: Path) -> Certificates:
    """Make an authority, a server at 127.0.0.1, and a client named O=tests,CN=ada."""
    authority = make(named((COMMON_NAME, "authority")))
    server = make(named((COMMON_NAME, "server")), authority)
    client = make(named((ORGANIZATION, "tests"), (COMMON_NAME, "ada")), authority)
    return Certificates(
        _write(directory / "authority.pem", authority.certificate_pem),
        server.write_pem(directory / "server.pem"),
        client.write_pem(directory / "client.pem"),
        authority,
    )


def _write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return write_certificates(tmp_path_factory.mktemp("certificates"))


def secured_brokers(
    prepare: Callable[[Broker], None], settings: dict[str, str] | None = None
) -> Any:
    """Return a fixture for the secured brokers of a module, by kind.

    A broker is started, and prepared, when a test asks for it first.
    """

    @pytest.fixture(scope="module")
    def brokers(
        tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
    ) -> Iterator[Callable[[str], Broker]]:
        def make(kind: str) -> Broker:
            directory = tmp_path_factory.mktemp(kind)
            lives_long = {**LONG_LIVED.get(kind, {}), **(settings or {})}
            return secured_broker(kind, directory, certificates, lives_long)

        with started_when_asked(make, prepare) as get:
            yield get

    return brokers


@pytest.fixture
def secured(broker_kind: str, brokers: Callable[[str], Broker]) -> Broker:
    """The module's secured broker of a kind; the module has `brokers = secured_brokers(...)`."""
    return brokers(broker_kind)


def secured_broker(
    kind: str, directory: Path, certificates: Certificates, settings: dict[str, str] | None = None
) -> Broker:
    """Return a broker that listens for every protocol, not yet started."""
    users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
    security = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.server),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.authority),
        "ssl.client.auth": "requested",
        "ssl.principal.mapping.rules": "RULE:^CN=([a-z]+),.*$/$1/,DEFAULT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:ANONYMOUS",
    }
    for listener in ("sasl_plaintext", "sasl_ssl"):
        prefix = f"listener.name.{listener}"
        security[f"{prefix}.plain.sasl.jaas.config"] = f"{_PLAIN_MODULE} required {users};"
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            security[f"{prefix}.{mechanism}.sasl.jaas.config"] = f"{_SCRAM_MODULE} required;"
    return make_broker(kind, directory, {**security, **(settings or {})}, PROTOCOLS)


def login_id(login: Login) -> str:
    """Return the name of a login among the parameters of a test."""
    return "-".join(filter(None, (login.protocol, login.mechanism, login.user, login.password[:5])))


class Login(NamedTuple):
    """How a client connects: a protocol, and with SASL a mechanism, a user and a password."""

    protocol: str
    mechanism: str = ""
    user: str = ""
    password: str = ""
    #: Of SCRAM with Java's clients: the user is a delegation token's id, the password its HMAC.
    is_token: bool = False

    def for_librdkafka(self, broker: Broker, certificates: Certificates) -> dict[str, Any]:
        """Return the settings of a client of confluent-kafka."""
        settings: dict[str, Any] = {
            "bootstrap.servers": broker.address(self.protocol),
            "security.protocol": self.protocol,
            "log_level": 0,
        }
        if self.protocol.endswith("SSL"):
            settings["ssl.ca.location"] = str(certificates.authority)
        if self.mechanism:
            settings["sasl.mechanism"] = self.mechanism
            settings["sasl.username"] = self.user
            settings["sasl.password"] = self.password
        elif self.user:
            settings["ssl.certificate.location"] = str(certificates.client)
            settings["ssl.key.location"] = str(certificates.client)
        return settings

    def for_kafka_python(self, broker: Broker, certificates: Certificates) -> dict[str, Any]:
        """Return the settings of a client of kafka-python."""
        settings: dict[str, Any] = {
            "bootstrap_servers": broker.address(self.protocol),
            "security_protocol": self.protocol,
        }
        if self.protocol.endswith("SSL"):
            settings["ssl_cafile"] = str(certificates.authority)
        if self.mechanism:
            settings["sasl_mechanism"] = self.mechanism
            settings["sasl_plain_username"] = self.user
            settings["sasl_plain_password"] = self.password
        elif self.user:
            settings["ssl_certfile"] = settings["ssl_keyfile"] = str(certificates.client)
        return settings

    def for_java(self, broker: Broker, certificates: Certificates, directory: Path) -> list[str]:
        """Return the arguments of Kafka's tools: where to connect, and a file with the rest."""
        lines = {"security.protocol": self.protocol}
        if self.protocol.endswith("SSL"):
            lines["ssl.truststore.type"] = "PEM"
            lines["ssl.truststore.location"] = str(certificates.authority)
        if self.mechanism:
            module = _PLAIN_MODULE if self.mechanism == "PLAIN" else _SCRAM_MODULE
            lines["sasl.mechanism"] = self.mechanism
            by_token = ' tokenauth="true"' if self.is_token else ""
            lines["sasl.jaas.config"] = (
                f'{module} required username="{self.user}" password="{self.password}"{by_token};'
            )
        elif self.user:
            lines["ssl.keystore.type"] = "PEM"
            lines["ssl.keystore.location"] = str(certificates.client)
        path = directory / "client.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        return [
            *("--bootstrap-server", broker.address(self.protocol)),
            *("--command-config", str(path)),
        ]
