"""Tokens for a client: settings of Kafka and librdkafka, files, and an issuer's endpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from magnetar.client import Client, ClientError, NotLetIn
from magnetar.client.login import NotTheBroker, oauthbearer
from magnetar.client.security import BadSettings, Security, parse_security
from magnetar.client.token_source import TokenSource
from magnetar.testing import start_broker
from magnetar.testing.tokens import TokenIssuer
from tests.magnetar.http_server import HttpServer, answer

URL = "sasl.oauthbearer.token.endpoint.url"
HANDLERS = "org.apache.kafka.common.security.oauthbearer"
JAVAS = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "OAUTHBEARER",
    URL: "https://issuer.test/token",
    "sasl.login.callback.handler.class": f"{HANDLERS}.OAuthBearerLoginCallbackHandler",
    "sasl.oauthbearer.client.credentials.client.id": "ada",
    "sasl.oauthbearer.client.credentials.client.secret": "pw",
    "sasl.oauthbearer.scope": "kafka",
    "sasl.jaas.config": f'{HANDLERS}.OAuthBearerLoginModule required extension_cluster="c 1";',
}


def source(changes: dict[str, str] | None = None) -> TokenSource:
    tokens = parse_security({**JAVAS, **(changes or {})}).tokens
    assert tokens is not None
    return tokens


def test_java_and_librdkafka_name_the_same_things() -> None:
    javas = parse_security(JAVAS)
    librdkafkas = javas.for_librdkafka()
    assert librdkafkas == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "ada",
        "sasl.oauthbearer.client.secret": "pw",
        "sasl.oauthbearer.scope": "kafka",
        "sasl.oauthbearer.extensions": "cluster=c 1",
        URL: "https://issuer.test/token",
    }
    assert parse_security(librdkafkas) == javas
    assert "pw" not in repr(javas)


def test_the_older_options_of_the_jaas_entry_are_taken() -> None:
    jaas = 'M required clientId="ada" clientSecret="p" scope="s" ssl.truststore.location="/";'
    tokens = parse_security(
        {**{name: JAVAS[name] for name in list(JAVAS)[:3]}, "sasl.jaas.config": jaas}
    ).tokens
    assert tokens is not None
    assert (tokens.client_id, tokens.client_secret, tokens.scope) == ("ada", "p", "s")
    assert tokens.authorities == "/"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({URL: None}, "token.endpoint.url is missing"),
        ({URL: "http://issuer.test/"}, "Use https:"),
        ({"sasl.oauthbearer.client.credentials.client.secret": None}, "secret are missing"),
        ({"sasl.login.callback.handler.class": "software.amazon.Iam"}, "Iam, and only org.apache"),
        ({"sasl.oauthbearer.jwt.retriever.class": f"{HANDLERS}.JwtBearerJwtRetriever"}, "only org"),
        ({"sasl.oauthbearer.assertion.file": "x"}, "assertion.file is not served"),
        ({"sasl.oauthbearer.method": "default"}, "only oidc"),
        ({"sasl.oauthbearer.extensions": "auth=x"}, "auth is no SASL extension"),
        ({"sasl.oauthbearer.extensions": "a b=x"}, "a b is no SASL extension"),
        ({"https.ca.location": "/no/such"}, "cannot read /no/such"),
    ],
)
def test_a_setting_that_cannot_be_followed_is_named(
    changes: dict[str, str | None], complaint: str
) -> None:
    merged: dict[str, str | None] = {**JAVAS, **changes}
    with pytest.raises(BadSettings, match=complaint):
        parse_security({name: value for name, value in merged.items() if value is not None})


def test_an_issuer_is_asked_by_client_credentials_and_its_token_kept() -> None:
    said = json.dumps({"access_token": "a.b.c", "expires_in": 3600}).encode()
    with HttpServer(answer(said)) as server:
        tokens = source({URL: server.url})
        assert [tokens.token() for _ in range(3)] == ["a.b.c"] * 3
    (asked,) = server.asked
    assert b"Authorization: Basic YWRhOnB3\r\n" in asked
    assert asked.endswith(b"\r\n\r\ngrant_type=client_credentials&scope=kafka")


def test_a_token_of_unknown_life_is_asked_for_each_time() -> None:
    said = json.dumps({"id_token": "a.b.c"}).encode()
    with HttpServer(answer(said)) as server:
        tokens = source({URL: server.url})
        assert [tokens.token(), tokens.token()] == ["a.b.c"] * 2
        assert len(server.asked) == 2


def test_credentials_are_encoded_where_that_is_wanted() -> None:
    with HttpServer(answer(b'{"access_token": "t"}')) as server:
        urlencode = {"sasl.oauthbearer.header.urlencode": "true"}
        client = {"sasl.oauthbearer.client.credentials.client.id": "a:b"}
        source({URL: server.url, **urlencode, **client}).token()
    assert b"Basic YSUzQWI6cHc=\r\n" in server.asked[0]


@pytest.mark.parametrize(
    ("reply", "complaint"),
    [
        (answer(b"{}"), "answers no access_token"),
        (answer(b"[]"), "answers no access_token"),
        (answer(b"<html>"), "answers no access_token"),
        (answer(b'{"access_token": 7}'), "answers no access_token"),
        (answer(b'{"access_token": "a\\u0001b"}'), "holds is none"),
        (answer(b"oops", "500 X"), "status 500"),
        (
            answer(b'{"error": "invalid_client", "error_description": "who"}', "401 X"),
            "status 401: invalid_client: who",
        ),
        (answer(b"[1]", "400 X"), "status 400"),
    ],
)
def test_an_issuer_that_gives_no_token_is_told(reply: bytes, complaint: str) -> None:
    with HttpServer(reply) as server, pytest.raises(ClientError, match=complaint) as failure:
        source({URL: server.url}).token()
    assert "pw" not in str(failure.value)


def test_a_token_of_a_file_is_read_each_time(tmp_path: Path) -> None:
    path = tmp_path / "token"
    tokens = source({URL: path.as_uri()})
    with pytest.raises(ClientError, match="No such file"):
        tokens.token()
    for text in ("a.b.c\n", "d.e.f"):
        path.write_text(text)
        assert tokens.token() == text.strip()
    path.write_text("not a token")
    with pytest.raises(ClientError, match="holds is none"):
        tokens.token()
    with pytest.raises(BadSettings, match="librdkafka takes no token from a file"):
        Security("SASL_PLAINTEXT", "OAUTHBEARER", tokens=tokens).for_librdkafka()


def test_a_refusal_is_acknowledged_and_must_be_followed_by_the_end() -> None:
    login = oauthbearer("a.b.c", ["cluster=1"])
    assert next(login) == b"n,,\x01auth=Bearer a.b.c\x01cluster=1\x01\x01"
    assert login.send(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(NotTheBroker):
        login.send(b"")
    taken = oauthbearer("a.b.c", [])
    next(taken)
    with pytest.raises(StopIteration):
        taken.send(b"")


def test_a_client_logs_in_by_a_token_or_is_told_who_knows_why(tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path)
    listening = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0"}
    protocol = {"security.protocol": "SASL_PLAINTEXT"}
    with start_broker(settings={**listening, **issuer.broker_settings()}) as broker:
        good = parse_security({**protocol, **issuer.client_settings("ada")})
        with Client(broker.bootstrap_servers, 5.0, security=good) as client:
            assert client.node_ids
        bad = parse_security({**protocol, **issuer.client_settings("eve", aud="other")})
        with pytest.raises(NotLetIn, match=r"eve.jwt' by OAUTHBEARER: .*The broker's log says why"):
            Client(broker.bootstrap_servers, 5.0, security=bad)
        assert "its audience is 'other': kafka" in broker.log
