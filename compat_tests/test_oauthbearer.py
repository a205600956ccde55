"""Logins by token (OAUTHBEARER), good and bad, on magnetar and Apache Kafka with one configuration.

Kafka's JVMs must be told which addresses they may read, by a property of the system; magnetar has
no such list.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AIOTokenProvider
from aiokafka.errors import KafkaError as AIOKafkaError
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka.errors import KafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from compat_tests.brokers import (
    Broker,
    KafkaBroker,
    make_broker,
    quick_start,
    started_when_asked,
)
from compat_tests.java import fast_start
from compat_tests.raw import Closed, Connection
from compat_tests.token_server import AUDIENCE, CLIENT, ISSUER, LASTS_S, SECRET, TokenServer
from compat_tests.waiting import eventually
from magnetar.client import Client
from magnetar.client.security import parse_security
from tools.reference_kafka import java_command

TIMEOUT_S = 60.0
PROTOCOL = "SASL_PLAINTEXT"
AUTHENTICATION_FAILED = 58
STATUS = b'{"status":"invalid_token"}'
PACKAGE = "org.apache.kafka.common.security.oauthbearer"
ALLOWED = "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls"
MakeToken = Callable[[TokenServer], str]
GOOD: dict[str, MakeToken] = {
    "usual": lambda issuer: issuer.token(),
    "one-of-several-audiences": lambda issuer: issuer.token(aud=["x", AUDIENCE]),
    "scopes": lambda issuer: issuer.token(scope=["a", "b"]),
    "no-scope": lambda issuer: issuer.token(scope=None),
    "within-the-clock-skew": lambda issuer: issuer.token(exp=_now_s() - 5, iat=_now_s() - 60),
}
BAD: dict[str, MakeToken] = {
    "expired": lambda issuer: issuer.token(exp=_now_s() - 60, iat=_now_s() - 90),
    "forged": lambda issuer: issuer.token(forged=True),
    "unknown-key": lambda issuer: issuer.token(forged=True, key_id="b"),
    "unsigned": lambda issuer: issuer.unsigned_token(),
    "hmac-by-the-public-key": lambda issuer: issuer.token_by_public_key(),
    "other-audience": lambda issuer: issuer.token(aud="other"),
    "no-audience": lambda issuer: issuer.token(aud=None),
    "other-issuer": lambda issuer: issuer.token(iss="https://other.test"),
    "no-user": lambda issuer: issuer.token(sub=None),
    "user-is-no-text": lambda issuer: issuer.token(sub=" "),
    "never-expires": lambda issuer: issuer.token(exp=None),
    "never-issued": lambda issuer: issuer.token(iat=None),
    "not-yet": lambda issuer: issuer.token(nbf=_now_s() + 90),
    "scope-twice": lambda issuer: issuer.token(scope=["a", "a"]),
    "no-token": lambda issuer: "a.b.c",
}


def _now_s() -> int:
    return int(time.time())


@pytest.fixture(scope="module")
def issuer() -> Iterator[TokenServer]:
    server = TokenServer()
    yield server
    server.stop()


def providers(secrets: Path) -> dict[str, str]:
    """Return what has `${dir:PATH:FILE}` stand for a file among the secrets."""
    kind = "org.apache.kafka.common.config.provider.DirectoryConfigProvider"
    return {
        "config.providers": "dir",
        "config.providers.dir.class": kind,
        "config.providers.dir.param.allowed.paths": str(secrets),
    }


def settings_for(issuer: TokenServer, secrets: Path) -> dict[str, str]:
    """Return what both brokers are started with."""
    (secrets / "issuer").write_text(ISSUER)
    mechanism = f"listener.name.{PROTOCOL.lower()}.oauthbearer"
    return {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{mechanism}.sasl.server.callback.handler.class": (
            f"{PACKAGE}.OAuthBearerValidatorCallbackHandler"
        ),
        f"{mechanism}.sasl.jaas.config": f"{PACKAGE}.OAuthBearerLoginModule required;",
        "sasl.oauthbearer.jwks.endpoint.url": f"{issuer.base}/jwks",
        "sasl.oauthbearer.expected.audience": f"x-{AUDIENCE},{AUDIENCE}",
        f"{mechanism}.sasl.oauthbearer.expected.issuer": f"${{dir:{secrets}:issuer}}",
        **providers(secrets),
    }


@pytest.fixture(scope="module")
def brokers(
    tmp_path_factory: pytest.TempPathFactory, issuer: TokenServer
) -> Iterator[Callable[[str], Broker]]:
    """Return the module's broker of a kind, started at first."""

    def make(kind: str) -> Broker:
        directory = tmp_path_factory.mktemp(kind)
        settings = settings_for(issuer, tmp_path_factory.mktemp("secrets"))
        if kind == "magnetar":
            return make_broker(kind, directory, settings, [PROTOCOL])
        options = (*quick_start(), f"{ALLOWED}={issuer.base}/jwks")
        return KafkaBroker(directory, settings, [PROTOCOL], options)

    with started_when_asked(make) as get:
        yield get


@pytest.fixture
def secured(broker_kind: str, brokers: Callable[[str], Broker]) -> Broker:
    return brokers(broker_kind)


class Answers:
    """One login as bytes, and what the broker says to it."""

    def __init__(self, broker: Broker) -> None:
        self.connection = Connection(broker.address(PROTOCOL))
        handshake = SaslHandshakeRequest(version=1, mechanism="OAUTHBEARER")
        answer = self.connection.call(handshake, SaslHandshakeResponse)
        assert (answer.error_code, answer.mechanisms) == (0, ["OAUTHBEARER"])

    def to(self, token: bytes) -> Any:
        request = SaslAuthenticateRequest(version=2, auth_bytes=token)
        return self.connection.call(request, SaslAuthenticateResponse)


def first(token: str, header: str = "n,,") -> bytes:
    return f"{header}\x01auth=Bearer {token}\x01\x01".encode()


@pytest.mark.parametrize("make", GOOD.values(), ids=GOOD)
def test_a_good_token_lets_in_until_it_expires(
    secured: Broker, issuer: TokenServer, make: MakeToken
) -> None:
    answer = Answers(secured).to(first(make(issuer)))
    assert (answer.error_code, answer.auth_bytes) == (0, b"")
    assert 0 <= answer.session_lifetime_ms <= LASTS_S * 1000


@pytest.mark.parametrize("make", BAD.values(), ids=BAD)
def test_a_bad_token_is_told_its_status_and_refused_when_that_is_acknowledged(
    secured: Broker, issuer: TokenServer, make: MakeToken
) -> None:
    answers = Answers(secured)
    told = answers.to(first(make(issuer)))
    assert (told.error_code, told.auth_bytes) == (0, STATUS)
    refused = answers.to(b"\x01")
    assert refused.error_code == AUTHENTICATION_FAILED
    assert refused.error_message == STATUS.decode()
    with pytest.raises(Closed):
        answers.connection.receive_frame()


@pytest.mark.parametrize(
    "message",
    [b"\x01", b"", b"n,,\x01\x01", b"y,,\x01auth=Bearer a\x01\x01"],
)
def test_what_is_no_first_message_is_refused_in_the_words_of_every_mechanism(
    secured: Broker, message: bytes
) -> None:
    refused = Answers(secured).to(message)
    assert refused.error_code == AUTHENTICATION_FAILED
    assert "invalid credentials with SASL mechanism OAUTHBEARER" in refused.error_message


def test_after_a_bad_token_no_answer_carries_data(secured: Broker, issuer: TokenServer) -> None:
    answers = Answers(secured)
    answers.to(first(issuer.token(forged=True)))
    try:
        found = answers.connection.call(MetadataRequest(version=1, topics=None), MetadataResponse)
    except Closed:
        return
    # Kafka answers in the request's form, without anything in it, and closes then.
    assert (found.brokers, found.topics) == ([], [])


def test_a_client_may_name_the_user_of_its_token_and_no_other(
    secured: Broker, issuer: TokenServer
) -> None:
    token = issuer.token()
    assert Answers(secured).to(first(token, f"n,a={CLIENT},")).error_code == 0
    assert Answers(secured).to(first(token, "n,a=eve,")).error_code == AUTHENTICATION_FAILED


def test_a_session_ends_with_its_token_and_is_renewed_before_that_by_a_new_one(
    secured: Broker, issuer: TokenServer, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    security = parse_security(
        {
            "security.protocol": PROTOCOL,
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": path.as_uri(),
        }
    )
    path.write_text(issuer.token(exp=_now_s() + 6))
    with Client(secured.address(PROTOCOL), TIMEOUT_S, security=security) as client:
        path.write_text(issuer.token())
        deadline = time.monotonic() + 7
        # A session that has ended is closed at its next request.
        while time.monotonic() < deadline:
            client.metadata([])
            time.sleep(0.2)  # The first token expires meanwhile.


def librdkafka(broker: Broker, **more: Any) -> AdminClient:
    settings = {
        "bootstrap.servers": broker.address(PROTOCOL),
        "security.protocol": PROTOCOL,
        "sasl.mechanism": "OAUTHBEARER",
        "log_level": 0,
        **more,
    }
    return AdminClient(settings)


def test_librdkafka_is_let_in_by_a_token_of_the_program(
    secured: Broker, issuer: TokenServer
) -> None:
    client = librdkafka(secured, oauth_cb=lambda _: (issuer.token(), _now_s() + LASTS_S))
    client.poll(1.0)
    assert len(client.list_topics(timeout=TIMEOUT_S).brokers) == secured.node_count


def test_librdkafka_is_let_in_by_a_token_that_it_asks_for(
    secured: Broker, issuer: TokenServer
) -> None:
    oidc = {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": CLIENT,
        "sasl.oauthbearer.client.secret": SECRET,
        "sasl.oauthbearer.token.endpoint.url": f"{issuer.base}/token",
    }
    assert (
        len(librdkafka(secured, **oidc).list_topics(timeout=TIMEOUT_S).brokers)
        == secured.node_count
    )


def test_librdkafka_is_refused_and_told_why(secured: Broker, issuer: TokenServer) -> None:
    told: list[str] = []
    token = issuer.token(forged=True)
    client = Producer(
        {
            "bootstrap.servers": secured.address(PROTOCOL),
            "security.protocol": PROTOCOL,
            "sasl.mechanism": "OAUTHBEARER",
            "log_level": 0,
            "oauth_cb": lambda _: (token, _now_s() + LASTS_S),
            "error_cb": lambda error: told.append(str(error)),
        }
    )
    client.poll(1.0)
    with pytest.raises(KafkaException):
        client.list_topics(timeout=2.0)

    def is_told() -> bool:
        client.poll(0.1)
        return any("_AUTHENTICATION" in each for each in told)

    eventually(is_told)


class Provider(AbstractTokenProvider):  # type: ignore[misc]  # the library has no types
    """A token for kafka-python."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token


class AIOProvider(AIOTokenProvider):  # type: ignore[misc]  # the library has no types
    """A token for aiokafka."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


def test_kafka_python_is_let_in_or_refused(secured: Broker, issuer: TokenServer) -> None:
    def connected(token: str, timeout_ms: int) -> KafkaAdminClient:
        return KafkaAdminClient(
            bootstrap_servers=secured.address(PROTOCOL),
            security_protocol=PROTOCOL,
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=Provider(token),
            bootstrap_timeout_ms=timeout_ms,
        )

    client = connected(issuer.token(), 60_000)
    assert len(client.describe_cluster()["brokers"]) == secured.node_count
    client.close()
    with pytest.raises(KafkaError):
        connected(issuer.token(aud="other"), 5_000)


async def test_aiokafka_is_let_in_or_refused(secured: Broker, issuer: TokenServer) -> None:
    for token, is_good in ((issuer.token(), True), (issuer.token(iss="x"), False)):
        client = AIOKafkaProducer(
            bootstrap_servers=secured.address(PROTOCOL),
            security_protocol=PROTOCOL,
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=AIOProvider(token),
            request_timeout_ms=60_000 if is_good else 5_000,
        )
        if is_good:
            await client.start()
        else:
            # It does not look at the status, and may notice at its next request.
            with pytest.raises(AIOKafkaError):
                await client.start()
                await client.send_and_wait("refused", b"x")
        await client.stop()


def write_properties(path: Path, url: str, secret: str = SECRET) -> Path:
    """Write the settings of Kafka's tools, which magnetar's commands take too, beside a secret."""
    hidden = path.with_suffix(".secret")
    hidden.write_text(secret)
    settings = {
        **providers(path.parent),
        "security.protocol": PROTOCOL,
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": f"{PACKAGE}.OAuthBearerLoginCallbackHandler",
        "sasl.jaas.config": f"{PACKAGE}.OAuthBearerLoginModule required;",
        "sasl.oauthbearer.token.endpoint.url": url,
        "sasl.oauthbearer.client.credentials.client.id": CLIENT,
        "sasl.oauthbearer.client.credentials.client.secret": (
            f"${{dir:{path.parent}:{hidden.name}}}"
        ),
    }
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


def list_topics(program: list[str], broker: Broker, config: Path) -> tuple[int, str]:
    """Return the exit status of a tool, and all that it printed."""
    where = ["--bootstrap-server", broker.address(PROTOCOL), "--command-config", str(config)]
    ended = subprocess.run(
        [*program, *where], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.parametrize("tool", ["kafka", "magnetar"])
def test_the_tools_are_let_in_or_refused_by_the_same_files(
    secured: Broker, issuer: TokenServer, tool: str, tmp_path: Path
) -> None:
    endpoint = f"{issuer.base}/token"
    asked = write_properties(tmp_path / "asked.properties", endpoint)
    unknown = write_properties(tmp_path / "unknown.properties", endpoint, "wrong")
    (tmp_path / "bad.jwt").write_text(issuer.token(aud="other"))
    url = (tmp_path / "bad.jwt").as_uri()
    bad = write_properties(tmp_path / "bad.properties", url)
    (tmp_path / "good.jwt").write_text(issuer.token())
    good_url = (tmp_path / "good.jwt").as_uri()
    good = write_properties(tmp_path / "good.properties", good_url)
    program = [sys.executable, "-m", "magnetar", "topics", "list"]
    if tool == "kafka":
        options = (*fast_start(), f"{ALLOWED}={endpoint},{url},{good_url}")
        program = java_command("org.apache.kafka.tools.TopicCommand", "--list", options=options)
    assert list_topics(program, secured, asked)[0] == 0
    assert list_topics(program, secured, good)[0] == 0
    status, told = list_topics(program, secured, unknown)
    assert status == 1
    assert "invalid_client" in told or "401" in told or "LoginException" in told, told
    status, told = list_topics(program, secured, bad)
    assert status == 1
    assert STATUS.decode() in told
