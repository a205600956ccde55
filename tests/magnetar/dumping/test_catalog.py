"""The catalog as `magnetar dump` shows it: without its secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from magnetar.dumping.small_files import dump_catalog
from magnetar.storage.catalog import Catalog
from magnetar.storage.sqlite_database import FILE_NAME
from wire.resource_type import ResourceType

PASSWORD = "the keystore's password"
STORED_KEY, SERVER_KEY = b"stored key", b"server key"


def test_a_dump_shows_users_and_configs_and_no_secret(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    kept = {"SCRAM-SHA-256": (b"salt", 4096, STORED_KEY, SERVER_KEY)}
    catalog.set_scram_credentials({"ada": kept})
    location, password = (
        f"listener.name.tls.ssl.keystore.{each}" for each in ("location", "password")
    )
    configs = {location: "/a.p12", password: PASSWORD, "log.retention.ms": "1"}
    catalog.set_resource_configs(ResourceType.BROKER, "1", configs)
    secret = catalog.secret()
    catalog.close()
    rows: dict[str, list[dict[str, Any]]] = {}
    for entry in dump_catalog(tmp_path / FILE_NAME):
        rows.setdefault(entry.kind, []).append(entry.fields)
    (user,) = rows["scram_credentials"]
    assert (user["user"], user["iterations"]) == ("ada", 4096)
    shown = {row["name"]: row["value"] for row in rows["resource_configs"]}
    assert shown == {**configs, password: "(hidden)"}
    whole = str(rows)
    for hidden in (secret, STORED_KEY, SERVER_KEY):
        assert hidden.hex() not in whole and str(hidden) not in whole
