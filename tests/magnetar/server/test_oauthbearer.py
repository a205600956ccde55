"""Logins by token on a listener: codes, lines of the log, counters, and issuers that fail."""

from __future__ import annotations

import json
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from magnetar.apis import refusals
from magnetar.broker import Broker
from magnetar.config.load import ConfigError
from magnetar.runtime import jwks
from magnetar.testing.certificates import COMMON_NAME, make, named
from magnetar.testing.tokens import TokenIssuer
from tests.magnetar.clocks import MovedClock
from tests.magnetar.conftest import RawClient, StartBroker
from tests.magnetar.http_server import HttpServer, answer, silence
from wire.error_code import ErrorCode
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.metadata import MetadataRequest, MetadataResponse
from wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

Connect = Callable[[Broker], Awaitable[RawClient]]
STATUS = b'{"status":"invalid_token"}'
LISTENING = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "connection.failed.authentication.delay.ms": "0",
}


@pytest.fixture(autouse=True)
def nothing_written_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "_written", {})


@pytest.fixture
def issuer(tmp_path: Path) -> TokenIssuer:
    return TokenIssuer(tmp_path)


def first(token: str) -> bytes:
    return f"n,,\x01auth=Bearer {token}\x01\x01".encode()


async def begin(client: RawClient, version: int = 1) -> None:
    request = SaslHandshakeRequest(mechanism="OAUTHBEARER")
    assert not (await client.ask(request, version, SaslHandshakeResponse)).error_code


async def log_in(client: RawClient, token: bytes) -> SaslAuthenticateResponse:
    request = SaslAuthenticateRequest(auth_bytes=token)
    return await client.ask(request, 2, SaslAuthenticateResponse)


def lines(capsys: pytest.CaptureFixture[str], event: str) -> list[dict[str, Any]]:
    written = [json.loads(one) for one in capsys.readouterr().err.splitlines() if "{" in one]
    return [one for one in written if one["event"] == event]


async def test_a_token_lets_in_until_it_expires_unless_a_new_one_comes(
    start_broker: StartBroker, connect: Connect, issuer: TokenIssuer, clock: MovedClock
) -> None:
    broker = await start_broker({**LISTENING, **issuer.broker_settings()}, clock=clock)
    client = await connect(broker)
    await begin(client)
    taken = await log_in(client, first(issuer.token("ada", exp=int(time.time()) + 100)))
    assert (taken.error_code, taken.auth_bytes) == (0, b"")
    assert 90_000 < taken.session_lifetime_ms <= 100_000
    assert (await client.ask(MetadataRequest(), 1, MetadataResponse)).brokers
    clock.passed_ms += 99_000
    await begin(client)
    renewed = await log_in(client, first(issuer.token("ada", exp=int(time.time()) + 3600)))
    assert renewed.session_lifetime_ms > 3_000_000
    clock.passed_ms += 3_000_000
    assert (await client.ask(MetadataRequest(), 1, MetadataResponse)).brokers
    clock.passed_ms += 600_000
    client.send(MetadataRequest(), 1)
    assert await client.is_closed()


async def test_a_wall_clock_that_is_set_neither_ends_a_session_nor_prolongs_it(
    start_broker: StartBroker, connect: Connect, issuer: TokenIssuer, clock: MovedClock
) -> None:
    """As in Kafka, whose sessions end by `nanoTime`."""
    broker = await start_broker({**LISTENING, **issuer.broker_settings()}, clock=clock)
    client = await connect(broker)
    await begin(client)
    await log_in(client, first(issuer.token("ada", exp=int(time.time()) + 100)))
    clock.set_by_ms += 86_400_000
    assert (await client.ask(MetadataRequest(), 1, MetadataResponse)).brokers
    await begin(client)
    clock.set_by_ms -= 2 * 86_400_000
    clock.passed_ms += 1_000
    await begin(client)
    await log_in(client, first(issuer.token("ada", exp=int(time.time()) - 86_400 + 101)))
    assert (await client.ask(MetadataRequest(), 1, MetadataResponse)).brokers
    clock.passed_ms += 101_000
    client.send(MetadataRequest(), 1)
    assert await client.is_closed()


async def test_a_bad_token_is_told_its_status_then_refused_and_logged_once_with_the_reason(
    start_broker: StartBroker,
    connect: Connect,
    issuer: TokenIssuer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broker = await start_broker({**LISTENING, **issuer.broker_settings()})
    client = await connect(broker)
    await begin(client)
    answered = await log_in(client, first(issuer.token("ada", aud="other")))
    assert (answered.error_code, answered.auth_bytes) == (0, STATUS)
    refused = await log_in(client, b"\x01")
    assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert refused.error_message == STATUS.decode()
    assert await client.is_closed()
    (line,) = lines(capsys, "refused")
    assert line["error"] == "SASL_AUTHENTICATION_FAILED: its audience is 'other': kafka"
    assert line["client_address"].startswith("127.0.0.1:")
    (mechanism,) = broker.authentication.mechanisms()
    assert (mechanism.logins.succeeded, mechanism.logins.failed) == (0, 1)


async def test_no_answer_carries_data_after_a_bad_token(
    start_broker: StartBroker, connect: Connect, issuer: TokenIssuer
) -> None:
    broker = await start_broker({**LISTENING, **issuer.broker_settings()})
    for request in (MetadataRequest(), ApiVersionsRequest()):
        client = await connect(broker)
        await begin(client)
        await log_in(client, first("e30.e30.e30"))
        client.send(request, 1)
        assert await client.is_closed()


async def test_bare_tokens_follow_version_0_of_the_handshake(
    start_broker: StartBroker,
    connect: Connect,
    issuer: TokenIssuer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broker = await start_broker({**LISTENING, **issuer.broker_settings()})
    client = await connect(broker)
    await begin(client, 0)
    client.send_frame(first(issuer.token("ada")))
    assert await client.reader.readexactly(4) == bytes(4)
    assert (await client.ask(MetadataRequest(), 1, MetadataResponse)).brokers
    client = await connect(broker)
    await begin(client, 0)
    client.send_frame(first(issuer.token("ada", iss="other")))
    assert (await client.reader.readexactly(4 + len(STATUS)))[4:] == STATUS
    client.send_frame(b"\x01")
    assert await client.is_closed()
    (line,) = lines(capsys, "connection closed")
    assert line["reason"] == "its issuer is 'other', not https://issuer.test"


async def test_a_new_key_of_the_issuer_is_found_by_the_first_token_that_it_signs(
    start_broker: StartBroker, connect: Connect, issuer: TokenIssuer
) -> None:
    with HttpServer(b"") as server:
        server.reply = answer(issuer.key_set().encode())
        url = {"sasl.oauthbearer.jwks.endpoint.url": server.url}
        broker = await start_broker({**LISTENING, **issuer.broker_settings(), **url})
        issuer.rotate()
        server.reply = answer(issuer.key_set().encode())
        answers = []
        while b"" not in answers:
            client = await connect(broker)
            await begin(client)
            answers.append((await log_in(client, first(issuer.token("ada")))).auth_bytes)
    assert answers[0] == STATUS
    assert len(server.asked) == 2


async def test_an_issuer_that_hangs_keeps_neither_the_start_nor_other_clients(
    start_broker: StartBroker,
    connect: Connect,
    issuer: TokenIssuer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(jwks, "START_WAITS_S", 0.01)
    with HttpServer(silence) as server:
        url = {"sasl.oauthbearer.jwks.endpoint.url": server.url}
        broker = await start_broker({**LISTENING, **issuer.broker_settings(), **url})
        client = await connect(broker)
        assert (await client.ask(ApiVersionsRequest(), 1, ApiVersionsResponse)).api_keys
        await begin(client)
        assert (await log_in(client, first(issuer.token("ada")))).auth_bytes == STATUS
        (line,) = lines(capsys, "refused")
        assert line["error"].endswith("there are no keys of tokens yet")
        await broker.stop()


async def test_keys_come_by_tls_from_whom_the_jaas_entry_trusts(
    start_broker: StartBroker,
    connect: Connect,
    issuer: TokenIssuer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    authority = make(named((COMMON_NAME, "authority")))
    trusted = tmp_path / "authority.pem"
    trusted.write_text(authority.certificate_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(
        make(named((COMMON_NAME, "issuer")), authority).write_pem(tmp_path / "issuer.pem")
    )
    with HttpServer(answer(issuer.key_set().encode()), context) as server:
        url = {"sasl.oauthbearer.jwks.endpoint.url": server.url}
        jaas = {
            f"{MECHANISM}.sasl.jaas.config": (
                f'M required ssl.truststore.type=PEM ssl.truststore.location="{trusted}";'
            )
        }
        broker = await start_broker({**LISTENING, **issuer.broker_settings(), **url, **jaas})
        client = await connect(broker)
        await begin(client)
        assert (await log_in(client, first(issuer.token("ada")))).auth_bytes == b""
        await broker.stop()
        await start_broker({**LISTENING, **issuer.broker_settings(), **url})
    (line,) = lines(capsys, "keys of tokens not fetched")
    assert "its certificate is not trusted" in line["reason"]


async def test_without_its_libraries_the_start_says_what_to_install(
    start_broker: StartBroker, issuer: TokenIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("magnetar.runtime.token_verifier", "magnetar.security.jwt"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "jwt.algorithms", None)
    with pytest.raises(ConfigError, match=r"needs jwt.algorithms: pip install 'magnetar\[security"):
        await start_broker({**LISTENING, **issuer.broker_settings()})


NAME = "sasl.oauthbearer"
MECHANISM = "listener.name.sasl_plaintext.oauthbearer"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({f"{NAME}.jwks.endpoint.url": ""}, f"{NAME}.jwks.endpoint.url is missing"),
        ({f"{NAME}.jwks.endpoint.url": "http://issuer.test/"}, "Use https:"),
        ({f"{NAME}.jwks.endpoint.url": "file:/no/such"}, "cannot read /no/such: No such file"),
        ({f"{NAME}.jwks.endpoint.url": "file:/etc/passwd"}, "it is no JSON"),
        ({f"{MECHANISM}.sasl.server.callback.handler.class": "com.acme.X"}, "X cannot be loaded"),
        (
            {
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.sasl_plaintext.plain.sasl.server.callback.handler.class": "Ldap",
            },
            "Ldap cannot be loaded: leave it out, or name org.apache.kafka.common.security.plain",
        ),
        ({f"{NAME}.jwt.validator.class": "org.apache.ClientJwtValidator"}, "cannot be loaded"),
        ({f"{MECHANISM}.sasl.jaas.config": "x"}, "is no JAAS entry"),
        (
            {
                "sasl.oauthbearer.jwks.endpoint.url": "https://issuer.test/",
                "sasl.jaas.config": 'M required ssl.truststore.location="/no/such";',
            },
            "cannot use ssl.truststore.location",
        ),
    ],
)
async def test_settings_that_cannot_be_served_are_reasons_not_to_start(
    start_broker: StartBroker, issuer: TokenIssuer, changes: dict[str, str], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        await start_broker({**LISTENING, **issuer.broker_settings(), **changes})


async def test_a_listener_may_have_settings_of_its_own(
    start_broker: StartBroker, connect: Connect, issuer: TokenIssuer
) -> None:
    handlers = "org.apache.kafka.common.security.oauthbearer"
    settings = {
        **LISTENING,
        **issuer.broker_settings(),
        "listener.name.sasl_plaintext.sasl.oauthbearer.expected.issuer": "listener's",
        "listener.name.sasl_plaintext.oauthbearer.sasl.oauthbearer.expected.issuer": "its own",
        "listener.name.sasl_plaintext.oauthbearer.sasl.server.callback.handler.class": (
            f"{handlers}.OAuthBearerValidatorCallbackHandler"
        ),
        "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": (
            f"{handlers}.OAuthBearerLoginModule required;"
        ),
        "listener.name.sasl_plaintext.oauthbearer.connections.max.reauth.ms": "60000",
    }
    client = await connect(await start_broker(settings))
    await begin(client)
    taken = await log_in(client, first(issuer.token("ada", iss="its own")))
    assert (taken.auth_bytes, taken.session_lifetime_ms) == (b"", 60_000)


@pytest.mark.parametrize(
    ("claim", "changes", "said"),
    [
        ("issuer", {"iss": "another"}, "tokens of any issuer are taken"),
        ("audience", {"aud": "another"}, "tokens for any audience are taken"),
    ],
)
async def test_a_listener_that_takes_tokens_that_were_made_for_others_says_so(
    start_broker: StartBroker,
    connect: Connect,
    issuer: TokenIssuer,
    capsys: pytest.CaptureFixture[str],
    claim: str,
    changes: dict[str, str],
    said: str,
) -> None:
    any_of_them = {f"{NAME}.expected.{claim}": "", f"{NAME}.allow.unverified.{claim}": "true"}
    broker = await start_broker({**LISTENING, **issuer.broker_settings(), **any_of_them})
    (line,) = lines(capsys, said)
    assert line["listener"] == "SASL_PLAINTEXT"
    client = await connect(broker)
    await begin(client)
    assert (await log_in(client, first(issuer.token("ada", **changes)))).auth_bytes == b""


async def test_without_an_expected_audience_a_token_that_names_one_is_refused(
    start_broker: StartBroker, connect: Connect, issuer: TokenIssuer
) -> None:
    none_expected = {f"{NAME}.expected.audience": "", f"{NAME}.expected.issuer": ""}
    broker = await start_broker({**LISTENING, **issuer.broker_settings(), **none_expected})
    client = await connect(broker)
    await begin(client)
    refused = await log_in(client, first(issuer.token("ada", aud="another", iss="another")))
    assert refused.auth_bytes != b""
    client = await connect(broker)
    await begin(client)
    taken = await log_in(client, first(issuer.token("ada", aud=None, iss="another")))
    assert taken.auth_bytes == b""


async def test_what_is_expected_is_verified_whatever_else_is_allowed(
    start_broker: StartBroker, connect: Connect, issuer: TokenIssuer
) -> None:
    allowed = {f"{NAME}.allow.unverified.{claim}": "true" for claim in ("issuer", "audience")}
    client = await connect(await start_broker({**LISTENING, **issuer.broker_settings(), **allowed}))
    await begin(client)
    refused = await log_in(client, first(issuer.token("ada", aud="another")))
    assert refused.auth_bytes != b""
