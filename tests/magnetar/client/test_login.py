"""Logins of the client, by themselves and against the broker's side of each mechanism."""

from __future__ import annotations

import pytest

from magnetar.client.login import HASHES, NotTheBroker, plain, scram
from magnetar.security.plain import PlainExchange
from magnetar.security.sasl import AuthenticationFailed
from magnetar.security.scram import ScramExchange, credential, salted_password
from tests.magnetar.scram_users import ScramUsersOf

SALT = b"salt of twenty bytes"
NAME, PASSWORD = "ada, =1", "pässword"


def scram_broker(mechanism: str, password: str = PASSWORD) -> ScramExchange:
    salted = salted_password(mechanism, password, SALT, 4096)
    kept = credential(mechanism, SALT, 4096, salted)
    return ScramExchange(mechanism, ScramUsersOf(mechanism, {NAME: kept}), "theirs")


def test_plain_is_one_token() -> None:
    broker = PlainExchange({NAME: PASSWORD})
    broker.step(next(plain(NAME, PASSWORD)), 0)
    assert broker.identity is not None and broker.identity.principal.name == NAME


@pytest.mark.parametrize("mechanism", HASHES)
def test_scram_proves_both_sides(mechanism: str) -> None:
    broker = scram_broker(mechanism)
    login = scram(mechanism, NAME, PASSWORD, "ours")
    final = login.send(broker.step(next(login), 0))
    with pytest.raises(StopIteration):
        login.send(broker.step(final, 0))
    assert broker.identity is not None and broker.identity.principal.name == NAME


def test_a_wrong_password_is_refused_by_the_broker() -> None:
    broker = scram_broker("SCRAM-SHA-256")
    login = scram("SCRAM-SHA-256", NAME, "wrong", "ours")
    final = login.send(broker.step(next(login), 0))
    with pytest.raises(AuthenticationFailed):
        broker.step(final, 0)


def test_a_broker_that_does_not_know_the_password_is_refused_by_the_client() -> None:
    broker = scram_broker("SCRAM-SHA-256")
    login = scram("SCRAM-SHA-256", NAME, PASSWORD, "ours")
    login.send(broker.step(next(login), 0))
    with pytest.raises(NotTheBroker, match="does not know the password"):
        login.send(b"v=bm90IHRoZSBzaWduYXR1cmU=")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xff",
        b"r=ours,s=c2FsdA==",
        b"r=foreign,s=c2FsdA==,i=4096",
        b"r=ours1,s=c2FsdA==,i=0",
        b"r=ours1,s=c2FsdA==,i=99999999",
        b"r=ours1,s=&,i=4096",
    ],
)
def test_an_answer_that_is_not_scrams_is_refused_before_anything_is_computed(answer: bytes) -> None:
    login = scram("SCRAM-SHA-512", NAME, PASSWORD, "ours")
    next(login)
    with pytest.raises(NotTheBroker, match="none of SCRAM"):
        login.send(answer)
