"""Kafka's command line tools, and programs beside its clients, in one JVM: a call costs a tenth of
a start.

`call` is what the tests use; the JVM starts with the first one of a process and ends with it. The
client of the release before has a JVM of its own.
"""

from __future__ import annotations

import atexit
import os
import selectors
import signal
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, NamedTuple

from compat_tests import class_archive
from compat_tests.client import TIMEOUT_S, StuckClient
from tools.reference_kafka import REFERENCE, Jars, java_command

_TOOL_BOX = Path(__file__).with_name("ToolBox.java")
_QUIET = Path(__file__).with_name("log4j2-quiet.properties")
_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx256m")
#: The box's own: bootstrap servers, topic, isolation level.
READ_TO_END = "ReadToEnd"
_TOOLS = "org.apache.kafka.tools."


class Ended(NamedTuple):
    """What a tool left."""

    status: int
    output: str
    errors: str


class ToolBox:
    """One JVM that runs tools, one at a time."""

    def __init__(self, clients: Jars) -> None:
        quiet = f"-Dlog4j2.configurationFile={_QUIET}"
        self._programs = TemporaryDirectory(prefix="tool-box-")
        self._process = subprocess.Popen(
            java_command(
                _TOOL_BOX.stem,
                self._programs.name,
                options=(*_OPTIONS, quiet),
                clients=clients,
                beside=class_archive.compiled(_TOOL_BOX),
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        atexit.register(self.kill)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def call(self, main: str, arguments: Sequence[str], stdin: str, timeout_s: float) -> Ended:
        """Run a tool to its end. Raises StuckClient, after which the box is gone."""
        line = " ".join(_encode(each) for each in (main, stdin, *arguments))
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        requests.write(line.encode() + b"\n")
        requests.flush()
        answer = _read_line(answers, timeout_s)
        if answer is None:
            self.kill()
            raise StuckClient(f"{main} {' '.join(arguments)} ran for {timeout_s} s, or died")
        status, output, errors = answer.decode().split(" ")
        return Ended(int(status), _decode(output), _decode(errors))

    def kill(self) -> None:
        atexit.unregister(self.kill)
        if self.is_running:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._programs.cleanup()


def call(
    tool: str,
    *arguments: str,
    stdin: str = "",
    timeout_s: float = 2 * TIMEOUT_S,
    clients: Jars = REFERENCE,
) -> Ended:
    """Run a tool: a class of Kafka's tools, one of `kafka.tools` by its whole name,
    READ_TO_END, or a program of one file by its path.
    """
    if not _box(clients).is_running:
        _box.cache_clear()
    is_whole = tool.startswith("kafka.") or tool.endswith(".java") or tool == READ_TO_END
    main = tool if is_whole else _TOOLS + tool
    return _box(clients).call(main, arguments, stdin, timeout_s)


def run(
    tool: str,
    *arguments: str,
    stdin: str = "",
    timeout_s: float = 2 * TIMEOUT_S,
    clients: Jars = REFERENCE,
) -> str:
    """Run a tool and return its standard output; a status other than 0 is an error."""
    ended = call(tool, *arguments, stdin=stdin, timeout_s=timeout_s, clients=clients)
    assert ended.status == 0, f"{tool} {arguments}: {ended}"
    return ended.output


@cache
def _box(clients: Jars) -> ToolBox:
    return ToolBox(clients)


def _read_line(stream: IO[bytes], timeout_s: float) -> bytes | None:
    """Return the next line, None where there is none in time or ever."""
    pieces = []
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while selector.select(timeout_s):
            piece = os.read(stream.fileno(), 1 << 16)
            if not piece:
                return None
            pieces.append(piece)
            if piece.endswith(b"\n"):
                return b"".join(pieces)
    return None


def _encode(text: str) -> str:
    return b64encode(text.encode()).decode()


def _decode(text: str) -> str:
    return b64decode(text).decode()
