"""The lines of the audit: what was denied, and at debug what was allowed."""

from __future__ import annotations

import io
import json
import logging as levels
from collections.abc import Awaitable, Callable

import pytest

from magnetar import logging
from magnetar.broker import Broker
from magnetar.security.acls import Acl, Operation, Pattern, Permission, Resource
from tests.magnetar.conftest import RawClient
from wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

StartBroker = Callable[..., Awaitable[Broker]]
Connect = Callable[[Broker], Awaitable[RawClient]]
LOGGER = "kafka.authorizer.logger"
RULE = Acl(
    Resource.GROUP, "bill", Pattern.PREFIXED, "User:*", "*", Operation.READ, Permission.ALLOW
)


async def lines(
    start_broker: StartBroker, connect: Connect, level: int, **settings: str
) -> list[dict[str, str]]:
    """Ask for two groups; return the audit's lines."""
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    broker = await start_broker({"authorizer.class.name": authorizer, **settings})
    assert broker.acls is not None
    broker.acls.add([RULE])
    stream = io.StringIO()
    logging.configure(format="json", stream=stream)
    logging.set_level(LOGGER, level)
    client = await connect(broker)
    for group in ("billing", "secret"):
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        await client.ask(request, 4, FindCoordinatorResponse)
    written = map(json.loads, stream.getvalue().splitlines())
    return [
        {name: line[name] for name in line if name not in ("timestamp", "logger", "level")}
        for line in written
        if line["logger"] == LOGGER
    ]


ALLOWED = {
    "event": "allowed",
    "principal": "User:ANONYMOUS",
    "host": "127.0.0.1",
    "operation": "DESCRIBE",
    "resource": "GROUP:LITERAL:billing",
    "request": "FindCoordinator",
    "rule": str(RULE),
}
DENIED = {
    **ALLOWED,
    "event": "denied",
    "resource": "GROUP:LITERAL:secret",
    "rule": "no ACL allows it",
}


async def test_what_is_denied_has_a_line(start_broker: StartBroker, connect: Connect) -> None:
    (denied,) = await lines(start_broker, connect, levels.INFO)
    assert denied.items() >= DENIED.items()


async def test_what_is_allowed_has_a_line_at_debug(
    start_broker: StartBroker, connect: Connect
) -> None:
    allowed, denied = await lines(start_broker, connect, levels.DEBUG)
    assert allowed == ALLOWED
    assert denied.items() >= DENIED.items()


@pytest.mark.parametrize(
    ("setting", "value", "rule"),
    [
        ("super.users", "User:ANONYMOUS", "super.users"),
        ("allow.everyone.if.no.acl.found", "true", "no ACL is about it"),
    ],
)
async def test_a_grant_without_a_rule_says_why(
    start_broker: StartBroker, connect: Connect, setting: str, value: str, rule: str
) -> None:
    *_, last = await lines(start_broker, connect, levels.DEBUG, **{setting: value})
    assert (last["event"], last["rule"]) == ("allowed", rule)
