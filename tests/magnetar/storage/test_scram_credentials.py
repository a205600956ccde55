"""Users of SCRAM, and those who are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar.security.scram import USUAL_SHAPE, ScramCredential, shape_of
from magnetar.storage.catalog import Catalog
from magnetar.storage.database import CatalogUnavailable
from magnetar.storage.scram_credentials import ScramCredentials

MECHANISM = "SCRAM-SHA-256"


def kept(salt: bytes, iterations: int) -> ScramCredential:
    return ScramCredential(salt, iterations, b"stored", b"server")


def test_a_user_that_does_not_exist_looks_like_one_that_does() -> None:
    users = ScramCredentials(Catalog(None))
    assert shape_of(users.decoy("stranger", MECHANISM)) == USUAL_SHAPE
    made = [kept(b"1k9z" * 6 + b"00", 8192), kept(bytes(range(200, 232)), 4096)]
    for number in range(20):
        users.replace({f"user-{number}": {MECHANISM: made[number % 2]}})
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


def test_a_decoy_is_the_same_at_all_nodes_and_after_a_restart(tmp_path: Path) -> None:
    one, other = (ScramCredentials(Catalog(tmp_path)) for _ in range(2))

    def decoys(users: ScramCredentials) -> list[ScramCredential]:
        return [users.decoy(f"stranger-{number}", MECHANISM) for number in range(50)]

    for number in range(9):
        changed = one if number % 2 else other
        changed.replace({f"user-{number}": {MECHANISM: kept(b"salt", 4096 + number)}})
        (other if number % 2 else one).reload(f"user-{number}")
    one.replace({"user-0": {}, "user-1": {"SCRAM-SHA-512": kept(b"salt", 8192)}})
    for user in ("user-0", "user-1"):
        other.reload(user)
    assert decoys(one) == decoys(other) == decoys(ScramCredentials(Catalog(tmp_path)))
    assert {each.iterations for each in decoys(one)} <= set(range(4098, 4105))


def test_one_user_more_changes_the_decoys_of_few() -> None:
    users = ScramCredentials(Catalog(None))
    users.replace({f"user-{number}": {MECHANISM: kept(b"salt", 4096)} for number in range(200)})
    names = [f"stranger-{number}" for number in range(100)]
    before = [users.decoy(name, MECHANISM) for name in names]
    users.replace({"one more": {MECHANISM: kept(b"salt", 8192)}})
    changed = [
        name for name, was in zip(names, before, strict=True) if users.decoy(name, MECHANISM) != was
    ]
    assert len(changed) < 20


def test_a_user_stays_known_while_the_catalog_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    catalog = Catalog(None)
    users = ScramCredentials(catalog)
    users.replace({"ada": {MECHANISM: kept(b"salt", 4096)}})

    def away(*users: str) -> list[tuple[str, str, bytes, int, bytes, bytes]]:
        raise CatalogUnavailable("away")

    monkeypatch.setattr(catalog, "scram_credentials", away)
    with pytest.raises(CatalogUnavailable):
        users.reload("ada")
    assert users.find("ada", MECHANISM) == kept(b"salt", 4096)
    assert shape_of(users.decoy("stranger", MECHANISM)) == shape_of(kept(b"salt", 4096))
