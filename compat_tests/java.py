"""The Java clients, through the command line tools in Kafka's own jars."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from compat_tests.client import (
    TIMEOUT_S,
    Codec,
    Isolation,
    Mode,
    Pair,
    Read,
    StuckClient,
)
from tools.reference_kafka import java_command

TOOLS = "org.apache.kafka.tools."
_QUIET = Path(__file__).with_name("log4j2-quiet.properties")
_FAST_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
#: ConsoleConsumer's answer for an absent key or value, and what separates the columns.
_NULL, _COLUMN = "\x01", "\x02"


def command(tool: str, *arguments: str, options: Sequence[str] = _FAST_START) -> list[str]:
    """Return the command of a tool: a class of Kafka's tools, or one of `kafka.admin` by name."""
    main = tool if tool.startswith("kafka.") else TOOLS + tool
    return _command(main, arguments, options)


def _command(main: str, arguments: Sequence[str], options: Sequence[str]) -> list[str]:
    quiet = f"-Dlog4j2.configurationFile={_QUIET}"
    return java_command(main, *arguments, options=(*options, quiet))


def run(
    tool: str,
    *arguments: str,
    stdin: str = "",
    timeout_s: float = 2 * TIMEOUT_S,
    options: Sequence[str] = _FAST_START,
) -> str:
    """Run a tool to its end and return its standard output; a non-zero exit is an error."""
    return _run(command(tool, *arguments, options=options), stdin, timeout_s)


def run_program(
    source: Path,
    *arguments: str,
    timeout_s: float = 2 * TIMEOUT_S,
    options: Sequence[str] = _FAST_START,
) -> str:
    """Compile and run a program of one file beside Kafka's jars, to its end, as `run` does."""
    return _run(_command(str(source), arguments, options), "", timeout_s)


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


class JavaClient:
    """ConsoleProducer and ConsoleConsumer; keys and values must be text without `|` or newlines.

    The console producer knows no transactions: a transactional write is
    TransactionalMessageCopier's.
    """

    name = "java"

    def produce(
        self,
        bootstrap: str,
        topic: str,
        pairs: Sequence[Pair],
        *,
        mode: Mode = "plain",
        codec: Codec = "none",
        transactional_id: str | None = None,
        commit: bool = True,
    ) -> None:
        assert mode != "transactional", "the console producer knows no transactions"
        idempotence = str(mode == "idempotent").lower()
        lines = [f"{(key or b'').decode()}|{(value or b'').decode()}" for key, value in pairs]
        run(
            "ConsoleProducer",
            *("--bootstrap-server", bootstrap, "--topic", topic, "--compression-codec", codec),
            *("--command-property", f"enable.idempotence={idempotence}"),
            *("--command-property", "acks=all"),
            *("--reader-property", "parse.key=true", "--reader-property", "key.separator=|"),
            stdin="\n".join(lines) + "\n",
        )

    def consume(
        self, bootstrap: str, topic: str, isolation: Isolation = "read_committed"
    ) -> list[Read]:
        """As the protocol says. The tool knows no end, only patience: where it found nothing it is
        asked again with more of it, since on a busy machine it may not even have connected."""
        return self._consume(bootstrap, topic, isolation, "2500") or self._consume(
            bootstrap, topic, isolation, "10000"
        )

    def _consume(
        self, bootstrap: str, topic: str, isolation: Isolation, patience_ms: str
    ) -> list[Read]:
        properties = {
            "print.offset": "true",
            "print.key": "true",
            "null.literal": _NULL,
            "key.separator": _COLUMN,
        }
        output = run(
            "consumer.ConsoleConsumer",
            *("--bootstrap-server", bootstrap, "--topic", topic, "--from-beginning"),
            *("--isolation-level", isolation, "--timeout-ms", patience_ms),
            *_repeated("--formatter-property", properties),
        )
        return [_parse(line) for line in output.splitlines()]


def _repeated(option: str, properties: dict[str, str]) -> list[str]:
    return [part for name, value in properties.items() for part in (option, f"{name}={value}")]


def _parse(line: str) -> Read:
    offset, key, value = line.split(_COLUMN)
    found = re.fullmatch(r"Offset:(\d+)", offset)
    assert found is not None, line
    texts = [None if text == _NULL else text.encode() for text in (key, value)]
    return Read(int(found[1]), *texts)
