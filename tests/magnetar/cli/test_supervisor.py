"""The processes of `serve --workers`: started again, stopped together, and none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from magnetar.cli.supervisor import ONE_SIGNAL_S

Start = Callable[..., "subprocess.Popen[str]"]

#: Two nodes that do as `BODY` says. Each writes its number and process id.
SCRIPT = """
import os, sys, time
from magnetar.cli.supervisor import Supervisor

def body(number, ties):
    os.write(1, b"%d %d\\n" % (number, os.getpid()))  # In one piece.
    BODY

def ready():
    print("ready", flush=True)

bodies = {number: lambda ties, number=number: body(number, ties) for number in (1, 2)}
sys.exit(Supervisor(bodies, ready, (1.5, 2.5)).run())
"""
SERVES = "ties.tell_ready(); stops = ties.is_stop(); os.write(1, b'stopped\\n'); return 0"
HANGS = "ties.tell_ready(); ties.is_stop(); time.sleep(60)"


#: Forks fail twice once all nodes serve. Then the supervisor says how many descriptors it has more.
FAILING_FORKS = """
import os, sys
fork, open_at = os.fork, []

def failing_fork():
    open_at.append(len(os.listdir("/proc/self/fd")))
    if len(open_at) in (3, 4):
        raise BlockingIOError(11, os.strerror(11))
    if len(open_at) == 5:
        print("more descriptors:", open_at[4] - open_at[2], file=sys.stderr, flush=True)
    return fork()

os.fork = failing_fork
"""


#: The third process, which is to be a node that was killed, fails before it has become one.
FAILING_CHILD = """
import os, signal
fork, set_wakeup_fd, forks = os.fork, signal.set_wakeup_fd, []

def counted_fork():
    forks.append(1)
    return fork()

def failing(fd):
    if fd == -1 and len(forks) == 3:
        raise OSError(12, "no memory in the child")
    return set_wakeup_fd(fd)

os.fork, signal.set_wakeup_fd = counted_fork, failing
"""


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a supervisor whose nodes do as a body says; it and its nodes are killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def begin(body: str, before: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", before + SCRIPT.replace("BODY", body)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        with process:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def until_ready(process: subprocess.Popen[str]) -> dict[int, int]:
    """Return the process id of each node, once the supervisor says that all are ready."""
    pids = {}
    while (said := line(process)) != "ready":
        number, pid = said.split()
        pids[int(number)] = int(pid)
    return pids


def ends(pid: int) -> bool:
    """Whether a process that is no child of ours ends within some seconds."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)  # Another process ends when it does.
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_all_nodes_cleanly(start: Start, number: signal.Signals) -> None:
    process = start(SERVES)
    assert [*sorted(until_ready(process))] == [1, 2]
    process.send_signal(number)
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, output.split(), errors) == (0, ["stopped"] * 2, "")


def test_signals_to_a_node_are_passed_over(start: Start) -> None:
    process = start(SERVES)
    pids = until_ready(process)
    for pid in pids.values():
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    process.terminate()
    assert process.communicate(timeout=20)[0].split() == ["stopped"] * 2


def killed_and_started_again(process: subprocess.Popen[str]) -> str:
    """Kill node 2, and stop all once it is there again; return what they have logged."""
    pids = until_ready(process)
    os.kill(pids[2], signal.SIGKILL)
    number, pid = line(process).split()
    assert number == "2" and int(pid) != pids[2]
    process.terminate()
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, output.split()) == (0, ["stopped"] * 2)
    return errors


def test_a_node_that_was_killed_is_started_again(start: Start) -> None:
    errors = killed_and_started_again(start(SERVES))
    assert "node ended" in errors and "-9" in errors


def test_a_fork_that_fails_is_tried_again(start: Start) -> None:
    errors = killed_and_started_again(start(SERVES, FAILING_FORKS))
    assert errors.count("Resource temporarily unavailable") == 2
    assert "more descriptors: 0" in errors


def test_a_process_that_fails_before_it_is_a_node_is_no_second_supervisor(start: Start) -> None:
    errors = killed_and_started_again(start(SERVES, FAILING_CHILD))
    assert "no memory in the child" in errors
    assert "cannot be started yet" not in errors


def test_a_node_that_cannot_start_ends_all(start: Start) -> None:
    process = start(f"if number == 2: return 3\n    {SERVES}")
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 3
    assert "ready" not in output and output.count("stopped") == 1


def test_a_mistake_of_one_node_leaves_the_others_serving(start: Start, tmp_path: Path) -> None:
    """A certificate that was replaced by a bad one, for example."""
    flag, seen = tmp_path / "flag", tmp_path / "seen"
    failing = f"os.rename({str(flag)!r}, {str(seen)!r}); return 2"
    process = start(f"if os.path.exists({str(flag)!r}): {failing}\n    {SERVES}")
    pids = until_ready(process)
    flag.touch()
    os.kill(pids[1], signal.SIGKILL)
    numbers = [line(process).split()[0] for _ in range(2)]
    process.terminate()
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, numbers, seen.exists()) == (0, ["1", "1"], True)
    assert output.split() == ["stopped"] * 2
    assert '"exit_code": 2' in errors


def test_a_mistake_of_one_node_leaves_another_one_to_its_start(
    start: Start, tmp_path: Path
) -> None:
    flag, seen = tmp_path / "flag", tmp_path / "seen"
    process = start(
        f"if os.path.exists({str(flag)!r}):\n"
        # Once: a try at the moment of the stop would be the exit code of all.
        f"        if number == 1 and not os.path.exists({str(seen)!r}):\n"
        f"            open({str(seen)!r}, 'w'); return 2\n"
        "        if number == 2:\n"
        f"            while not os.path.exists({str(seen)!r}): time.sleep(0.01)\n"
        "            time.sleep(0.3); os.write(1, b'2 starts\\n')\n"
        f"    {SERVES}"
    )
    pids = until_ready(process)
    flag.touch()
    os.kill(pids[2], signal.SIGKILL)
    assert line(process).startswith("2 ")
    os.kill(pids[1], signal.SIGKILL)
    said = iter(lambda: line(process) or "ended", "ended")
    assert "2 starts" in said
    process.terminate()
    output, errors = process.communicate(timeout=20)
    assert process.returncode == 0 and "stopped" in output
    assert '"exit_code": 2' in errors


def test_a_mistake_ends_all_where_no_other_node_serves(start: Start, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    process = start(f"if os.path.exists({str(flag)!r}): return 2\n    {SERVES}")
    pids = until_ready(process)
    flag.touch()
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=20)
    assert process.returncode == 2


def test_two_signals_at_the_same_moment_are_a_clean_stop(start: Start) -> None:
    process = start(SERVES)
    until_ready(process)
    # Stopped, it takes both signals at the same time when it goes on.
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
        process.send_signal(number)
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, output, errors) == (0, "stopped\nstopped\n", "")


def test_a_second_signal_ends_all_at_once(start: Start) -> None:
    process = start(HANGS)
    pids = until_ready(process)
    process.terminate()
    time.sleep(ONE_SIGNAL_S + 0.1)  # A signal that comes sooner counts as the first one.
    process.terminate()
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (130, "magnetar: stopped at once\n")
    assert all(ends(pid) for pid in pids.values())


def test_a_node_that_does_not_stop_is_told_of_and_killed(start: Start) -> None:
    process = start(SERVES)
    pids = until_ready(process)
    os.kill(pids[2], signal.SIGSTOP)
    process.terminate()
    output, errors = process.communicate(timeout=20)
    # As a shell has it: 128, and SIGKILL.
    assert (process.returncode, output.split()) == (137, ["stopped"])
    waits, killed = errors.splitlines()
    assert "waits for nodes" in waits and "[2]" in waits
    assert "killed" in killed and "[2]" in killed
    assert ends(pids[2])


def test_nodes_hear_that_their_supervisor_is_gone(start: Start) -> None:
    process = start("ties.tell_ready(); return 9 if ties.is_stop() else os._exit(7)")
    pids = until_ready(process)
    process.kill()
    assert all(ends(pid) for pid in pids.values())
