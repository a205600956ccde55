"""Delegation tokens (KIP-48): Kafka's tools and bare frames, on magnetar and Apache Kafka alike."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from compat_tests import token_frames, tool_box
from compat_tests.brokers import Broker
from compat_tests.plain_login import plain_connection
from compat_tests.raw import Connection
from compat_tests.secured import (
    PASSWORDS,
    Certificates,
    Login,
    secured_brokers,
)
from compat_tests.token_frames import TokenRefused
from compat_tests.waiting import eventually

ADA = Login("SASL_PLAINTEXT", "PLAIN", "ada", PASSWORDS["ada"])
SETTINGS = {
    "delegation.token.secret.key": "a secret of the tests",
    "delegation.token.expiry.check.interval.ms": "200",
}
brokers = secured_brokers(lambda broker: None, SETTINGS)
_NOT_FOUND = "delegation_token_not_found"
Connect = Callable[[str], Connection]


@pytest.fixture
def connect(secured: Broker) -> Iterator[Connect]:
    """Connect as a user of PLAIN; as `ANONYMOUS` in plain text."""
    with ExitStack() as stack:

        def connected(user: str) -> Connection:
            if user == "ANONYMOUS":
                return stack.enter_context(Connection(secured.bootstrap))
            opened = plain_connection(secured, user, PASSWORDS[user])
            return stack.enter_context(opened)

        yield connected


def code(call: Callable[[], object]) -> str:
    """Return the name of the error that a call is answered with."""
    try:
        call()
    except TokenRefused as refused:
        return refused.code.name
    return "none"


def succeeds(arguments: list[str]) -> bool:
    return tool_box.call("TopicCommand", *arguments, "--list").status == 0


def test_a_token_is_made_used_renewed_and_ended_by_kafkas_tools(
    secured: Broker, certificates: Certificates, tmp_path: Path
) -> None:
    as_ada = ADA.for_java(secured, certificates, tmp_path)

    def tool(*arguments: str) -> str:
        return tool_box.run("DelegationTokenCommand", *as_ada, *arguments)

    made = tool("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    token_id, hmac = re.findall(r"^(\S{22})\s+(\S{88})\s+User:ada\s+User:ada\s", made, re.M)[0]
    # Kafka's nodes learn of a token a moment after the answer.
    eventually(lambda: token_id in tool("--describe", "--owner-principal", "User:ada"))
    assert token_id not in tool("--describe", "--owner-principal", "User:eve")
    tool("--renew", "--renew-time-period", "1000000", "--hmac", hmac)
    directory = tmp_path / "token"
    directory.mkdir()
    for protocol, mechanism in (
        ("SASL_PLAINTEXT", "SCRAM-SHA-256"),
        ("SASL_SSL", "SCRAM-SHA-512"),
    ):
        login = Login(protocol, mechanism, token_id, hmac, is_token=True)
        by_token = login.for_java(secured, certificates, directory)
        eventually(partial(succeeds, by_token))
        # A token makes no tokens.
        asked = tool_box.call("DelegationTokenCommand", *by_token, "--describe")
        assert "Delegation Token requests are not allowed" in asked.errors, asked
    # A token is no user, and a user no token.
    for login in (
        Login("SASL_PLAINTEXT", "SCRAM-SHA-256", token_id, hmac),
        Login("SASL_PLAINTEXT", "SCRAM-SHA-256", token_id, "wrong", is_token=True),
        Login("SASL_PLAINTEXT", "SCRAM-SHA-256", "ada", PASSWORDS["ada"], is_token=True),
    ):
        refused = login.for_java(secured, certificates, directory)
        assert tool_box.call("TopicCommand", *refused, "--list").status != 0
    tool("--expire", "--expiry-time-period", "-1", "--hmac", hmac)
    eventually(lambda: token_id not in tool("--describe", "--owner-principal", "User:ada"))
    login = Login("SASL_PLAINTEXT", "SCRAM-SHA-256", token_id, hmac, is_token=True)
    ended = login.for_java(secured, certificates, directory)
    assert tool_box.call("TopicCommand", *ended, "--list").status != 0


def test_what_may_not_be_done_with_tokens_has_kafkas_code(connect: Connect) -> None:
    ada, bob, anonymous = connect("ada"), connect("bob"), connect("ANONYMOUS")
    token = token_frames.create(ada)
    unknown = bytes(64)
    eventually(lambda: token.token_id in token_frames.describe(ada))
    assert token.principal_name == token.token_requester_principal_name == "ada"
    for call, expected in (
        (lambda: token_frames.create(anonymous), "delegation_token_request_not_allowed"),
        (lambda: token_frames.describe(anonymous), "delegation_token_request_not_allowed"),
        (lambda: token_frames.renew(anonymous, token.hmac), "delegation_token_request_not_allowed"),
        (lambda: token_frames.expire(anonymous, unknown), "delegation_token_request_not_allowed"),
        (lambda: token_frames.create(bob, owner="ada"), "delegation_token_authorization_failed"),
        (lambda: token_frames.create(bob, renewers=[("Group", "g")]), "invalid_principal_type"),
        (lambda: token_frames.renew(ada, unknown), "delegation_token_not_found"),
        (lambda: token_frames.expire(ada, unknown), "delegation_token_not_found"),
        (lambda: token_frames.renew(bob, token.hmac), "delegation_token_owner_mismatch"),
        (lambda: token_frames.expire(bob, token.hmac), "delegation_token_owner_mismatch"),
        (lambda: token_frames.renew(ada, token.hmac, 1 << 40), "none"),
        (lambda: token_frames.expire(ada, token.hmac, 3_600_000), "none"),
    ):
        assert code(call) == expected


def test_acls_say_who_sees_and_makes_the_tokens_of_others(
    secured: Broker, connect: Connect
) -> None:
    ada, bob = connect("ada"), connect("bob")
    of_ada = token_frames.create(ada).token_id
    with_bob = token_frames.create(ada, renewers=[("User", "bob")]).token_id
    eventually(lambda: {of_ada, with_bob} <= token_frames.describe(ada))
    known = {of_ada, with_bob}
    assert token_frames.describe(bob, ["ada"]) & known == {with_bob}
    assert token_frames.describe(ada, []) == set()

    def acls(*arguments: str) -> str:
        return tool_box.run(
            "AclCommand",
            *("--bootstrap-server", secured.bootstrap),
            *arguments,
            *("--allow-principal", "User:bob"),
        )

    acls("--add", "--operation", "Describe", "--delegation-token", of_ada)
    eventually(lambda: known <= token_frames.describe(bob))
    another = token_frames.create(ada).token_id
    acls("--add", "--operation", "DescribeTokens", "--user-principal", "User:ada")
    eventually(lambda: {*known, another} <= token_frames.describe(bob, ["ada"]))
    acls("--add", "--operation", "CreateTokens", "--user-principal", "User:ada")
    eventually(lambda: code(lambda: token_frames.create(bob, owner="ada")) == "none")
    made = token_frames.create(bob, owner="ada")
    assert (made.principal_name, made.token_requester_principal_name) == ("ada", "bob")
    # Other tests, which may come later, see bob without it.
    acls("--remove", "--force", "--operation", "CreateTokens", "--user-principal", "User:ada")
    eventually(lambda: code(lambda: token_frames.create(bob, owner="ada")) != "none")


def test_a_token_that_is_over_is_removed_and_lets_no_client_in(
    secured: Broker, certificates: Certificates, connect: Connect, tmp_path: Path
) -> None:
    ada = connect("ada")
    short = token_frames.create(ada, lifetime_ms=1_000)
    assert (short.max_timestamp - short.issue_timestamp).total_seconds() == 1
    # Before it is removed: good until its end, then over.
    eventually(lambda: code(lambda: token_frames.renew(ada, short.hmac)) == _NOT_FOUND)
    eventually(lambda: short.token_id not in token_frames.describe(ada, ["ada"]))
    password = b64encode(short.hmac).decode()
    login = Login("SASL_PLAINTEXT", "SCRAM-SHA-256", short.token_id, password, is_token=True)
    ended = login.for_java(secured, certificates, tmp_path)
    # Kafka's brokers forget a token a moment after its controller has.
    eventually(lambda: tool_box.call("TopicCommand", *ended, "--list").status != 0)
