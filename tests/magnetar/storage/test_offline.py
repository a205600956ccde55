"""A first user, written to the directory of a broker that does not run, or of several nodes."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from magnetar.cli.main import main
from magnetar.config.load import Given, load
from magnetar.storage.catalog import Catalog
from magnetar.storage.placing import placed
from magnetar.storage.scram_credentials import ScramCredentials
from tests.magnetar.nodes_in_one import NodesInOne


def add(data: Path) -> Result:
    arguments = ["users", "add", "ada", "--password-file", "-", "--data-dir", str(data)]
    return CliRunner().invoke(main, arguments, input="secret\n")


async def test_each_of_several_nodes_knows_the_user(tmp_path: Path) -> None:
    data = tmp_path / "data"
    nodes = NodesInOne(data)
    await nodes.start(2)
    running = add(data)
    await nodes.stop()
    assert running.exit_code != 0 and "in use by another process" in running.stderr
    assert add(data).exit_code == 0
    assert [path.parent for path in data.rglob("catalog.sqlite")] == [data]
    catalog = Catalog(data, is_shared=True)
    found = ScramCredentials(catalog).find("ada", "SCRAM-SHA-512")
    catalog.close()
    assert found is not None


def test_the_directory_of_one_of_several_nodes_is_not_taken_for_a_broker(tmp_path: Path) -> None:
    data = tmp_path / "data"
    given = {"log.dirs": str(data), "node.id": "0", "durability": "page-cache"}
    config = load([Given(name, value, "test") for name, value in given.items()]).config
    with placed(data, config, [0, 1]):
        pass
    part = data / "nodes" / "1"
    refused = add(part)
    assert refused.exit_code != 0 and f"Name {data}." in refused.stderr
    for workers in ("1", "2"):
        serve = ["serve", "--workers", workers, "--data-dir", str(part), "--listen", "[::1]:0"]
        served = CliRunner().invoke(main, serve)
        assert served.exit_code == 2 and f"Name {data}." in served.stderr
    assert not (part / "catalog.sqlite").exists()
