"""What a client may not touch is refused with what it lists, whether that is null or not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from magnetar.apis import authorization
from magnetar.broker import Broker
from magnetar.storage.acls import STANDARD_AUTHORIZER
from tests.magnetar.conftest import RawClient, StartBroker
from wire.error_code import ErrorCode
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
