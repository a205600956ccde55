"""The configuration in docs/security.md starts a broker, and lets in whom it says."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from compat_tests.brokers import MAGNETAR
from compat_tests.client import TIMEOUT_S
from magnetar.testing.certificates import COMMON_NAME, make, named
from tools.ports import free_port
from tools.reference_kafka.process import end

_PAGE = Path(__file__).parents[1] / "docs" / "security.md"


@pytest.fixture
def server_properties(tmp_path: Path) -> tuple[Path, int, int]:
    """The page's file beside its key, on free ports: where it is, and the two ports."""
    (text,) = re.findall(r"```properties\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    inside, outside = free_port(), free_port()
    path = tmp_path / "server.properties"
    path.write_text(text.replace("9092", str(inside)).replace("9093", str(outside)))
    authority = make(named((COMMON_NAME, "authority")))
    (tmp_path / "authority.pem").write_text(authority.certificate_pem)
    make(named((COMMON_NAME, "server")), authority).write_pem(tmp_path / "server.pem")
    return path, inside, outside


@pytest.mark.magnetar_only("the page is magnetar's")
def test_the_file_of_the_page_starts_a_broker(
    broker_kind: str, server_properties: tuple[Path, int, int]
) -> None:
    path, inside, outside = server_properties
    process = subprocess.Popen(
        [str(MAGNETAR), "serve", "--config", path.name, "--data-dir", "data"],
        cwd=path.parent,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert b" ready on " in process.stdout.readline()
        assert seen(inside, {}) == 1
        login = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(path.parent / "authority.pem"),
            "sasl.mechanism": "PLAIN",
            "sasl.username": "ada",
        }
        assert seen(outside, {**login, "sasl.password": "pw"}) == 1
        with pytest.raises(KafkaException):
            seen(outside, {**login, "sasl.password": "wrong"}, timeout_s=5.0)
    finally:
        assert end(process, signal.SIGTERM, 30.0)


def seen(port: int, settings: dict[str, str], timeout_s: float = TIMEOUT_S) -> int:
    """Return how many nodes a client sees."""
    client = AdminClient({"bootstrap.servers": f"localhost:{port}", "log_level": 0, **settings})
    return len(client.list_topics(timeout=timeout_s).brokers)
