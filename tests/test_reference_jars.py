"""The jars of the reference: a directory that lacks one is completed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools.reference_kafka import (
    OLDER,
    REFERENCE,
    VERSION,
    ReferenceUnavailable,
    fetch,
)
from tools.reference_kafka.jars import class_path

NAMED = ("kafka_2.13", "kafka-tools", "kafka-streams")


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the jars are to be; Maven is a script that copies them and leaves a note."""
    maven = tmp_path / "bin" / "mvn"
    maven.parent.mkdir()
    files = [*(f"{name}-{VERSION}.jar" for name in NAMED), *OLDER.files]
    touches = "".join(f'touch "$into/{name}"\n' for name in files)
    maven.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >>{tmp_path}/calls\n'
        'for word; do into=${word#-DoutputDirectory=}; done\nmkdir -p "$into"\n' + touches
    )
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{maven.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "magnetar" / f"kafka-{VERSION}"


def test_jars_are_fetched_once(jars: Path, tmp_path: Path) -> None:
    assert fetch() == fetch() == jars
    assert {each.name for each in jars.iterdir()} >= {f"{name}-{VERSION}.jar" for name in NAMED}
    assert len((tmp_path / "calls").read_text().splitlines()) == 1


@pytest.mark.parametrize("missing", NAMED)
def test_a_directory_of_before_gets_what_it_lacks_and_keeps_what_it_has(
    jars: Path, missing: str
) -> None:
    fetch()
    (jars / f"{missing}-{VERSION}.jar").unlink()
    (jars / "transitive.jar").touch()
    fetch()
    assert (jars / f"{missing}-{VERSION}.jar").exists()
    assert (jars / "transitive.jar").exists()


def test_a_fetch_that_brings_too_little_says_so(jars: Path, tmp_path: Path) -> None:
    maven = tmp_path / "bin" / "mvn"
    text = maven.read_text()
    maven.write_text(text.replace(f'touch "$into/kafka-streams-{VERSION}.jar"\n', ""))
    with pytest.raises(ReferenceUnavailable):
        fetch()
    assert not jars.exists()


def test_the_older_client_lies_apart_and_comes_first_on_its_class_path(
    jars: Path, tmp_path: Path
) -> None:
    assert class_path(REFERENCE) == f"{jars}/*"
    older = fetch(OLDER)
    assert older.parent == jars.parent
    assert older != jars
    assert class_path(OLDER) == f"{older}/*:{jars}/*"
    for call, each in zip(
        (tmp_path / "calls").read_text().splitlines(), (REFERENCE, OLDER), strict=True
    ):
        assert str(each.pom) in call


def test_each_pom_asks_for_its_version() -> None:
    for each in (REFERENCE, OLDER):
        assert f"<kafka.version>{each.version}</kafka.version>" in each.pom.read_text()
