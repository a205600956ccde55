"""Classes that JVMs of the tests find made: an archive that those of Kafka's broker share (class
data sharing, JEP 350), and programs of one file, compiled.

They lie beside Kafka's jars, one of each for each Java. A JVM that finds another Java's archive, or
other jars, does without: it is only slower.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path

from tools.reference_kafka import fetch, java_command


def written(write: Callable[[Path], None]) -> Path:
    """Return the archive. Where there is none, one process writes it while others wait."""
    return _kept(f"classes-{_java()}", lambda made: write(made / "broker.jsa")) / "broker.jsa"


def compiled(source: Path) -> Path:
    """Return the directory with the classes of a program of one file beside Kafka's jars."""

    def compile_it(made: Path) -> None:
        java, *_ = java_command("")
        # The compiler of the Java that runs the classes, not of any that is installed beside it.
        compiler = [java, "-XX:TieredStopAtLevel=1", "-m", "jdk.compiler/com.sun.tools.javac.Main"]
        jars = ":".join(str(jar) for jar in fetch().glob("*.jar"))
        arguments = ["-proc:none", "-cp", jars, "-d", str(made), str(source)]
        subprocess.run([*compiler, *arguments], capture_output=True, check=True)

    digest = sha256(source.read_bytes()).hexdigest()[:12]
    return _kept(f"{source.stem}-{digest}-{_java()}", compile_it)


@cache
def _java() -> str:
    """Return a name of this Java that no other version or build has."""
    java, *_ = java_command("")
    version = subprocess.run([java, "-Xinternalversion"], capture_output=True, check=True).stdout
    return sha256(version).hexdigest()[:12]


def _kept(name: str, make: Callable[[Path], None]) -> Path:
    """Return a directory beside the jars, which `make` has filled once."""
    directory = fetch()
    kept = directory / name
    if kept.exists():
        return kept
    with (directory / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            incoming = directory / f".{name}.incoming"
            shutil.rmtree(incoming, ignore_errors=True)
            incoming.mkdir()
            make(incoming)
            incoming.replace(kept)
    return kept
