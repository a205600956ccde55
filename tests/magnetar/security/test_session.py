"""The login of a connection: the order of requests, and the end of a session."""

from __future__ import annotations

from functools import partial

import pytest

from magnetar.security.plain import PlainExchange
from magnetar.security.principal import ANONYMOUS, user
from magnetar.security.sasl import Mechanism
from magnetar.security.session import Session
from wire.error_code import ErrorCode
from wire.errors import KafkaError, WireError

HANDSHAKE, VERSIONS, AUTHENTICATE, METADATA = 17, 18, 36, 3
PASSWORDS = {"ada": "pw", "bob": "pw"}
ADA = b"\0ada\0pw"


def session(session_ms: int = 0) -> Session:
    plain = Mechanism("PLAIN", partial(PlainExchange, PASSWORDS), session_ms)
    return Session({"PLAIN": plain}, 1000)


def log_in(one: Session, token: bytes = ADA, now_ms: int = 0) -> int:
    """Return how long the session lasts."""
    one.handshake("PLAIN", 1, now_ms)
    _, lifetime_ms = one.authenticate(token, now_ms, now_ms)
    return lifetime_ms


def refused(code: ErrorCode, one: Session, token: bytes, now_ms: int = 0) -> str:
    with pytest.raises(KafkaError) as refusal:
        one.authenticate(token, now_ms, now_ms)
    assert refusal.value.code is code
    return str(refusal.value)


def test_a_listener_without_sasl_is_open_and_refuses_a_handshake() -> None:
    one = Session()
    assert one.is_open
    assert not one.is_guarded
    assert one.principal == ANONYMOUS
    with pytest.raises(KafkaError) as refusal:
        one.handshake("PLAIN", 1, 0)
    assert refusal.value.code is ErrorCode.ILLEGAL_SASL_STATE


def test_before_authentication_only_its_own_requests_pass_in_their_order() -> None:
    one = session()
    with pytest.raises(WireError):
        one.admit(METADATA, 0)
    one.admit(VERSIONS, 0)
    with pytest.raises(WireError):
        one.admit(VERSIONS, 0)
    one.admit(HANDSHAKE, 0)
    one.handshake("PLAIN", 1, 0)
    with pytest.raises(WireError):
        one.admit(METADATA, 0)
    one.admit(AUTHENTICATE, 0)
    one.authenticate(ADA, 0, 0)
    assert one.principal == user("ada")
    assert one.is_open
    assert not one.is_guarded


def test_api_versions_may_be_asked_again_in_a_version_that_is_served() -> None:
    one = session()
    one.admit(VERSIONS, 0)
    one.expect_versions()
    one.admit(VERSIONS, 0)


def test_version_0_of_the_handshake_is_followed_by_bare_tokens() -> None:
    one = session()
    one.handshake("PLAIN", 0, 0)
    assert one.takes_tokens
    one.authenticate(ADA, 0, 0)
    assert one.is_open


def test_an_unknown_mechanism_and_a_token_without_a_handshake_are_refused() -> None:
    one = session()
    refused(ErrorCode.ILLEGAL_SASL_STATE, one, ADA)
    with pytest.raises(KafkaError) as refusal:
        one.handshake("GSSAPI", 1, 0)
    assert refusal.value.code is ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert one.mechanism_names == ["PLAIN"]


@pytest.mark.parametrize(
    "token", [b"", b"ada", b"\0ada", b"\0\0pw", b"\0ada\0", b"\0ada\0pw\0", b"\0\xff\0pw"]
)
def test_plain_tokens_that_cannot_be_read_are_refused(token: bytes) -> None:
    one = session()
    one.handshake("PLAIN", 1, 0)
    refused(ErrorCode.SASL_AUTHENTICATION_FAILED, one, token)
    assert not one.is_open


def test_an_unknown_user_and_a_wrong_password_are_refused_in_the_same_words() -> None:
    said = set()
    for token in (b"\0ada\0wrong", b"\0stranger\0pw"):
        one = session()
        one.handshake("PLAIN", 1, 0)
        said.add(refused(ErrorCode.SASL_AUTHENTICATION_FAILED, one, token))
    assert len(said) == 1


def test_a_login_that_has_failed_takes_no_further_token() -> None:
    one = session()
    one.handshake("PLAIN", 1, 0)
    refused(ErrorCode.SASL_AUTHENTICATION_FAILED, one, b"\0ada\0wrong")
    refused(ErrorCode.ILLEGAL_SASL_STATE, one, ADA)
    assert not one.is_open


def test_no_user_may_act_for_another() -> None:
    one = session()
    one.handshake("PLAIN", 1, 0)
    refused(ErrorCode.SASL_AUTHENTICATION_FAILED, one, b"bob\0ada\0pw")


def test_a_session_without_an_end_takes_no_second_login() -> None:
    one = session()
    assert log_in(one) == 0
    with pytest.raises(KafkaError) as refusal:
        one.handshake("PLAIN", 1, 5_000)
    assert refusal.value.code is ErrorCode.ILLEGAL_SASL_STATE


def test_a_session_ends_unless_its_client_authenticates_again() -> None:
    one = session(10_000)
    assert log_in(one) == 10_000
    one.admit(METADATA, 9_999)
    with pytest.raises(WireError):
        one.admit(METADATA, 10_000)
    one.admit(HANDSHAKE, 10_000)
    assert log_in(one, now_ms=10_000) == 10_000
    one.admit(METADATA, 19_999)


def test_a_login_that_is_begun_again_does_not_keep_an_ended_session_alive() -> None:
    one = session(10_000)
    log_in(one)
    one.handshake("PLAIN", 1, 9_000)
    one.admit(METADATA, 9_500)
    with pytest.raises(WireError):
        one.admit(METADATA, 10_000)


def test_a_second_login_keeps_to_the_mechanism_though_it_is_begun_twice() -> None:
    begin = partial(PlainExchange, PASSWORDS)
    one = Session({name: Mechanism(name, begin, 10_000) for name in ("PLAIN", "OTHER")}, 1000)
    log_in(one)
    one.handshake("PLAIN", 1, 2_000)
    with pytest.raises(WireError):
        one.handshake("OTHER", 1, 3_000)


def test_a_connection_may_log_in_again_at_once_and_then_once_a_second() -> None:
    one = session(600)
    log_in(one)
    # A session may last for less than a second.
    assert log_in(one, now_ms=550) == 600
    with pytest.raises(KafkaError) as refusal:
        one.handshake("PLAIN", 1, 1_549)
    assert refusal.value.code is ErrorCode.ILLEGAL_SASL_STATE
    assert log_in(one, now_ms=1_550) == 600
    # One that was begun counts, too.
    one.handshake("PLAIN", 1, 2_550)
    with pytest.raises(KafkaError):
        one.handshake("PLAIN", 1, 3_000)


def test_a_second_login_of_another_user_is_refused() -> None:
    one = session(10_000)
    log_in(one)
    one.handshake("PLAIN", 1, 1_000)
    refused(ErrorCode.SASL_AUTHENTICATION_FAILED, one, b"\0bob\0pw", 1_000)
    assert one.principal == user("ada")
