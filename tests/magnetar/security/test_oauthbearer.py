"""OAUTHBEARER: the client's first message, and a refusal that the client acknowledges."""

from __future__ import annotations

from functools import partial

import pytest

from magnetar.security.oauthbearer import (
    MESSAGE_BYTES_MAX,
    OAUTHBEARER,
    REFUSAL,
    OAuthBearerExchange,
    TokenRefused,
    parse_first,
)
from magnetar.security.principal import ANONYMOUS, user
from magnetar.security.sasl import AuthenticationFailed, Identity, Mechanism
from magnetar.security.session import Session
from wire.error_code import ErrorCode
from wire.errors import KafkaError, WireError

GOOD, EXPIRES_AT_MS = "header.claims.signature", 60_000


def verify(token: str, now_ms: int) -> Identity:
    if token != GOOD:
        raise TokenRefused(f"{token} is not it")
    return Identity(user("ada"), EXPIRES_AT_MS)


def first(token: str = GOOD, *, header: str = "n,,", pairs: str = "") -> bytes:
    return f"{header}\x01auth=Bearer {token}\x01{pairs}\x01".encode()


def session(session_ms: int = 0) -> tuple[Session, Mechanism]:
    mechanism = Mechanism(OAUTHBEARER, partial(OAuthBearerExchange, verify), session_ms)
    one = Session({OAUTHBEARER: mechanism}, 1000)
    one.handshake(OAUTHBEARER, 1, 0)
    return one, mechanism


def test_a_good_token_lets_in_until_it_expires() -> None:
    one, mechanism = session()
    assert one.authenticate(first(), 10_000, 10_000) == (b"", 50_000)
    assert one.principal == user("ada")
    one.admit(3, 59_999)
    with pytest.raises(WireError):
        one.admit(3, 60_000)
    assert mechanism.logins.failed == 0


def test_the_session_is_the_shorter_of_the_token_and_the_limit() -> None:
    assert session(5_000)[0].authenticate(first(), 0, 0) == (b"", 5_000)
    assert session(90_000)[0].authenticate(first(), 0, 0) == (b"", 60_000)


def test_a_refused_token_is_answered_with_its_status_and_fails_when_that_is_acknowledged() -> None:
    one, mechanism = session()
    assert one.authenticate(first("forged.a.b"), 0, 0) == (REFUSAL.encode(), 0)
    assert one.failure == "forged.a.b is not it"
    assert mechanism.logins.failed == 1
    with pytest.raises(WireError):
        one.admit(3, 0)
    with pytest.raises(KafkaError) as refusal:
        one.authenticate(b"\x01", 0, 0)
    assert refusal.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert refusal.value.detail == REFUSAL
    assert one.principal == ANONYMOUS
    assert mechanism.logins.failed == 1


def test_after_a_refused_token_not_even_a_good_one_counts() -> None:
    one, _ = session()
    one.authenticate(first("forged.a.b"), 0, 0)
    with pytest.raises(KafkaError):
        one.authenticate(first(), 0, 0)
    assert one.principal == ANONYMOUS


def test_a_new_login_must_be_of_the_same_user() -> None:
    one, mechanism = session()
    one.authenticate(first(), 0, 0)
    one.principal = user("bob")
    one.handshake(OAUTHBEARER, 1, 2_000)
    with pytest.raises(KafkaError, match="Cannot change principals"):
        one.authenticate(first(), 2_000, 2_000)
    assert mechanism.logins.failed == 1


def test_the_client_may_name_itself_and_no_one_else() -> None:
    assert session()[0].authenticate(first(header="n,a=ada,"), 0, 0)[0] == b""
    one, _ = session()
    with pytest.raises(KafkaError, match="different from the token's principal name"):
        one.authenticate(first(header="n,a=bob,"), 0, 0)
    assert one.principal == ANONYMOUS


def test_extensions_are_passed_over_and_names_unescaped() -> None:
    found = parse_first(first(header="n,a=a=2Cb=3D,", pairs="host=h\x01logicalCluster=lkc 1\x01"))
    assert found == (GOOD, "a,b=")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01auth=Bearer a\xe9\x01\x01",
        b"n,,\x01auth=Bearer a\x01",
        b"n,,\x01auth=Bearer a\x01\x01\x01",
        b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
        b"y,,\x01auth=Bearer a\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer a\x01\x01",
        b"n,a=,\x01auth=Bearer a\x01\x01",
        b"n,a=b=c,\x01auth=Bearer a\x01\x01",
        b"n,,\x01auth=Bearer a\x01x=\x01\x01",
        b"n,,\x01host=h\x01\x01",
        b"n,,\x01auth=Bearer a\x01" + b"x=y\x01" * 64 + b"\x01",
        b"n,a=" + b"a" * MESSAGE_BYTES_MAX + b",\x01auth=Bearer a\x01\x01",
    ],
)
def test_what_is_no_first_message_is_refused_in_the_words_of_every_mechanism(
    message: bytes,
) -> None:
    with pytest.raises(AuthenticationFailed, match="invalid credentials with SASL mechanism OAUTH"):
        parse_first(message)
    assert parse_first(b"n,,\x01auth=bEARER  a==\x01\x01").token == "a=="
