"""Delegation tokens in the catalog: what a restart keeps, and under which limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar.security.principal import Principal, user
from magnetar.security.tokens import Lifetimes, Token, token_hmac
from magnetar.storage import delegation_tokens
from magnetar.storage.catalog import Catalog
from magnetar.storage.delegation_tokens import DelegationTokens
from wire.error_code import ErrorCode
from wire.errors import KafkaError

LIFETIMES = Lifetimes(1_000, 100)
#: Names that a format of lines or colons would read otherwise.
ODD = Principal("User", "a\nUser:b"), Principal("User", "")
TOKEN = Token("one", Principal("A:B", "c"), user("ada"), ODD, 1, 100, 1_000)


def opened(directory: Path, secret: bytes = b"secret") -> DelegationTokens:
    return DelegationTokens(Catalog(directory), secret, LIFETIMES)


def test_a_restart_keeps_tokens_as_they_were_last(tmp_path: Path) -> None:
    tokens = opened(tmp_path)
    other = TOKEN._replace(id="two", issued_ms=0)
    tokens.put(TOKEN)
    tokens.put(other)
    tokens.put(TOKEN._replace(expires_ms=200))
    again = opened(tmp_path)
    assert again.all() == [other, TOKEN._replace(expires_ms=200)]
    assert again.proven(tokens.hmac(TOKEN)).expires_ms == 200
    again.remove([other])
    assert opened(tmp_path).all() == [TOKEN._replace(expires_ms=200)]


def test_a_token_that_is_gone_or_over_proves_nothing(tmp_path: Path) -> None:
    tokens = opened(tmp_path)
    tokens.put(TOKEN)
    hmac = tokens.hmac(TOKEN)
    assert tokens.good("one", 100) == TOKEN
    assert tokens.good("one", 101) is None
    assert tokens.expired(101) == [TOKEN]
    kept = tokens.credential(TOKEN, "SCRAM-SHA-256")
    assert tokens.credential(TOKEN, "SCRAM-SHA-256") is kept
    tokens.remove([TOKEN])
    assert tokens.good("one", 0) is None
    with pytest.raises(KafkaError) as refused:
        tokens.proven(hmac)
    assert refused.value.code is ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_of_a_user_whose_tokens_are_over_nothing_is_left(tmp_path: Path) -> None:
    tokens = opened(tmp_path)
    other = TOKEN._replace(id="two")
    for each in (TOKEN, other):
        tokens.put(each)
    tokens.remove([TOKEN])
    assert tokens._counts == {TOKEN.requester: 1}
    tokens.remove([other])
    assert TOKEN.requester not in tokens._counts


def test_another_secret_ends_the_passwords_of_all_tokens(tmp_path: Path) -> None:
    tokens = opened(tmp_path)
    tokens.put(TOKEN)
    with pytest.raises(KafkaError):
        opened(tmp_path, b"another").proven(tokens.hmac(TOKEN))


def test_a_change_by_another_node_is_read_of_that_token_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = opened(tmp_path), opened(tmp_path)
    others = [TOKEN._replace(id=str(number)) for number in range(3)]
    for token in others:
        theirs.put(token)
    ours.reload()
    read: list[str] = []
    made = token_hmac

    def noted(secret: bytes, token_id: str) -> bytes:
        read.append(token_id)
        return made(secret, token_id)

    theirs.put(TOKEN)
    theirs.put(others[1]._replace(expires_ms=7))
    theirs.remove([others[2]])
    monkeypatch.setattr(delegation_tokens, "token_hmac", noted)
    for changed in ("one", "1", "2"):
        ours.reload(changed)
    assert set(read) <= {"one", "1", "2"}
    assert ours.all() == [others[0], others[1]._replace(expires_ms=7), TOKEN]
    assert ours.proven(theirs.hmac(TOKEN)) == TOKEN
    with pytest.raises(KafkaError):
        ours.proven(theirs.hmac(others[2]))
    # One that never came here is gone, too.
    ours.reload("never seen")


def test_a_token_that_another_node_has_removed_does_not_come_back(tmp_path: Path) -> None:
    theirs = opened(tmp_path)
    theirs.put(TOKEN)
    ours = opened(tmp_path)
    theirs.remove([TOKEN])
    # This node has not heard of that yet.
    with pytest.raises(KafkaError) as refused:
        ours.put(TOKEN._replace(expires_ms=200))
    assert refused.value.code is ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert opened(tmp_path).all() == []


def test_tokens_are_limited_in_all_and_for_each_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delegation_tokens, "TOKENS_MAX", 3)
    monkeypatch.setattr(delegation_tokens, "TOKENS_OF_ONE_MAX", 2)
    tokens = opened(tmp_path)
    for number in range(2):
        tokens.put(TOKEN._replace(id=str(number)))
    bobs = TOKEN._replace(requester=user("bob"))
    with pytest.raises(KafkaError, match="has asked for 2"):
        tokens.put(TOKEN._replace(id="3"))
    tokens.put(bobs._replace(id="4"))
    with pytest.raises(KafkaError, match="there are 3"):
        tokens.put(bobs._replace(id="5"))
    # One that is there may change.
    tokens.put(bobs._replace(id="4", expires_ms=7))
    tokens.remove([TOKEN._replace(id="0")])
    tokens.put(TOKEN._replace(id="6"))
