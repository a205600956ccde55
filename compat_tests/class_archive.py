"""A file of classes that JVMs of Kafka's broker share (class data sharing, JEP 350).

It lies beside Kafka's jars, one for each Java. A JVM that finds another Java's, or other jars, does
without: it is only slower.
"""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from tools.reference_kafka import fetch, java_command


def written(write: Callable[[Path], None]) -> Path:
    """Return the file. Where there is none, one process writes it while others wait."""
    directory = fetch()
    java, *_ = java_command("")
    version = subprocess.run([java, "-Xinternalversion"], capture_output=True, check=True).stdout
    archive = directory / f"classes-{sha256(version).hexdigest()[:12]}.jsa"
    if archive.exists():
        return archive
    with (directory / ".classes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            incoming = archive.with_suffix(".incoming")
            incoming.unlink(missing_ok=True)
            write(incoming)
            incoming.replace(archive)
    return archive
