"""`magnetar spark-jars` prints what spark.jars takes, and fetches it once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from magnetar.cli import main
from magnetar.cli.spark_jars import ARTIFACTS, CONNECTOR

Run = Callable[..., Result]
#: Stands in for Maven: copies an empty jar per artifact, and counts its calls.
_MAVEN = """\
#!/bin/sh
echo called >> "$(dirname "$0")/calls"
for argument in "$@"; do
  case "$argument" in
    -DoutputDirectory=*) to="${argument#*=}" ;;
    -Dspark.version=*) version="${argument#*=}" ;;
    -DincludeArtifactIds=*) artifacts="${argument#*=}" ;;
  esac
done
if [ "$version" = 4.9.9 ]; then
  echo '[ERROR] Could not find artifact of 4.9.9'
  exit 1
fi
for artifact in $(echo "$artifacts" | tr , ' '); do
  case "$artifact" in spark-*) number="$version" ;; *) number=3.9.0 ;; esac
  : > "$to/$artifact-$number.jar"
done
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory before all others on the path, with the stand-in in it."""
    directory = tmp_path / "bin"
    directory.mkdir()
    maven = directory / "mvn"
    maven.write_text(_MAVEN)
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
    return directory


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return lambda *options: CliRunner().invoke(
        main, ["spark-jars", *options, str(tmp_path / "jars")]
    )


def test_the_jars_are_printed_as_spark_takes_them(programs: Path, run: Run, tmp_path: Path) -> None:
    ended = run()
    assert ended.exit_code == 0, ended.stderr
    jars = [Path(text) for text in ended.stdout.strip().split(",")]
    assert [jar.name.rsplit("-", 1)[0] for jar in jars] == list(ARTIFACTS)
    assert sorted(jars) == sorted((tmp_path / "jars").iterdir())


def test_maven_is_asked_once(programs: Path, run: Run) -> None:
    first, second = run().stdout, run().stdout
    assert first == second
    assert (programs / "calls").read_text() == "called\n"


def test_a_half_filled_directory_is_filled(programs: Path, run: Run, tmp_path: Path) -> None:
    whole = run().stdout
    (tmp_path / "jars" / "kafka-clients-3.9.0.jar").unlink()
    assert run().stdout == whole


def test_another_version_in_the_directory_is_refused(programs: Path, run: Run) -> None:
    assert run().exit_code == 0
    ended = run("--spark", "4.0.1")
    assert ended.exit_code == 1
    assert f"{CONNECTOR}-4.0.0.jar" in ended.stderr


def test_what_maven_does_not_find_is_named(programs: Path, run: Run, tmp_path: Path) -> None:
    ended = run("--spark", "4.9.9")
    assert ended.exit_code == 1
    assert "connector 4.9.9: Could not find artifact of 4.9.9" in ended.stderr
    assert list((tmp_path / "jars").iterdir()) == []


@pytest.mark.parametrize("version", ["", "latest", "4.0", "4.0.0;x", "../4.0.0"])
def test_a_version_is_three_numbers(programs: Path, run: Run, version: str) -> None:
    ended = run("--spark", version)
    assert ended.exit_code == 1
    assert "is not a version of Spark" in ended.stderr


def test_without_maven_the_error_says_so(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ended = run()
    assert ended.exit_code == 1
    assert "`mvn` was not found" in ended.stderr
