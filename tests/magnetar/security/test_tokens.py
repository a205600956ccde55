"""Delegation tokens: how long they live, and who may change that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from magnetar.security.principal import Principal, user
from magnetar.security.tokens import (
    NAMES_MAX,
    RENEWERS_MAX,
    Lifetimes,
    Token,
    expire,
    issue,
    renew,
    token_credential,
    token_hmac,
)
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.types import INT64_MAX

ADA, BOB, EVE = map(user, ("ada", "bob", "eve"))
LIFETIMES = Lifetimes(max_ms=1_000, renewed_ms=100)


def token(lifetime_ms: int = 0, now_ms: int = 0) -> Token:
    return issue("id", ADA, ADA, (BOB,), lifetime_ms, now_ms, LIFETIMES)


@pytest.mark.parametrize(
    ("lifetime_ms", "expires_ms", "ends_ms"),
    [(-1, 150, 1_050), (0, 150, 1_050), (500, 150, 550), (5_000, 150, 1_050), (60, 110, 110)],
)
def test_a_token_lives_no_longer_than_was_asked_and_configured(
    lifetime_ms: int, expires_ms: int, ends_ms: int
) -> None:
    made = token(lifetime_ms, now_ms=50)
    assert (made.expires_ms, made.ends_ms) == (expires_ms, ends_ms)


def test_a_token_without_an_end_lives_as_long_as_a_timestamp_can_say() -> None:
    forever = Lifetimes(max_ms=INT64_MAX, renewed_ms=INT64_MAX)
    made = issue("id", ADA, ADA, (BOB,), INT64_MAX, 50, forever)
    assert made.expires_ms == made.ends_ms == INT64_MAX
    assert renew(made, BOB, -1, 80, forever).expires_ms == INT64_MAX


def test_owner_and_renewers_renew_it_until_its_end() -> None:
    made = token(500)
    assert renew(made, BOB, 30, 80, LIFETIMES).expires_ms == 110
    assert renew(made, ADA, -1, 80, LIFETIMES).expires_ms == 180
    assert renew(made, ADA, 1 << 62, 80, LIFETIMES).expires_ms == 180
    late = made._replace(expires_ms=490)
    assert renew(late, ADA, -1, 480, LIFETIMES).expires_ms == 500


def test_owner_and_renewers_end_it() -> None:
    made = token(500)
    assert expire(made, BOB, -1, 80) is None
    assert expire(made, ADA, 0, 80) == made._replace(expires_ms=80)
    assert expire(made, ADA, 1 << 62, 80) == made._replace(expires_ms=500)
    # One that is over can still be removed.
    assert expire(made, ADA, -1, 101) is None


def test_what_may_not_be_done_is_refused() -> None:
    made = token()
    refusals: list[tuple[Callable[[], object], ErrorCode]] = [
        (lambda: renew(made, EVE, 1, 80, LIFETIMES), ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH),
        (lambda: expire(made, EVE, -1, 80), ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH),
        (lambda: renew(made, ADA, 1, 101, LIFETIMES), ErrorCode.DELEGATION_TOKEN_EXPIRED),
        (lambda: expire(made, ADA, 1, 101), ErrorCode.DELEGATION_TOKEN_EXPIRED),
        (lambda: made_with(Principal("Group", "g")), ErrorCode.INVALID_PRINCIPAL_TYPE),
        (lambda: made_with(*[BOB] * (RENEWERS_MAX + 1)), ErrorCode.INVALID_REQUEST),
        (lambda: made_with(BOB, user("x" * (NAMES_MAX - 17))), ErrorCode.INVALID_REQUEST),
    ]
    for change, code in refusals:
        with pytest.raises(KafkaError) as refused:
            change()
        assert refused.value.code is code


def test_the_names_in_a_token_are_bounded_in_all() -> None:
    # ada's name counts, too.
    longest = (BOB, user("x" * (NAMES_MAX - 18)))
    assert made_with(*longest).renewers == longest


def made_with(*renewers: Principal) -> Token:
    return issue("id", ADA, ADA, renewers, 0, 0, LIFETIMES)


def test_another_secret_is_another_password() -> None:
    assert token_hmac(b"one", "id") != token_hmac(b"other", "id")
    assert len(token_hmac(b"one", "id")) == 64
    mechanism = "SCRAM-SHA-256"
    one, other = (token_credential(each, "id", mechanism) for each in (b"one", b"other"))
    assert one == token_credential(b"one", "id", mechanism)
    assert one.stored_key != other.stored_key
