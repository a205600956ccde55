"""`magnetar console`: mistakes are said before anything is served."""

from __future__ import annotations

import socket
from pathlib import Path

from click.testing import CliRunner, Result

from magnetar.cli.main import main


def console(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["console", *arguments])


def test_an_address_that_is_none_is_a_mistake() -> None:
    found = console("--listen", "foo")
    assert found.exit_code == 2 and "foo is not host:port" in found.output


def test_an_address_that_is_taken_is_said_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = console("--listen", f"127.0.0.1:{port}")
    assert found.exit_code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in found.output and "--listen" in found.output


def test_clusters_have_names_that_stand_in_addresses_and_each_its_own() -> None:
    found = console("--cluster", "a/b=127.0.0.1:1")
    assert found.exit_code == 2 and "no name of a cluster" in found.output
    found = console("--cluster", "a=127.0.0.1:1", "--cluster", "a=127.0.0.1:2")
    assert found.exit_code == 2 and "Two clusters have one name" in found.output
    found = console("--cluster", "a=127.0.0.1:1", "--bootstrap", "127.0.0.1:1")
    assert found.exit_code == 2 and "--cluster stands for --bootstrap" in found.output
    found = console("--cluster", "a=nonsense")
    assert found.exit_code == 2 and "nonsense" in found.output
    found = console("--cluster", "none")
    assert found.exit_code == 1 and "has no profile 'none'" in found.output


def test_a_registry_and_a_file_that_make_no_sense_are_said(tmp_path: Path) -> None:
    found = console("--schema-registry", "ftp://127.0.0.1")
    assert found.exit_code == 1 and "no address of a schema registry" in found.output
    settings = tmp_path / "client.properties"
    settings.write_text("security.protocol=SASL_SSL\n")
    found = console("--command-config", str(settings))
    assert found.exit_code == 1 and "sasl.mechanism is missing" in found.output
