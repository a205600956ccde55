"""The PostgreSQL server of the tests, where its programs lie out of reach of its user."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tools import postgresql
from tools.postgresql import PostgresServer


def test_programs_that_were_copied_for_another_user_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root installs them below its home, which no other user may enter."""
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(postgresql, "_others_reach", lambda path: False)
    server = PostgresServer(tmp_path)
    for name in ("initdb", "postgres", "pg_basebackup"):
        program = server._programs() / name
        assert tmp_path.parent not in program.parents
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        assert "(PostgreSQL) 18" in said.stdout
    server.stop()
    assert not program.exists()


def test_a_directory_that_the_servers_user_cannot_enter_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    tmp_path.chmod(0o700)
    server = PostgresServer(tmp_path / "data")
    with pytest.raises(RuntimeError, match=f"who cannot enter {tmp_path}/data: name a directory"):
        server.start()
