"""The Java clients, through the command line tools in Kafka's own jars.

What ends by itself runs in the one JVM of `tool_box`; here is what needs one of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path

import pytest

from compat_tests import tool_box
from compat_tests.brokers import quick_start
from compat_tests.client import TIMEOUT_S, Client, Isolation, Pair, Read, StuckClient, Writing
from tools.reference_kafka import OLDER, REFERENCE, Jars, java_command

TOOLS = "org.apache.kafka.tools."
_QUIET = Path(__file__).with_name("log4j2-quiet.properties")
#: Tests that take `clients` run with the client of the release before and of the reference.
BOTH_CLIENTS = pytest.mark.parametrize("clients", [OLDER, REFERENCE], ids=lambda jars: jars.version)


def fast_start(clients: Jars = REFERENCE) -> tuple[str, ...]:
    """Return the options of a JVM that lives for seconds."""
    archive = quick_start() if clients is REFERENCE else ()
    return ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *archive)


def command(
    tool: str,
    *arguments: str,
    options: Sequence[str] | None = None,
    clients: Jars = REFERENCE,
) -> list[str]:
    """Return the command of a tool: a class of Kafka's tools."""
    return _command(TOOLS + tool, arguments, options, clients)


def _command(
    main: str,
    arguments: Sequence[str],
    options: Sequence[str] | None,
    clients: Jars = REFERENCE,
) -> list[str]:
    chosen = fast_start(clients) if options is None else options
    quiet = f"-Dlog4j2.configurationFile={_QUIET}"
    return java_command(main, *arguments, options=(*chosen, quiet), clients=clients)


def run(
    tool: str,
    *arguments: str,
    stdin: str = "",
    timeout_s: float = 2 * TIMEOUT_S,
    options: Sequence[str] | None = None,
    clients: Jars = REFERENCE,
) -> str:
    """Run a tool to its end and return its standard output; a non-zero exit is an error."""
    return _run(command(tool, *arguments, options=options, clients=clients), stdin, timeout_s)


def run_program(
    source: Path,
    *arguments: str,
    timeout_s: float = 2 * TIMEOUT_S,
    options: Sequence[str] | None = None,
) -> str:
    """Compile and run a program of one file beside Kafka's jars, to its end, as `run` does."""
    return _run(program(source, *arguments, options=options), "", timeout_s)


def program(source: Path, *arguments: str, options: Sequence[str] | None = None) -> list[str]:
    """Return the command that compiles and runs a program of one file beside Kafka's jars."""
    return _command(str(source), arguments, options)


def _run(command: list[str], stdin: str, timeout_s: float) -> str:
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(stdin, timeout_s)
    except subprocess.TimeoutExpired:
        raise StuckClient(f"{' '.join(command[-8:])} ran for {timeout_s} s") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 0, f"{command[-8:]}: exit {process.returncode}\n{output}\n{errors}"
    return output


def start(tool: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a tool that runs until it is killed."""
    return subprocess.Popen(
        command(tool, *arguments),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


class JavaClient(Client):
    """ConsoleProducer, and a KafkaConsumer that knows where to stop; keys and values to be written
    must be text without `|` or newlines.

    The console producer knows no transactions: a transactional write is
    TransactionalMessageCopier's.
    """

    name = "java"

    def _write(self, bootstrap: str, topic: str, pairs: Sequence[Pair], writing: Writing) -> None:
        assert writing.transactional_id is None, "the console producer knows no transactions"
        idempotence = str(writing.is_idempotent).lower()
        lines = [f"{(key or b'').decode()}|{(value or b'').decode()}" for key, value in pairs]
        tool_box.run(
            "ConsoleProducer",
            *(
                "--bootstrap-server",
                bootstrap,
                "--topic",
                topic,
                "--compression-codec",
                writing.codec,
            ),
            *("--command-property", f"enable.idempotence={idempotence}"),
            *("--command-property", "acks=all"),
            *("--reader-property", "parse.key=true", "--reader-property", "key.separator=|"),
            stdin="\n".join(lines) + "\n",
        )

    def consume(
        self, bootstrap: str, topic: str, isolation: Isolation = "read_committed"
    ) -> list[Read]:
        printed = tool_box.run(tool_box.READ_TO_END, bootstrap, topic, isolation)
        return [_parse(line) for line in printed.splitlines()]


def _parse(line: str) -> Read:
    offset, *texts = line.split(" ")
    key, value = (None if text == "-" else b64decode(text) for text in texts)
    return Read(int(offset), key, value)
