"""Users of SCRAM, and those who are none."""

from __future__ import annotations

from magnetar.security.scram import USUAL_SHAPE, ScramCredential, shape_of
from magnetar.storage.catalog import Catalog
from magnetar.storage.scram_credentials import ScramCredentials

MECHANISM = "SCRAM-SHA-256"


def kept(salt: bytes, iterations: int) -> ScramCredential:
    return ScramCredential(salt, iterations, b"stored", b"server")


def test_a_user_that_does_not_exist_looks_like_one_that_does() -> None:
    users = ScramCredentials(Catalog(None))
    assert shape_of(users.decoy("stranger", MECHANISM)) == USUAL_SHAPE
    made = [kept(b"1k9z" * 6 + b"00", 8192), kept(bytes(range(200, 232)), 4096)]
    for number, credential in enumerate(made):
        users.replace({f"user-{number}": {MECHANISM: credential}})
    shapes = {shape_of(users.decoy(f"stranger-{number}", MECHANISM)) for number in range(50)}
    assert shapes == set(map(shape_of, made))


def test_a_decoy_is_always_the_same() -> None:
    users = ScramCredentials(Catalog(None))
    users.replace({"ada": {MECHANISM: kept(b"salt", 4096)}})
    assert users.decoy("eve", MECHANISM) == users.decoy("eve", MECHANISM)
    assert users.decoy("eve", MECHANISM) != users.decoy("bob", MECHANISM)
    assert users.decoy("eve", MECHANISM) != users.decoy("eve", "SCRAM-SHA-512")
    other = ScramCredentials(Catalog(None))
    assert users.decoy("eve", MECHANISM) != other.decoy("eve", MECHANISM)
