"""The files in docs/oauthbearer.md: a broker starts with one, a command connects with the other."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
)

from compat_tests.brokers import MAGNETAR
from magnetar.testing.certificates import COMMON_NAME, make, named
from magnetar.testing.tokens import TokenIssuer
from tools.ports import free_port
from tools.reference_kafka.process import end

_PAGE = Path(__file__).parents[1] / "docs" / "oauthbearer.md"
_SECRETS = "/run/secrets/kafka"


@pytest.fixture
def issuer(tmp_path: Path) -> TokenIssuer:
    """An issuer whose keys are among the secrets, beside those of the listener."""
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    authority = make(named((COMMON_NAME, "authority")))
    (tmp_path / "authority.pem").write_text(authority.certificate_pem)
    server = make(named((COMMON_NAME, "server")), authority)
    (secrets / "tls.crt").write_text(server.certificate_pem)
    (secrets / "tls.key").write_bytes(
        server.key.private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"pw of the key")
        )
    )
    (secrets / "passwords.properties").write_text("tls.key=pw of the key\n")
    return TokenIssuer(secrets)


@pytest.mark.magnetar_only("the page is magnetar's")
def test_the_files_of_the_page_start_a_broker_and_let_a_command_in(
    broker_kind: str, issuer: TokenIssuer, tmp_path: Path
) -> None:
    texts = re.findall(r"```properties\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    inside, outside = str(free_port()), str(free_port())
    for name, text in zip(("server", "client"), texts, strict=True):
        written = text.replace(_SECRETS, str(tmp_path / "secrets"))
        written = written.replace("9092", inside).replace("9093", outside)
        (tmp_path / f"{name}.properties").write_text(written)
    process = subprocess.Popen(
        [str(MAGNETAR), "serve", "--config", "server.properties", "--data-dir", "data"],
        cwd=tmp_path,
        env={**os.environ, "KAFKA_ISSUER": issuer.name},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert b" ready on " in process.stdout.readline()
        token = tmp_path / "secrets" / "token"
        token.write_text(issuer.token("ada"))
        assert listed(tmp_path, outside).returncode == 0
        token.write_text(issuer.token("ada", aud="other"))
        refused = listed(tmp_path, outside)
        assert refused.returncode == 1
        assert "The broker's log says why" in refused.stderr
    finally:
        assert end(process, signal.SIGTERM, 30.0)


def listed(directory: Path, port: str) -> subprocess.CompletedProcess[str]:
    """Return how a command ended that uses the client's file."""
    command = [sys.executable, "-m", "magnetar", "topics", "list", "-b", f"localhost:{port}"]
    return subprocess.run(
        [*command, "--command-config", "client.properties"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
