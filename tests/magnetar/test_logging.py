"""Lines are written where users read them. A flood is cut short, and a line says so."""

from __future__ import annotations

import errno
import io
import json
from collections.abc import Iterator

import pytest

from magnetar import logging
from magnetar.apis import refusals
from magnetar.broker import Broker
from magnetar.logging import LINES_PER_SECOND_MAX, Allowance, Logger
from tests.magnetar.conftest import RawClient
from wire.error_code import ErrorCode
from wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    logging.configure("info", "json", stream)
    yield stream
    logging.configure()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("name", "value", "has_colours"),
    [("TERM", "xterm", True), ("NO_COLOR", "1", False), ("TERM", "dumb", False)],
)
def test_colours_are_for_terminals_that_want_them(
    name: str, value: str, has_colours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, value)
    stream = Terminal()
    logging.configure("info", "auto", stream)
    try:
        Logger("test", 0).info("said")
    finally:
        logging.configure()
    assert "said" in stream.getvalue()
    assert ("\x1b" in stream.getvalue()) is has_colours


def test_so_many_lines_of_each_second_are_written_and_the_next_says_what_is_missing() -> None:
    allowance = Allowance()
    took = [allowance.take(second) for second in (5, 6, 8) for _ in range(LINES_PER_SECOND_MAX + 7)]
    first, second, third = (took[at :: LINES_PER_SECOND_MAX + 7] for at in (0, 1, -7))
    assert first == [0, 7, 7]
    assert second == [0, 0, 0]
    assert third[0] is None
    assert took.count(None) == 3 * 7


def test_a_line_says_what_and_who_and_how_many_were_left_out(written: io.StringIO) -> None:
    logger = Logger("server", 0)
    for number in range(10 * LINES_PER_SECOND_MAX):
        logger.warning("connection refused", number=number)
        logger.debug("asked for", number=number)
    logger.warning("something else")
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    events = [line["event"] for line in lines]
    assert lines[0] | {"timestamp": ""} == {
        "event": "connection refused",
        "logger": "server",
        "level": "warning",
        "number": 0,
        "timestamp": "",
    }
    # The clock may have gone on by some seconds meanwhile.
    assert events.count("connection refused") <= 5 * LINES_PER_SECOND_MAX
    assert events.count("asked for") == 10 * LINES_PER_SECOND_MAX
    assert events[-1] == "something else"


class Unreadable(io.StringIO):
    """A pipe whose reader has gone, or a file on a disk that is full."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self._code = code

    def write(self, text: str) -> int:
        raise OSError(self._code, "the pipe has no reader")


@pytest.mark.parametrize("code", [errno.EPIPE, errno.ENOSPC, errno.EIO])
async def test_who_is_refused_is_told_where_the_line_about_it_is_lost(
    broker: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(refusals, "_written", {})
    logging.configure("debug", "json", Unreadable(code))
    try:
        request = ProduceRequest(
            acks=-1,
            topic_data=[TopicProduceData(name="a", partition_data=[PartitionProduceData()])],
        )
        for _ in range(2):
            answer = await client.ask(request, 9, ProduceResponse)
            refused = answer.responses[0].partition_responses[0].error_code
            assert refused == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    finally:
        logging.configure()
