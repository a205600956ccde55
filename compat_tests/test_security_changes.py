"""Certificates of a listener that change while the broker serves, by Kafka's own tool."""

from __future__ import annotations

import ssl
from pathlib import Path

from compat_tests import tool_box
from compat_tests.brokers import Broker
from compat_tests.secured import Certificates, secured_brokers
from compat_tests.waiting import eventually

brokers = secured_brokers(lambda broker: None)
LOCATION = "listener.name.ssl.ssl.keystore.location"


def alter(broker: Broker, name: str, value: str, *entity: str) -> tool_box.Ended:
    return tool_box.call(
        "ConfigCommand",
        *("--bootstrap-server", broker.bootstrap, "--entity-type", "brokers"),
        *(entity or ("--entity-name", "1")),
        *("--alter", "--add-config", f"{name}={value}"),
    )


def served(broker: Broker) -> str:
    """Return the certificate that a new client of the TLS listener is shown, as PEM."""
    host, port = broker.address("SSL").split(":")
    return ssl.get_server_certificate((host, int(port)))


def test_a_certificate_changes_for_new_clients_and_a_bad_one_is_refused(
    secured: Broker, certificates: Certificates, tmp_path: Path
) -> None:
    before = served(secured)
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("no certificate")
    refused = [
        alter(secured, LOCATION, str(rubbish)),
        alter(secured, LOCATION, str(tmp_path / "missing.pem")),
        # A setting of one listener, of one broker.
        alter(secured, "ssl.keystore.location", str(certificates.server)),
        alter(secured, LOCATION, str(certificates.server), "--entity-default"),
        # Of another name.
        alter(secured, LOCATION, str(certificates.of_server("another", tmp_path))),
    ]
    assert [ended.status for ended in refused] == [1] * len(refused), refused
    assert served(secured) == before
    renewed = certificates.of_server("server", tmp_path)
    assert alter(secured, LOCATION, str(renewed)).status == 0
    eventually(lambda: served(secured).strip() in renewed.read_text())
