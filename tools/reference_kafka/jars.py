"""The jars of Apache Kafka, copied once per machine through Maven, and the command line that runs
a class of theirs.

There are two sets. The reference is a whole Kafka with its tools. `OLDER` is of the release before:
its Java client, with which programs of tests run too, and Kafka Connect, whose connectors for files
the release of the reference lacks.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

VERSION = "4.4.0"
OLDER_VERSION = "4.3.1"
#: Tools live for a second or two: the first compiler tier and the serial collector start fastest.
_SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")


class ReferenceUnavailable(Exception):
    """Java or Maven is missing, or the broker did not start; the message says what to do."""


class Jars(NamedTuple):
    """What one pom.xml asks for."""

    name: str
    version: str
    pom: Path
    #: What the pom asks for by name. Moved last into the directory: all there say that it is whole.
    artifacts: tuple[str, ...]

    @property
    def files(self) -> frozenset[str]:
        return frozenset(f"{name}-{self.version}.jar" for name in self.artifacts)

    def are_in(self, directory: Path) -> bool:
        return all((directory / name).exists() for name in self.files)


REFERENCE = Jars(
    "kafka",
    VERSION,
    Path(__file__).with_name("pom.xml"),
    ("kafka_2.13", "kafka-tools", "kafka-streams"),
)
OLDER = Jars(
    "kafka-connect",
    OLDER_VERSION,
    Path(__file__).with_name("older.pom.xml"),
    ("kafka-clients", "connect-runtime", "connect-file"),
)


def jar_directory(jars: Jars = REFERENCE) -> Path:
    """Return where the jars are kept: below the user's cache directory, each release by itself."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "magnetar" / f"{jars.name}-{jars.version}"


def fetch(jars: Jars = REFERENCE) -> Path:
    """Return the directory of the jars, copying them there first if one of `jars` is missing.

    Safe to call from several processes at once: one copies, the others wait.
    """
    directory = jar_directory(jars)
    if jars.are_in(directory):
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with (directory.parent / f".{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.are_in(directory):
            _copy_with_maven(jars, directory)
    return directory


def _copy_with_maven(jars: Jars, directory: Path) -> None:
    maven = _executable("mvn", "Maven (Debian: apt-get install maven)")
    incoming = directory.with_name(f".{directory.name}.incoming")
    shutil.rmtree(incoming, ignore_errors=True)
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={incoming}"]
    build = subprocess.run(
        [maven, "-q", "-B", "-f", str(jars.pom), *goal], capture_output=True, text=True, check=False
    )
    if build.returncode != 0 or not jars.are_in(incoming):
        raise ReferenceUnavailable(f"Maven could not copy Kafka's jars:\n{build.stdout[-4000:]}")
    # One by one: a JVM that runs from the directory finds every jar at any moment.
    directory.mkdir(exist_ok=True)
    for jar in sorted(incoming.iterdir(), key=lambda jar: jar.name in jars.files):
        jar.replace(directory / jar.name)
    incoming.rmdir()


def java_command(
    main_class: str,
    *arguments: str,
    options: Sequence[str] = _SHORT_LIVED,
    clients: Jars = REFERENCE,
    beside: Path | None = None,
) -> list[str]:
    """Return the command line that runs `main_class` of the jars; fetches them if they are
    missing.

    `clients`: the set whose Java client it uses. Classes that this set lacks are the reference's.
    `beside`: a directory of classes that come after those of the jars.
    """
    java = _executable("java", "Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless)")
    found = class_path(clients) if beside is None else f"{class_path(clients)}:{beside}"
    return [java, *options, "-cp", found, main_class, *arguments]


def class_path(clients: Jars) -> str:
    """Return the class path of the reference, behind the jars of `clients`: the first wins."""
    return ":".join(f"{fetch(jars)}/*" for jars in dict.fromkeys((clients, REFERENCE)))


def _executable(name: str, wanted: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise ReferenceUnavailable(f"`{name}` was not found; the reference broker needs {wanted}.")
    return path
