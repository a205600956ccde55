"""What a client may not touch is refused with what it lists, whether that is null or not; what it
may touch costs its handler no step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.apis import authorization
from magnetar.apis.authorization import Each, guarded
from magnetar.broker import Broker
from magnetar.runtime.turns import Turns
from magnetar.security.acls import Operation, Resource
from magnetar.security.authorizer import Authorizer
from magnetar.security.principal import user
from magnetar.storage.acls import STANDARD_AUTHORIZER
from tests.magnetar.conftest import RawClient, StartBroker
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages import create_partitions, describe_configs
from wire.resource_type import ResourceType


@pytest.mark.parametrize("is_null_first", [False, True])
async def test_what_is_denied_may_have_a_null_for_a_list(
    start_broker: StartBroker,
    connect: Callable[[Broker], Awaitable[RawClient]],
    monkeypatch: pytest.MonkeyPatch,
    is_null_first: bool,
) -> None:
    monkeypatch.setattr(authorization, "_NAMED", {})
    client = await connect(await start_broker({"authorizer.class.name": STANDARD_AUTHORIZER}))
    for is_null in (is_null_first, not is_null_first):
        resource = describe_configs.DescribeConfigsResource(
            resource_type=ResourceType.TOPIC,
            resource_name="secret",
            configuration_keys=None if is_null else ["retention.ms"],
        )
        described = await client.ask(
            describe_configs.DescribeConfigsRequest(resources=[resource]),
            4,
            describe_configs.DescribeConfigsResponse,
        )
        assert described.results[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assignment = create_partitions.CreatePartitionsAssignment(broker_ids=[0])
        topic = create_partitions.CreatePartitionsTopic(
            name="secret", count=2, assignments=None if is_null else [assignment]
        )
        grown = await client.ask(
            create_partitions.CreatePartitionsRequest(topics=[topic], timeout_ms=1_000),
            3,
            create_partitions.CreatePartitionsResponse,
        )
        assert grown.results[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize(("count", "is_direct"), [(1, True), (256, True), (257, False)])
async def test_a_list_that_is_short_and_allowed_goes_straight_to_a_handler_with_turns(
    count: int, is_direct: bool
) -> None:
    async def handle(services: object, request: Any, context: object) -> int:
        return len(request.topics)

    def refuse(request: object, version: int, error: KafkaError) -> None:
        raise AssertionError("all is allowed")

    authorizer = Authorizer([], [], allow_everyone=True)
    services: Any = SimpleNamespace(acls=SimpleNamespace(authorizer=authorizer), turns=Turns())
    context: Any = SimpleNamespace(principal=user("ada"), host="127.0.0.1", version=1)
    request = SimpleNamespace(topics=[f"t-{number}" for number in range(count)])
    needs = [Each(Operation.READ, Resource.TOPIC, "topics")]
    handled = guarded(handle, refuse, needs)(services, request, context)
    assert (handled.cr_code is handle.__code__) == is_direct
    assert await handled == count
