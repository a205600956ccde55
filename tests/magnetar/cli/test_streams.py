"""Commands whose standard streams are closed, full, or not UTF-8."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from magnetar.testing import Broker, start_broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with start_broker() as started:
        yield started


def run(
    redirection: str, *arguments: str | bytes, stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command as a shell does, with a redirection such as `>&-`."""
    shell = ["sh", "-c", f'exec "$@" {redirection}', "sh"]
    return subprocess.run(
        [*shell, sys.executable, "-m", "magnetar", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **environment},
    )


def test_closed_streams_are_empty_or_take_everything(broker: Broker) -> None:
    server = ["-b", broker.bootstrap_servers]
    topic = broker.topic()
    for redirection, arguments in (
        ("<&-", ["produce", topic]),
        (">&-", ["consume", topic, "--exit"]),
        ("<&- >&- 2>&-", ["consume", topic, "--exit"]),
        ("<&-", ["topics", "delete", topic]),
    ):
        ended = run(redirection, *arguments, *server)
        assert (ended.returncode, ended.stderr) == (0, ""), arguments


@pytest.mark.parametrize(("terminal", "moves"), [("xterm", True), ("dumb", False)])
def test_top_draws_no_screen_on_a_terminal_that_cannot(
    broker: Broker, terminal: str, moves: bool
) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        with os.fdopen(theirs, "wb") as output:
            command = ["top", "-n", "1", "--interval", "1ms", "-b", broker.bootstrap_servers]
            subprocess.run(
                [sys.executable, "-m", "magnetar", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                check=True,
                timeout=60,
                env={**os.environ, "TERM": terminal},
            )
        shown = screen.read(1 << 16)
    assert b"0 records/s" in shown
    assert (b"\x1b" in shown) is moves


def test_what_the_output_cannot_encode_is_escaped(broker: Broker) -> None:
    server = broker.bootstrap_servers
    consumer = Consumer({**broker.confluent_settings(), "group.id": "grüße"})
    consumer.commit(offsets=[TopicPartition(broker.topic(), 0, 0)], asynchronous=False)
    consumer.close()
    ended = run("", "groups", "list", "-b", server, PYTHONIOENCODING="ascii")
    assert "gr\\xfc\\xdfe" in ended.stdout, ended.stderr


def test_keys_and_headers_are_the_bytes_that_were_typed(broker: Broker) -> None:
    topic = broker.topic()
    typed: list[str | bytes] = ["-k", b"a\xffb", "-H", b"h=\xfe"]
    ended = run("", "produce", topic, *typed, "-b", broker.bootstrap_servers, stdin="x\n")
    assert ended.returncode == 0, ended.stderr
    ended = run("", "produce", topic, "-H", b"\xfe=h", "-b", broker.bootstrap_servers)
    assert ended.returncode == 2 and "is not UTF-8" in ended.stderr
    (record,) = broker.records(topic)
    assert (record.key, record.headers) == (b"a\xffb", (("h", b"\xfe"),))


@pytest.mark.parametrize("arguments", [["--help"], ["topics", "--help"], ["topics"], ["-V"]])
def test_help_that_cannot_be_written_is_a_line(arguments: list[str]) -> None:
    ended = run(">/dev/full", *arguments)
    assert ended.returncode == 1
    assert ended.stderr == "magnetar: error: standard input or output: No space left on device\n"
