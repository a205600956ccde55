"""The command line over TLS and SASL, its users and ACLs: on both brokers, with one outcome."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compat_tests.brokers import Broker
from compat_tests.confluent_client import producer
from compat_tests.secured import (
    PASSWORDS,
    Certificates,
    Login,
    login_id,
    secured_brokers,
)
from compat_tests.waiting import eventually

TIMEOUT_S = 60.0
ADA = Login("SASL_SSL", "PLAIN", "ada", PASSWORDS["ada"])
EVE = Login("SASL_SSL", "SCRAM-SHA-512", "eve", "pw; of eve")
GOOD = [
    ADA,
    EVE,
    EVE._replace(mechanism="SCRAM-SHA-256", protocol="SASL_PLAINTEXT"),
    Login("SSL"),
    Login("SSL", user="ada"),
]


def run(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "magnetar", *arguments]
    return subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def make_eve(broker: Broker) -> None:
    add = ("users", "add", "eve", "--password-file", "-", "-b", broker.bootstrap)
    assert run(*add, text=EVE.password).returncode == 0


brokers = secured_brokers(make_eve)


def as_admin(broker: Broker, *arguments: str) -> Any:
    """Return the JSON that a command prints to a super user."""
    ended = run(*arguments, "--json", "-b", broker.bootstrap)
    assert ended.returncode == 0, ended
    return json.loads(ended.stdout)


@pytest.mark.parametrize("login", GOOD, ids=login_id)
def test_the_command_line_is_let_in_by_the_settings_of_kafkas_tools(
    secured: Broker, certificates: Certificates, login: Login, tmp_path: Path
) -> None:
    how = login.for_java(secured, certificates, tmp_path)
    # Kafka's nodes learn of new users a moment after the answer.
    eventually(lambda: run("topics", "list", *how).returncode == 0)


@pytest.mark.parametrize("login", [ADA, EVE], ids=login_id)
def test_a_wrong_password_is_said(
    secured: Broker, certificates: Certificates, login: Login, tmp_path: Path
) -> None:
    how = login._replace(password="wrong").for_java(secured, certificates, tmp_path)
    ended = run("topics", "list", *how)
    assert ended.returncode == 1
    assert f"refused the login of '{login.user}' by {login.mechanism}" in ended.stderr


def test_a_protocol_that_the_listener_does_not_speak_is_said(
    secured: Broker, certificates: Certificates, tmp_path: Path
) -> None:
    _, _, *config = ADA.for_java(secured, certificates, tmp_path)
    on_plain = run("topics", "list", "-b", secured.bootstrap, *config)
    assert "does not speak TLS" in on_plain.stderr
    on_tls = run("topics", "list", "-b", secured.address("SSL"), "--timeout", "5s")
    assert "speak PLAINTEXT, as this client does?" in on_tls.stderr or "TLS" in on_tls.stderr
    on_sasl = run("topics", "list", "-b", secured.address("SASL_PLAINTEXT"))
    assert "Does the listener speak PLAINTEXT" in on_sasl.stderr


def test_users_and_acls_decide_who_may(
    secured: Broker, certificates: Certificates, tmp_path: Path
) -> None:
    how = EVE.for_java(secured, certificates, tmp_path)
    as_admin(secured, "topics", "create", "orders-1")
    denied = run("produce", "orders-1", *how, text="a\n")
    assert denied.returncode == 1 and "TOPIC_AUTHORIZATION_FAILED" in denied.stderr
    operations = ("--operation", "write", "--operation", "read")
    about = ("--allow-principal", "User:eve", "--topic", "orders-", "--prefix")
    added = as_admin(secured, "acls", "add", *operations, *about)
    match = ("--topic", "orders-1", "--resource-pattern-type", "match")
    eventually(
        lambda: sorted(as_admin(secured, "acls", "list", *match), key=str) == sorted(added, key=str)
    )
    eventually(lambda: run("produce", "orders-1", *how, text="a\n").returncode == 0)
    assert "a" in run("consume", "orders-1", "--exit", *how).stdout.split()
    assert as_admin(secured, "users", "list") == [
        {"user": "eve", "mechanisms": {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096}}
    ]
    assert len(as_admin(secured, "acls", "remove", "--principal", "User:eve")) == 2
    eventually(lambda: as_admin(secured, "acls", "list", "--principal", "User:eve") == [])


def test_a_transaction_that_a_user_may_not_see_is_not_called_hanging(
    brokers: Callable[[str], Broker], certificates: Certificates, tmp_path: Path
) -> None:
    # Not of Kafka, whose brokers do not say that they leave some out.
    broker = brokers("magnetar")
    how = EVE.for_java(broker, certificates, tmp_path)
    as_admin(broker, "topics", "create", "hidden")
    rights = ("acls", "add", "--allow-principal", "User:eve")
    as_admin(broker, *rights, "--operation", "read", "--topic", "hidden")
    as_admin(broker, *rights, "--operation", "cluster_action", "--cluster")
    writer = producer(broker.bootstrap, transactional_id="unseen")
    writer.init_transactions(TIMEOUT_S)
    writer.begin_transaction()
    writer.produce("hidden", "debit", partition=0)
    assert writer.flush(TIMEOUT_S) == 0
    look = ("transactions", "hanging", "--topic", "hidden", "--max-transaction-timeout", "1ms")
    place = ("--topic", "hidden", "--partition", "0", "--start-offset", "0")
    for asked in (look, ("transactions", "abort", *place)):
        ended = run(*asked, *how)
        assert ended.returncode == 1
        assert "this user may not describe every transactional id" in ended.stderr
    as_admin(broker, *rights, "--operation", "describe", "--transactional-id", "*")
    assert "no transaction hangs" in run(*look, *how).stderr
    writer.commit_transaction(TIMEOUT_S)
    assert run("consume", "hidden", "--exit", *how).stdout.split() == ["debit"]
    as_admin(broker, "acls", "remove", "--principal", "User:eve")
