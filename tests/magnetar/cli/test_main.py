"""`magnetar serve` as a person meets it: ready, stopped, wrong, full, killed."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from magnetar import __version__
from magnetar.cli.commands import EXIT_FAILURE, EXIT_INTERRUPTED, Commands
from magnetar.cli.main import main
from magnetar.storage.catalog import Catalog
from magnetar.storage.sqlite_database import FILE_NAME
from magnetar.testing import NotReady, start_broker


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "magnetar", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_version_and_help() -> None:
    runner = CliRunner()
    assert runner.invoke(main, ["--version"]).output == f"magnetar {__version__}\n"
    shown = runner.invoke(main, ["serve", "--help"]).output
    for option in ("--listen", "--data-dir", "--config", "--set", "--log-format"):
        assert option in shown


def _asking() -> click.Command:
    asking = Commands("asking")
    asking.command("ask")(lambda: click.confirm("Delete it?", abort=True))
    return asking


@pytest.mark.parametrize(
    ("stopped_by", "code"), [(KeyboardInterrupt, EXIT_INTERRUPTED), (EOFError, EXIT_FAILURE)]
)
def test_ctrl_c_at_a_question_is_an_interrupt_and_the_end_of_the_input_a_no(
    stopped_by: type[BaseException], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> str:
        raise stopped_by

    monkeypatch.setattr("click.termui.visible_prompt_func", stop)
    with pytest.raises(SystemExit) as ended:
        _asking().main(["ask"])
    assert ended.value.code == code


def test_an_empty_storage_is_a_mistake_and_no_broker_of_its_own(tmp_path: Path) -> None:
    served = run("serve", "--storage", "", "--data-dir", str(tmp_path / "data"))
    assert served.returncode == 2
    assert served.stderr.startswith("magnetar: error: --storage is empty: postgresql://")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("url", ["mysql://user:secret@host/x", "postgresql://[host/x"])
def test_a_storage_that_is_no_database_is_a_mistake(url: str, tmp_path: Path) -> None:
    served = run("serve", "--storage", url, "--data-dir", str(tmp_path / "data"))
    assert served.returncode == 2
    assert served.stderr.startswith("magnetar: error: --storage is not a database's URL")
    assert "secret" not in served.stderr


def test_ready_means_clients_can_connect_and_sigterm_is_a_clean_stop(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker:
        socket.create_connection((broker.host, broker.port)).close()
        assert broker.stop() == 0
        assert "Traceback" not in broker.log
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_a_start_that_is_told_to_stop_ends_cleanly(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    os.mkfifo(config)
    process = subprocess.Popen(
        [sys.executable, "-m", "magnetar", "serve", "--config", str(config)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    # Open once the broker waits for its configuration.
    with config.open("w"):
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "magnetar: stopped during its start\n")


def test_a_killed_broker_starts_again_on_its_data(tmp_path: Path) -> None:
    broker = start_broker(tmp_path)
    with broker:
        port = broker.port
        assert broker.log == ""
        broker.kill()
        broker.start()
        assert broker.port == port
        assert "the last stop was not a clean one: logs are recovered" in broker.log
        broker.stop()
        broker.start()
        assert broker.log == ""


def test_two_signals_at_the_same_moment_are_a_clean_stop(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker:
        # Stopped, it takes both signals at the same time when it goes on.
        os.kill(broker.pid, signal.SIGSTOP)
        os.kill(broker.pid, signal.SIGTERM)
        os.kill(broker.pid, signal.SIGINT)
        os.kill(broker.pid, signal.SIGCONT)
        assert broker.wait() == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "num.partitions=x"], "--set: num.partitions=x is not a whole number"),
        (["--set", "nonsense"], "--set nonsense: expected name=value"),
        (["--listen", "nowhere"], "--listen: nowhere is not host:port"),
        (["--config", "missing.properties"], "cannot read missing.properties"),
        (["--set", "listeners=TLS://:1"], "TLS is not one of the protocols"),
    ],
)
def test_a_mistake_is_named_and_exits_2(arguments: list[str], message: str, tmp_path: Path) -> None:
    ended = run("serve", "--data-dir", str(tmp_path), *arguments)
    assert ended.returncode == 2
    assert ended.stderr.startswith("magnetar: error: ")
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_taken_address_is_named_and_exits_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run("serve", "--data-dir", str(tmp_path), "--listen", f"127.0.0.1:{port}")
    assert ended.returncode == 2
    assert f"cannot listen on PLAINTEXT://127.0.0.1:{port}" in ended.stderr


def test_a_taken_data_directory_is_named(tmp_path: Path) -> None:
    with start_broker(tmp_path), pytest.raises(NotReady, match="in use by another process"):
        start_broker(tmp_path).start()


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "--listen", "127.0.0.1:0", "--data-dir"],
        ["serve", "--workers", "2", "--listen", "127.0.0.1:0", "--data-dir"],
        ["users", "add", "ada", "--password-file", __file__, "--data-dir"],
        ["check"],
    ],
)
def test_a_directory_of_a_newer_release_is_named_once(arguments: list[str], tmp_path: Path) -> None:
    Catalog(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as database:
        database.execute("PRAGMA user_version = 99")
    ended = run(*arguments, str(tmp_path))
    assert ended.returncode != 0
    assert f" {tmp_path / FILE_NAME} was written by a newer magnetar (schema 99," in ended.stderr
    assert ended.stderr.count(FILE_NAME) == 1
    assert ".." not in ended.stderr


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker:
        broker.stop()
    checkpoint = tmp_path / "recovery-point-offset-checkpoint"
    checkpoint.unlink()
    checkpoint.mkdir()
    ended = run("serve", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path))
    assert ended.returncode == 2
    assert f"directory {tmp_path}: {checkpoint}: Is a directory\n" in ended.stderr


def test_a_configuration_that_is_no_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_bytes(b"node.id=1\n\xff\xfe")
    ended = run("serve", "--config", str(file))
    assert ended.returncode == 2
    assert ended.stderr == f"magnetar: error: {file} is no text in UTF-8: its byte 11 is 0xff\n"


def test_a_server_properties_of_kafka_starts_a_broker(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "process.roles=broker,controller\n"
        "node.id=7\n"
        "listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0\n"
        "controller.listener.names=CONTROLLER\n"
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
        f"log.dirs={tmp_path}/data\n"
        "num.partition=3\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "magnetar", "serve", "--config", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert "ready" in line and "node 7" in line
    assert process.returncode == 0
    assert "line 1: process.roles has no effect" in errors
    assert "Did you mean num.partitions?" in errors
    assert (tmp_path / "data" / "catalog.sqlite").exists()


def test_a_stop_is_clean_also_where_nobody_reads_the_output_any_more(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "magnetar", "serve", "--listen", "127.0.0.1:0"]
        + ["--data-dir", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    assert "ready" in process.stdout.readline()
    process.stdout.close()
    process.terminate()
    assert process.wait(timeout=60) == 0
    assert process.stderr.read() == ""
    process.stderr.close()


def test_a_failing_disk_stops_the_broker_with_a_plain_message(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker:
        broker.stop()
    (tmp_path / "catalog.sqlite").write_bytes(b"not a database" * 1000)
    ended = run("serve", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path))
    assert ended.returncode == 1
    assert "magnetar: fatal: catalog" in ended.stderr
    assert "Put a copy of the file back, or let `magnetar repair`" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_full_disk_stops_the_broker_and_no_acknowledged_record_is_lost(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker:
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "linger.ms": 0,
                "reconnect.backoff.max.ms": 200,
            }
        )
        acknowledged: list[int] = []

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is None:
                offset = message.offset()
                assert offset is not None
                acknowledged.append(offset)

        producer.produce("a", b"first", on_delivery=on_delivery)
        assert producer.flush(10) == 0
        # Files that may not grow beyond 1 MB look like a full disk to those who write them.
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        for _ in range(30):
            producer.produce("a", os.urandom(100_000), on_delivery=on_delivery)
            producer.poll(0.01)
        assert broker.wait() == 1
        assert "magnetar: fatal: " in broker.log
        broker.start()
        producer.flush(20)
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": "a",
                "enable.auto.commit": False,
            }
        )
        consumer.assign([TopicPartition("a", 0, 0)])
        found: set[int | None] = set()
        while not found >= set(acknowledged):
            found |= {message.offset() for message in consumer.consume(100, 0.5)}
        consumer.close()
        assert len(acknowledged) == 31


def test_it_starts_quickly_and_rests_small(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker:
        status = Path(f"/proc/{broker.pid}/status").read_text()
        resident_kb = int(status.split("VmRSS:")[1].split()[0])
        ticks = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
        cpu_seconds = (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")
    assert resident_kb < 70 * 1024
    # CPU time: 0.3 s on a quiet machine, twice that on a busy one. A library too many costs more.
    assert cpu_seconds < 1.0
