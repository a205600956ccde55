"""The jars of Apache Kafka, copied once per machine through Maven, and the command line that runs
a class of theirs.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

VERSION = "4.3.1"
_POM = Path(__file__).with_name("pom.xml")
#: What pom.xml asks for by name. Moved last into the directory: all there says that it is whole.
_NAMED = frozenset(
    f"{name}-{VERSION}.jar"
    for name in ("kafka_2.13", "kafka-tools", "kafka-streams", "connect-runtime", "connect-file")
)
#: Tools live for a second or two: the first compiler tier and the serial collector start fastest.
_SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")


class ReferenceUnavailable(Exception):
    """Java or Maven is missing, or the broker did not start; the message says what to do."""


def jar_directory() -> Path:
    """Return where the jars are kept: $KAFKA_JARS, else below the user's cache directory."""
    if chosen := os.environ.get("KAFKA_JARS"):
        return Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "magnetar" / f"kafka-{VERSION}"


def fetch() -> Path:
    """Return the directory of the jars, copying them there first if one of `_NAMED` is missing.

    Safe to call from several processes at once: one copies, the others wait.
    """
    directory = jar_directory()
    if _is_whole(directory):
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with (directory.parent / f".{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_whole(directory):
            _copy_with_maven(directory)
    return directory


def _is_whole(directory: Path) -> bool:
    return all((directory / name).exists() for name in _NAMED)


def _copy_with_maven(directory: Path) -> None:
    maven = _executable("mvn", "Maven (Debian: apt-get install maven)")
    incoming = directory.with_name(f".{directory.name}.incoming")
    shutil.rmtree(incoming, ignore_errors=True)
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={incoming}"]
    build = subprocess.run(
        [maven, "-q", "-B", "-f", str(_POM), *goal], capture_output=True, text=True, check=False
    )
    if build.returncode != 0 or not _is_whole(incoming):
        raise ReferenceUnavailable(f"Maven could not copy Kafka's jars:\n{build.stdout[-4000:]}")
    # One by one: a JVM that runs from the directory finds every jar at any moment.
    directory.mkdir(exist_ok=True)
    for jar in sorted(incoming.iterdir(), key=lambda jar: jar.name in _NAMED):
        jar.replace(directory / jar.name)
    incoming.rmdir()


def java_command(
    main_class: str, *arguments: str, options: Sequence[str] = _SHORT_LIVED
) -> list[str]:
    """Return the command line that runs `main_class` of the jars; fetches them if they are
    missing.
    """
    java = _executable("java", "Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless)")
    return [java, *options, "-cp", f"{fetch()}/*", main_class, *arguments]


def _executable(name: str, wanted: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise ReferenceUnavailable(f"`{name}` was not found; the reference broker needs {wanted}.")
    return path
