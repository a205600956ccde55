"""`magnetar produce` and `consume` outlive a broker that is killed and comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
from click.testing import CliRunner

from magnetar.cli import consume
from magnetar.cli.commands import EXIT_FAILURE, EXIT_INTERRUPTED
from magnetar.cli.main import main
from magnetar.client import Client, Unreachable
from magnetar.testing import BrokerProcess, start_broker
from wire.messages.metadata import MetadataResponse

Start = Callable[..., "subprocess.Popen[str]"]
#: Shells show 130 for both. CPython ends by the signal if it came while text was executed, as it is
#: for each dataclass, even where the KeyboardInterrupt was caught.
INTERRUPTED = (EXIT_INTERRUPTED, -signal.SIGINT)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with start_broker(tmp_path) as running:
        assert run(running, "topics", "create", "a") == "a: created\n"
        yield running


@pytest.fixture
def start(broker: BrokerProcess) -> Iterator[Start]:
    """Start a command that runs beside the test; killed at its end."""
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "magnetar", *arguments, "-b", broker.bootstrap_servers]
        started.append(
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                # Tests in the background ignore interruptions, and their children would inherit it.
                preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
            )
        )
        return started[-1]

    yield begin
    for process in started:
        with process:
            process.kill()


def run(broker: BrokerProcess, *arguments: str, text: str = "") -> str:
    command = [*arguments, "-b", broker.bootstrap_servers]
    result = CliRunner().invoke(main, command, input=text)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def stream(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


@pytest.mark.parametrize("group", [(), ("-g", "readers")], ids=["alone", "in a group"])
def test_a_consumer_waits_for_its_broker_and_goes_on(
    broker: BrokerProcess, start: Start, group: tuple[str, ...]
) -> None:
    consumer = start("consume", "a", *group)
    run(broker, "produce", "a", text="before\n")
    assert stream(consumer.stdout).readline() == "before\n"
    broker.kill()
    assert "Trying again" in stream(consumer.stderr).readline()
    broker.start()
    run(broker, "produce", "a", text="after\n")
    lines = [stream(consumer.stdout).readline()]
    if lines == ["before\n"]:
        # In a group, what was not committed yet is printed again: at least once.
        assert group
        lines = [stream(consumer.stdout).readline()]
    assert lines == ["after\n"]


def test_an_interruption_ends_a_member_whose_broker_says_nothing(
    broker: BrokerProcess, start: Start
) -> None:
    run(broker, "produce", "a", text="before\n")
    member = start("consume", "a", "-g", "readers", "--timeout", "1s")
    assert stream(member.stdout).readline() == "before\n"
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        member.send_signal(signal.SIGINT)
        assert member.wait(60) in INTERRUPTED
        assert "Traceback" not in stream(member.stderr).read()
    finally:
        os.kill(broker.pid, signal.SIGCONT)


@pytest.mark.parametrize(
    "command",
    [("topics", "list"), ("consume", "a"), ("top", "--json"), ("why", "nobody", "--for", "60s")],
    ids=["list", "consume", "top", "why"],
)
def test_an_interrupted_command_says_nothing_and_exits_130(
    broker: BrokerProcess, start: Start, command: tuple[str, ...]
) -> None:
    if command[0] == "why":
        run(broker, "groups", "reset", "nobody", "--topic", "a", "--to-earliest", "--execute")
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        process = start(*command)
        _until_connected(process, broker)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in INTERRUPTED
        assert stream(process.stderr).read() == ""
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def _until_connected(process: subprocess.Popen[str], broker: BrokerProcess) -> None:
    """Return when the process is connected to the broker: it then waits for an answer.

    Before, it imports modules, where an interruption may come at a moment that ignores it.
    """
    port = int(broker.bootstrap_servers.rpartition(":")[2])
    descriptors = Path(f"/proc/{process.pid}/fd")
    open_files: set[str] = set()
    while not open_files & {f"socket:[{inode}]" for inode in _connected_to(port)}:
        assert process.poll() is None
        time.sleep(0.01)
        # A file may be closed meanwhile.
        with suppress(FileNotFoundError):
            open_files = {os.readlink(each) for each in descriptors.iterdir()}


def _connected_to(port: int) -> list[str]:
    """Return the inodes of the sockets that are connected to a port."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [line[9] for line in lines if line[2].endswith(f":{port:04X}")]


def test_top_goes_on_when_its_broker_is_back(broker: BrokerProcess, start: Start) -> None:
    top = start("top", "--json", "--interval", "50ms")
    assert "topics" in stream(top.stdout).readline()
    broker.kill()
    assert "Looking again" in stream(top.stderr).readline()
    broker.start()
    run(broker, "topics", "create", "later")
    assert any('"later"' in line for line in stream(top.stdout))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_console_that_is_told_to_stop_ends_in_silence(start: Start, number: int) -> None:
    console = start("console", "--listen", "127.0.0.1:0")
    assert "console ready" in stream(console.stderr).readline()
    console.send_signal(number)
    assert console.wait(60) == 0
    assert stream(console.stderr).read() == ""


def test_a_full_disk_is_named(broker: BrokerProcess) -> None:
    command = [sys.executable, "-m", "magnetar", "topics", "list", "-b", broker.bootstrap_servers]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert ended.returncode == EXIT_FAILURE
    assert ended.stderr == ("magnetar: error: standard input or output: No space left on device\n")


def test_a_producer_sends_again_and_nothing_twice(broker: BrokerProcess, start: Start) -> None:
    producer = start("produce", "a", "--json")
    lines = stream(producer.stdin)
    lines.write("before\n")
    lines.flush()
    assert run(broker, "consume", "a", "-c", "1") == "before\n"
    broker.kill()
    lines.write("while it was away\n")
    lines.flush()
    broker.start()
    lines.write("after\n")
    lines.close()
    assert producer.wait(60) == 0
    assert run(broker, "consume", "a", "-e") == "before\nwhile it was away\nafter\n"


def test_a_reader_that_has_enough_is_no_error(broker: BrokerProcess, start: Start) -> None:
    run(broker, "produce", "a", text="line\n" * 50_000)
    consumer = start("consume", "a")
    output = stream(consumer.stdout)
    assert output.readline() == "line\n"
    output.close()
    assert consumer.wait(60) == 0
    assert stream(consumer.stderr).read() == ""


@pytest.mark.parametrize(("timeout_s", "is_told"), [(60.0, True), (-1.0, False)])
def test_with_exit_a_leader_that_is_away_is_waited_for_as_long_as_timeout_says(
    timeout_s: float, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume, "_RETRY_S", 0.0)
    client = SimpleNamespace(timeout_s=timeout_s)
    session: Any = SimpleNamespace(at_end=True, printed=0, client=client)
    asked: list[int] = []

    def read() -> bool:
        asked.append(1)
        if len(asked) < 3:
            raise Unreachable("the leader is away.")
        return True

    if is_told:
        consume._retry_unreachable(session, read)
    else:
        with pytest.raises(Unreachable):
            consume._retry_unreachable(session, read)
    assert len(asked) == (3 if is_told else 1)


def test_a_partition_without_a_leader_is_waited_for(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has none for a moment while its node is taken over. It was passed over in silence."""
    monkeypatch.setattr(consume, "_RETRY_S", 0.0)
    run(broker, "produce", "a", text="1\n")
    ask, asked = Client.metadata, []

    def metadata(client: Client, names: Iterable[str] | None) -> MetadataResponse:
        response = ask(client, names)
        asked.append(response)
        if len(asked) < 3:
            for topic in response.topics:
                for partition in topic.partitions:
                    partition.leader_id = -1
        return response

    monkeypatch.setattr(Client, "metadata", metadata)
    assert run(broker, "consume", "a", "--exit") == "1\n"
    assert len(asked) >= 3
