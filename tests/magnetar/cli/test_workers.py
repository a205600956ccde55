"""`magnetar serve --workers`: a cluster of nodes behind one command."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from magnetar.cli.main import main
from magnetar.cli.serve_flags import worker_count
from magnetar.cli.workers import worker_nodes
from magnetar.config.load import ConfigError, Given, load
from magnetar.testing import BrokerProcess, NotReady


def run(broker: BrokerProcess, *arguments: str, text: str = "") -> str:
    result = CliRunner().invoke(main, [*arguments, "-b", broker.bootstrap_servers], input=text)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def nodes_of(broker: BrokerProcess) -> list[int]:
    children = Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text()
    return [int(pid) for pid in children.split()]


def test_a_cluster_serves_outlives_a_killed_node_and_becomes_one_node(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, workers=2) as broker:
        assert run(broker, "topics", "create", "a", "--partitions", "4") == "a: created\n"
        run(broker, "produce", "a", text="".join(f"value-{number}\n" for number in range(20)))
        os.kill(nodes_of(broker)[1], signal.SIGKILL)
        consume = ("consume", "a", "--offset", "beginning", "--count", "20")
        assert len(run(broker, *consume).split()) == 20
        broker.kill()
        broker.start()
        assert len(run(broker, *consume).split()) == 20
        assert "node ended" not in broker.log
        assert broker.stop() == 0
        assert all("not a clean one" in line for line in broker.log.splitlines())
        broker.workers = 1
        broker.start()
        assert len(run(broker, *consume).split()) == 20
        assert "partitions moved" in broker.log


def test_a_clean_stop_leaves_no_sockets(tmp_path: Path) -> None:
    settings = {"metrics.listen": "127.0.0.1:0"}
    with BrokerProcess(tmp_path, workers=2, settings=settings) as broker:
        assert len([*tmp_path.rglob("*.sock")]) > 2
        assert broker.stop() == 0
    assert [*tmp_path.rglob("*.sock")] == []


def test_a_node_that_cannot_use_its_disk_leaves_the_others_alone(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, workers=2) as broker:
        lock = tmp_path / "nodes" / "2" / ".lock"
        lock.unlink()
        lock.mkdir()  # It cannot be opened, as on a disk that is read-only after an error.
        os.kill(nodes_of(broker)[1], signal.SIGKILL)
        deadline_s = time.monotonic() + 20
        while f"{lock}: Is a directory" not in broker.log and time.monotonic() < deadline_s:
            time.sleep(0.01)  # Another process logs it.
        assert run(broker, "topics", "create", "a", "--partitions", "4") == "a: created\n"
        lock.rmdir()
        # To every partition: the client waits for the node.
        text = "".join(f"{number}:value\n" for number in range(20))
        run(broker, "produce", "a", "--key-delimiter", ":", text=text)
        assert broker.stop() == 0


@pytest.mark.parametrize("workers", ["0", "-1", "many", "65"])
def test_a_number_of_workers_that_cannot_be(workers: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        main, ["serve", "--workers", workers, "--data-dir", str(tmp_path), "--listen", "[::1]:0"]
    )
    assert result.exit_code == 2
    assert f"--workers {workers}: give auto, or a number from 1 to 64" in result.stderr


def test_ids_of_nodes_are_no_higher_than_requests_can_name(tmp_path: Path) -> None:
    settings = {"node.id": str(2**31 - 2)}
    with pytest.raises(
        NotReady, match=r"exit code 2: .*the last of 3 nodes would have id 2147483648"
    ):
        BrokerProcess(tmp_path, settings, workers=3).start()


@pytest.mark.parametrize(("cores", "nodes"), [(1, 1), (3, 3), (200, 64)])
def test_auto_is_a_node_for_each_core_that_the_process_may_use(
    cores: int, nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert worker_count("auto") == nodes


def test_nodes_have_to_share_a_directory(tmp_path: Path) -> None:
    with pytest.raises(NotReady, match=r"exit code 2: .*durability=memory has none"):
        BrokerProcess(tmp_path, {"durability": "memory"}, workers=2).start()


def test_a_taken_port_is_reported_before_anything_is_touched(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "magnetar", "serve", "--workers", "2"]
        command += ["--data-dir", str(tmp_path / "data"), "--listen", f"127.0.0.1:{port}"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert f"cannot listen on PLAINTEXT://127.0.0.1:{port}" in result.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_port_that_two_listeners_ask_for_is_reported(workers: int, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # With two nodes the second listener of the first and the first one of the second.
    other = port + workers - 1
    settings = [
        f"listeners=A://127.0.0.1:{port},B://127.0.0.1:{other}",
        "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT",
        "inter.broker.listener.name=A",
    ]
    command = [sys.executable, "-m", "magnetar", "serve", "--workers", str(workers)]
    command += ["--data-dir", str(tmp_path), *(f"--set={each}" for each in settings)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"127.0.0.1:{other}: Address already in use" in done.stderr


def test_a_port_beyond_the_last_one_is_reported() -> None:
    config = load([Given("listeners", "PLAINTEXT://127.0.0.1:65535", "test")]).config
    with pytest.raises(ConfigError, match="would have port 65536"):
        worker_nodes(config, [1, 2])


def test_each_node_has_the_next_port_and_its_part_of_the_memory() -> None:
    values = {
        "listeners": "A://127.0.0.1:0,B://[::1]:0",
        "advertised.listeners": "B://example:7000",
        "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT",
        "node.id": "5",
        "log.dirs": "data",
        "queued.max.request.bytes": "3000",
    }
    config = load([Given(name, value, "test") for name, value in values.items()]).config
    found = worker_nodes(config, range(config.node_id, config.node_id + 3))
    for node in found.values():
        for each in node.sockets:
            each.close()
    assert [*found] == [5, 6, 7]
    for number, (node_id, node) in enumerate(found.items()):
        first, second = node.listeners
        assert (second.advertised_host, second.advertised_port) == ("example", 7000 + number)
        assert first.advertised_port == first.port > 0
        assert node.config.node_id == node.config.broker_id == node_id
        assert node.config.log_dirs == [f"data/nodes/{node_id}"]
        assert node.config.queued_max_request_bytes == 1000
