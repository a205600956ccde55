"""`magnetar users`, `acls`, `profiles` and --command-config, as an administrator meets them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from magnetar.cli.main import main
from magnetar.testing import BrokerProcess, allow, start_broker

ADMIN = "SCRAM-SHA-512"


def invoke(*arguments: str, text: str = "") -> Result:
    return CliRunner().invoke(main, arguments, input=text)


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    users = {"admin": "pw", "ada": "pw"}
    acls = [allow("ada", "READ", topic="orders-", prefix=True)]
    settings = {"super.users": "User:admin;User:magnetar-testing"}
    with start_broker(settings=settings, users=users, acls=acls, mechanism=ADMIN) as running:
        yield running


def printed(broker: BrokerProcess, *arguments: str, user: str = "admin", text: str = "") -> Any:
    config = str(broker.properties_file(user))
    result = invoke(*arguments, "--command-config", config, "--json", text=text)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_users_come_and_go(broker: BrokerProcess) -> None:
    by_name = {each["user"]: each["mechanisms"] for each in printed(broker, "users", "list")}
    assert by_name.keys() == {"ada", "admin"}
    added = ("users", "add", "eve", "--password-file", "-", "--mechanism", "scram-sha-256")
    assert printed(broker, *added, text="secret\n") == [
        {"user": "eve", "mechanisms": {"SCRAM-SHA-256": 4096}}
    ]
    assert printed(broker, "users", "remove", "eve") == [{"user": "eve", "removed": True}]
    config = str(broker.properties_file("admin"))
    again = invoke("users", "remove", "eve", "--command-config", config)
    assert (again.exit_code, "there is no user 'eve'" in again.stderr) == (1, True)


def test_acls_come_and_go_in_kafkas_words(broker: BrokerProcess) -> None:
    add = ("acls", "add", "--allow-principal", "User:eve", "--operation", "DescribeConfigs")
    (added,) = printed(broker, *add, "--topic", "eve-", "--prefix", "--host", "10.0.0.1")
    assert added == {
        "resource": "TOPIC",
        "name": "eve-",
        "pattern": "PREFIXED",
        "principal": "User:eve",
        "host": "10.0.0.1",
        "operation": "DESCRIBE_CONFIGS",
        "permission": "ALLOW",
    }
    about = ("--topic", "eve-1", "--resource-pattern-type", "match")
    assert printed(broker, "acls", "list", *about) == [added]
    assert printed(broker, "acls", "list", "--topic", "eve-1") == []
    assert printed(broker, "acls", "list", "--cluster") == []
    assert printed(broker, "acls", "remove", "--principal", "User:eve") == [added]
    assert printed(broker, "acls", "list", "--principal", "User:eve") == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["add", "--operation", "read", "--topic", "a"], "Name --allow-principal"),
        (["add", "--operation", "read", "--allow-principal", "User:a"], "Name --topic"),
        (["add", "--operation", "reed", "--topic", "a"], "'reed' is not one of ALL, READ"),
        (["remove"], "Name a resource or --principal"),
    ],
)
def test_a_mistake_is_named_and_exits_2(arguments: list[str], complaint: str) -> None:
    result = invoke("acls", *arguments)
    assert (result.exit_code, complaint in result.stderr) == (2, True)


def test_what_acls_deny_is_said(broker: BrokerProcess) -> None:
    config = str(broker.properties_file("ada"))
    result = invoke("users", "list", "--command-config", config)
    assert result.exit_code == 1
    assert "CLUSTER_AUTHORIZATION_FAILED" in result.stderr
    assert "The broker's ACLs do not allow it." in result.stderr


def test_a_profile_says_how_to_connect(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert "no profiles in" in invoke("profiles", "list").stderr
    path = tmp_path / "magnetar" / "profiles.toml"
    path.parent.mkdir()
    path.write_text(
        "[test]\n"
        f'bootstrap.servers = "{broker.bootstrap_servers}"\n'
        'security.protocol = "SASL_PLAINTEXT"\n'
        f'sasl.mechanism = "{ADMIN}"\n'
        'sasl.username = "admin"\n'
        'sasl.password = "pw"\n'
    )
    (shown,) = json.loads(invoke("profiles", "list", "--json").stdout)
    assert (shown["profile"], shown["sasl.username"]) == ("test", "admin")
    assert "pw" not in shown.values()
    assert invoke("users", "list", "--profile", "test").exit_code == 0
    monkeypatch.setenv("MAGNETAR_PROFILE", "test")
    assert invoke("users", "list").exit_code == 0
    unknown = invoke("users", "list", "--profile", "prod")
    assert "no profile 'prod'. It has test." in unknown.stderr


def test_the_first_user_is_made_before_the_broker_runs(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret\n")
    data = tmp_path / "data"
    added = ("users", "add", "root", "--password-file", str(password), "--data-dir", str(data))
    assert invoke(*added).exit_code == 0
    # Its own settings come last: the users of this broker are those of the directory alone.
    with start_broker(data, users={"root": "secret"}, mechanism="SCRAM-SHA-256") as running:
        refused = invoke(*added)
        assert refused.exit_code == 1
        assert "in use by another process" in refused.stderr
        assert {each["user"] for each in printed(running, "users", "list", user="root")} == {"root"}


def test_a_missing_topic_is_made_only_when_that_is_asked_for(broker: BrokerProcess) -> None:
    how = ("--command-config", str(broker.properties_file("admin")))
    refused = invoke("produce", "typo", *how, text="a\n")
    assert (refused.exit_code, "--create makes it" in refused.stderr) == (1, True)
    assert "typo" not in {each["topic"] for each in printed(broker, "topics", "list")}
    assert invoke("produce", "meant", "--create", *how, text="a\n").exit_code == 0


def test_patterns_and_ends_choose_what_is_read(broker: BrokerProcess) -> None:
    how = ("--command-config", str(broker.properties_file("admin")))
    for topic in ("orders-1", "orders-2", "other"):
        assert invoke("produce", topic, "--create", *how, text="a\nb\nc\n").exit_code == 0

    def read(*arguments: str) -> str:
        result = invoke("consume", *arguments, *how)
        assert result.exit_code == 0, result.stderr
        return result.stdout

    assert sorted(read("^orders-", "--exit").split()) == ["a", "a", "b", "b", "c", "c"]
    # Without --exit: the end that is named is enough.
    assert read("orders-1", "--until", "2") == "a\nb\n"
    assert read("orders-1", "--until", "-1") == "a\nb\n"
    assert read("orders-1", "-o", "-5m", "--until", "end") == "a\nb\nc\n"
    assert read("orders-1", "-o", "-2h", "--until", "-1h") == ""
    described = printed(broker, "topics", "describe", "^orders-[2-9]")
    assert [each["topic"] for each in described] == ["orders-2"]
    nothing = invoke("consume", "^nothing", *how)
    assert "no topic matches '^nothing'" in nothing.stderr
