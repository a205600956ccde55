"""`magnetar spark-jars`: the jars that Spark needs to read and write topics.

Maven copies the jars of Spark's Kafka connector, for networks in which Ivy, which serves
`spark.jars.packages`, does not reach a repository. Only those dependencies of the connector are
copied that a Spark installation lacks.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import click

from magnetar.cli.commands import fail, plain

#: The only Scala of Spark 4.
SCALA = "2.13"
CONNECTOR = f"spark-sql-kafka-0-10_{SCALA}"
#: In the order of the class path. Maven finds the versions of all but the connector.
ARTIFACTS = (
    CONNECTOR,
    f"spark-token-provider-kafka-0-10_{SCALA}",
    "kafka-clients",
    "commons-pool2",
)
_POM = Path(__file__).with_name("connector.pom.xml")
#: Checked, because the version becomes part of a file name and of an argument of Maven.
_VERSION = re.compile(r"\d+\.\d+\.\d+(-[A-Za-z0-9.]+)?")
_ERRORS_MAX = 3


@click.command("spark-jars", short_help="Fetch the jars of Spark's Kafka connector.")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--spark",
    "spark_version",
    metavar="VERSION",
    default="4.0.0",
    show_default=True,
    help="The connector's version; its minor version is that of Spark.",
)
def spark_jars(directory: Path, spark_version: str) -> None:
    """Fetch the jars of Spark's Kafka connector into DIR, and print them as spark.jars takes them.

    Maven fetches them from its configured repositories, and keeps jars that are there already. If
    Spark itself can download, --packages does the same.

    \b
    pyspark --jars "$(magnetar spark-jars ~/spark-jars)"
    """
    try:
        jars = fetch(directory.absolute(), spark_version)
    except JarsUnavailable as failure:
        fail(str(failure))
    except OSError as failure:
        fail(plain(failure))
    print(",".join(map(str, jars)))


class JarsUnavailable(Exception):
    """The jars are not there; the message says what to do."""


def fetch(directory: Path, spark_version: str) -> tuple[Path, ...]:
    """Return the connector's jars in `directory`, one per ARTIFACTS, copied there if missing.

    The connector itself is put there last: if it is there, all are. JarsUnavailable: there is no
    Maven, Maven does not find the version, or the directory holds another version.
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
    # A digit after the name: `kafka-clients-*` would match other artifacts, whose names go on.
    found = [sorted(directory.glob(f"{artifact}-[0-9]*.jar")) for artifact in ARTIFACTS]
    if any(len(jars) != 1 for jars in found):
        return None
    return tuple(jar for (jar,) in found)


def _copy_with_maven(directory: Path, spark_version: str) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise JarsUnavailable("`mvn` was not found; it needs Maven (Debian: apt install maven).")
    directory.mkdir(parents=True, exist_ok=True)
    # Inside the target, so that moving a jar is a rename on one disk, and never half a file.
    with tempfile.TemporaryDirectory(prefix=".incoming-", dir=directory) as incoming:
        build = subprocess.run(
            [
                *(maven, "-q", "-B", "-f", str(_POM), "dependency:copy-dependencies"),
                *(f"-Dspark.version={spark_version}", f"-DoutputDirectory={incoming}"),
                f"-DincludeArtifactIds={','.join(ARTIFACTS)}",
            ],
            # Maven prints its errors on standard output, between warnings.
            capture_output=True,
            text=True,
            check=False,
        )
        if build.returncode != 0:
            raise JarsUnavailable(f"Maven found no connector {spark_version}: {_errors_of(build)}")
        # The connector last: a process that sees it finds the others too.
        jars = sorted(Path(incoming).iterdir(), key=lambda jar: jar.name.startswith(CONNECTOR))
        for jar in jars:
            jar.replace(directory / jar.name)


def _errors_of(build: subprocess.CompletedProcess[str]) -> str:
    """Return the first of Maven's errors in one line."""
    lines = [
        line.removeprefix("[ERROR]").strip()
        for line in (build.stdout + build.stderr).splitlines()
        if line.startswith("[ERROR]")
    ]
    return " ".join(lines[:_ERRORS_MAX]) or f"exit code {build.returncode}"
