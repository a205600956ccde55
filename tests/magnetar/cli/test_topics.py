"""`magnetar topics` as an operator meets it: what is done is told, also where some is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from magnetar.cli.main import main
from magnetar.testing import BrokerProcess, start_broker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with start_broker(tmp_path) as running:
        yield running


def topics(broker: BrokerProcess, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["topics", *arguments, "-b", broker.bootstrap_servers])


def test_a_refused_topic_keeps_no_other_from_being_created(broker: BrokerProcess) -> None:
    assert topics(broker, "create", "b").exit_code == 0
    created = topics(broker, "create", "a", "b", "no/name", "c")
    assert (created.exit_code, created.stdout) == (1, "a: created\nc: created\n")
    (line,) = created.stderr.splitlines()
    assert line.startswith("magnetar: error: created a, c, but not topic b: TOPIC_ALREADY_EXISTS (")
    assert "; topic no/name: INVALID_TOPIC_EXCEPTION (" in line


def test_json_tells_created_and_refused_topics(broker: BrokerProcess) -> None:
    assert topics(broker, "create", "b").exit_code == 0
    created = topics(broker, "create", "a", "b", "c", "--json")
    assert created.exit_code == 1
    assert json.loads(created.stdout) == [
        {"topic": "a", "created": True, "error": None},
        {"topic": "b", "created": False, "error": "TOPIC_ALREADY_EXISTS"},
        {"topic": "c", "created": True, "error": None},
    ]
    error = json.loads(created.stderr)["error"]
    assert error["code"] == "TOPIC_ALREADY_EXISTS"
    assert error["message"].startswith("created a, c, but not topic b: ")
    assert error["message"].endswith("--if-not-exists accepts it as it is.")


def test_a_dry_run_goes_on_after_a_refused_topic(broker: BrokerProcess) -> None:
    assert topics(broker, "create", "b").exit_code == 0
    checked = topics(broker, "create", "b", "a", "--dry-run")
    assert (checked.exit_code, checked.stdout) == (1, "a: could be created\n")
    assert checked.stderr.startswith("magnetar: error: topic b: TOPIC_ALREADY_EXISTS (")


def test_a_mistake_in_the_variable_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGNETAR_BOOTSTRAP", "zzz")
    listed = CliRunner().invoke(main, ["topics", "list"])
    assert listed.exit_code == 1
    assert listed.stderr.startswith("magnetar: error: MAGNETAR_BOOTSTRAP: zzz is not host:port ")


def test_a_value_that_a_terminal_would_obey_is_printed_in_escapes(broker: BrokerProcess) -> None:
    name, value = "ssl.provider", "/\x1b]0;title\x07"
    at = ["--broker", "1", "-b", broker.bootstrap_servers]
    changed = CliRunner().invoke(main, ["configs", "set", f"{name}={value}", *at])
    assert changed.exit_code == 0, changed.stderr
    got = CliRunner().invoke(main, ["configs", "get", name, *at])
    assert (got.exit_code, got.stdout) == (0, "/\\x1b]0;title\\x07\n")
