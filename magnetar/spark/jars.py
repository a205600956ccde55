"""The jars of Spark's Kafka connector, copied by Maven: for networks where Ivy, which serves
`spark.jars.packages`, does not reach a repository.

Of the connector's dependencies only those are copied that a Spark installation lacks.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

SCALA = "2.13"
CONNECTOR = f"spark-sql-kafka-0-10_{SCALA}"
#: Artifacts in the order of the class path; their own versions are Maven's to find.
ARTIFACTS = (
    CONNECTOR,
    f"spark-token-provider-kafka-0-10_{SCALA}",
    "kafka-clients",
    "commons-pool2",
)
_POM = Path(__file__).with_name("connector.pom.xml")
_VERSION = re.compile(r"\d+\.\d+\.\d+(-[A-Za-z0-9.]+)?")
_SAID_MAX = 3


class JarsUnavailable(Exception):
    """The jars could not be had; the message says what to do."""


def fetch(directory: Path, spark_version: str) -> tuple[Path, ...]:
    """Return the connector's jars in `directory`, one per ARTIFACTS, copied there if missing.

    The connector itself is put there last: where it is, all are. Raises JarsUnavailable without
    Maven, for a version that Maven does not find, and where the directory holds the connector in
    another version.
    """
    if not _VERSION.fullmatch(spark_version):
        raise JarsUnavailable(f"{spark_version!r} is not a version of Spark, as 4.0.0 is.")
    _refuse_others(directory, spark_version)
    if (found := _present(directory, spark_version)) is None:
        _copy_with_maven(directory, spark_version)
        found = _present(directory, spark_version)
    if found is None:
        raise JarsUnavailable(
            f"Maven copied no jar of its own of each of {', '.join(ARTIFACTS)} to {directory}."
        )
    return found


def _refuse_others(directory: Path, spark_version: str) -> None:
    wanted = f"{CONNECTOR}-{spark_version}.jar"
    others = [jar.name for jar in directory.glob(f"{CONNECTOR}-*.jar") if jar.name != wanted]
    if others:
        raise JarsUnavailable(
            f"{directory} holds {others[0]}; one class path takes one version. "
            "Name another directory, or empty this one."
        )


def _present(directory: Path, spark_version: str) -> tuple[Path, ...] | None:
    """Return the jars if each artifact is there exactly once, else None."""
    if not (directory / f"{CONNECTOR}-{spark_version}.jar").exists():
        return None
    found = [sorted(directory.glob(f"{artifact}-[0-9]*.jar")) for artifact in ARTIFACTS]
    if any(len(jars) != 1 for jars in found):
        return None
    return tuple(jar for (jar,) in found)


def _copy_with_maven(directory: Path, spark_version: str) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise JarsUnavailable("`mvn` was not found; it needs Maven (Debian: apt install maven).")
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".incoming-", dir=directory) as incoming:
        build = subprocess.run(
            [
                *(maven, "-q", "-B", "-f", str(_POM), "dependency:copy-dependencies"),
                *(f"-Dspark.version={spark_version}", f"-DoutputDirectory={incoming}"),
                f"-DincludeArtifactIds={','.join(ARTIFACTS)}",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if build.returncode != 0:
            raise JarsUnavailable(f"Maven found no connector {spark_version}: {_said(build)}")
        # The connector last: whoever sees it sees the others too.
        jars = sorted(Path(incoming).iterdir(), key=lambda jar: jar.name.startswith(CONNECTOR))
        for jar in jars:
            jar.replace(directory / jar.name)


def _said(build: subprocess.CompletedProcess[str]) -> str:
    """Return the first of Maven's complaints in one line."""
    lines = [
        line.removeprefix("[ERROR]").strip()
        for line in (build.stdout + build.stderr).splitlines()
        if line.startswith("[ERROR]")
    ]
    return " ".join(lines[:_SAID_MAX]) or f"exit code {build.returncode}"
