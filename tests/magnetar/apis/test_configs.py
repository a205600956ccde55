"""AlterConfigs and IncrementalAlterConfigs: what a topic's configs become, and that they act."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from time import thread_time
from typing import Any

import pytest

from magnetar.apis.describe_configs import _describe_all
from magnetar.broker import Broker
from magnetar.config.changes import Change, Operation, changed
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages import alter_configs, incremental_alter_configs
from wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from wire.records import SimpleRecord, build_batch

StartBroker = Callable[..., Awaitable[Broker]]
TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND, SUBTRACT = Operation


def incremental(
    *changes: tuple[str, int, str | None], name: str = "a", resource_type: int = TOPIC
) -> AlterConfigsResource:
    return AlterConfigsResource(
        resource_type=resource_type,
        resource_name=name,
        configs=[
            AlterableConfig(name=each, config_operation=operation, value=value)
            for each, operation, value in changes
        ],
    )


async def alter(client: Any, *resources: AlterConfigsResource, version: int = 1) -> list[int]:
    request = IncrementalAlterConfigsRequest(resources=list(resources))
    answer = await client.ask(request, version, IncrementalAlterConfigsResponse)
    return [response.error_code for response in answer.responses]


async def replace(client: Any, configs: dict[str, str | None], version: int = 2) -> int:
    resource = alter_configs.AlterConfigsResource(
        resource_type=TOPIC,
        resource_name="a",
        configs=[
            alter_configs.AlterableConfig(name=name, value=value) for name, value in configs.items()
        ],
    )
    request = AlterConfigsRequest(resources=[resource])
    (response,) = (await client.ask(request, version, AlterConfigsResponse)).responses
    return int(response.error_code)


@pytest.mark.parametrize("version", [0, 1])
async def test_configs_are_set_and_deleted(broker: Broker, client: Any, version: int) -> None:
    topic = broker.topics.create("a", 2, configs={"retention.ms": "5"})
    changes = incremental(("max.message.bytes", SET, "100"), ("retention.ms", DELETE, None))
    assert await alter(client, changes, version=version) == [0]
    assert topic.configs == {"max.message.bytes": "100"}
    assert (topic.settings.max_message_bytes, topic.settings.retention_ms) == (100, 604800000)
    assert [log.config.max_message_bytes for log in topic.local] == [100, 100]
    resource = DescribeConfigsResource(
        resource_type=TOPIC, resource_name="a", configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[resource])
    (result,) = (await client.ask(request, 4, DescribeConfigsResponse)).results
    shown = {config.name: (config.value, config.config_source) for config in result.configs}
    assert shown["max.message.bytes"] == ("100", 1)
    assert shown["retention.ms"] == ("604800000", 5)


async def test_values_are_shown_as_they_are_understood(broker: Broker, client: Any) -> None:
    broker.topics.create(
        "a", configs={"preallocate": " TRUE", "cleanup.policy": "compact , delete"}
    )
    broker.topics.create("b", configs={"retention.ms": "+5", "min.cleanable.dirty.ratio": "0.10"})
    resources = [
        DescribeConfigsResource(resource_type=TOPIC, resource_name=name, configuration_keys=[])
        for name in ("a", "b")
    ]
    answer = await client.ask(
        DescribeConfigsRequest(resources=resources), 4, DescribeConfigsResponse
    )
    a, b = ({each.name: each.value for each in result.configs} for result in answer.results)
    assert (a["preallocate"], a["cleanup.policy"]) == ("true", "compact,delete")
    assert (b["retention.ms"], b["min.cleanable.dirty.ratio"]) == ("5", "0.1")


@pytest.mark.parametrize(
    ("own", "change", "expected"),
    [
        (None, (APPEND, "compact"), "delete,compact"),
        (None, (APPEND, "compact,"), "delete,compact"),
        ("compact", (APPEND, "compact"), "compact"),
        ("compact", (APPEND, "delete, compact"), "compact,delete"),
        ("delete,compact", (SUBTRACT, "delete"), "compact"),
        (None, (SUBTRACT, "compact"), "delete"),
        ("delete", (SUBTRACT, "delete"), ""),
        ("delete", (DELETE, None), None),
        (None, (DELETE, None), None),
    ],
)
async def test_lists_are_added_to_and_taken_from(
    broker: Broker,
    client: Any,
    own: str | None,
    change: tuple[int, str | None],
    expected: str | None,
) -> None:
    topic = broker.topics.create("a", configs={} if own is None else {"cleanup.policy": own})
    assert await alter(client, incremental(("cleanup.policy", *change))) == [0]
    assert topic.configs.get("cleanup.policy") == expected


@pytest.mark.parametrize(
    ("resource", "code"),
    [
        (incremental(("max.message.bytes", SET, "x")), ErrorCode.INVALID_CONFIG),
        (incremental(("max.message.bytes", SET, "-1")), ErrorCode.INVALID_CONFIG),
        (incremental(("segment.bytes", SET, "10")), ErrorCode.INVALID_CONFIG),
        (incremental(("nope", SET, "1")), ErrorCode.INVALID_CONFIG),
        (incremental(("nope", DELETE, None)), ErrorCode.NONE),
        (incremental(("nope", APPEND, "1")), ErrorCode.INVALID_CONFIG),
        (incremental(("retention.ms", APPEND, "1")), ErrorCode.INVALID_CONFIG),
        (incremental(("cleanup.policy", APPEND, "nope")), ErrorCode.INVALID_CONFIG),
        (incremental(("cleanup.policy", APPEND, "")), ErrorCode.INVALID_CONFIG),
        (incremental(("cleanup.policy", APPEND, "compact,,delete")), ErrorCode.INVALID_CONFIG),
        (incremental(("cleanup.policy", SET, "compact,")), ErrorCode.INVALID_CONFIG),
        (incremental(("cleanup.policy", SET, ",")), ErrorCode.INVALID_CONFIG),
        (incremental(("min.cleanable.dirty.ratio", SET, "NaN")), ErrorCode.INVALID_CONFIG),
        (incremental(("retention.ms", SET, None)), ErrorCode.INVALID_REQUEST),
        (incremental(("retention.ms", 9, "1")), ErrorCode.INVALID_REQUEST),
        (
            incremental(("retention.ms", SET, "1"), ("retention.ms", DELETE, None)),
            ErrorCode.INVALID_REQUEST,
        ),
        (
            incremental(("max.message.bytes", SET, "100"), ("nope", SET, "1")),
            ErrorCode.INVALID_CONFIG,
        ),
        (incremental(name="b"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (incremental(name=""), ErrorCode.INVALID_REQUEST),
        (incremental(name="a b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (
            incremental(("num.partitions", SET, "2"), name="1", resource_type=BROKER),
            ErrorCode.INVALID_REQUEST,
        ),
        (
            incremental(("num.partitions", SET, "2"), name="", resource_type=BROKER),
            ErrorCode.INVALID_REQUEST,
        ),
        (incremental(name="1", resource_type=BROKER), ErrorCode.NONE),
        (
            incremental(("num.partitions", DELETE, None), name="1", resource_type=BROKER),
            ErrorCode.NONE,
        ),
        (incremental(name="2", resource_type=BROKER), ErrorCode.INVALID_REQUEST),
        (incremental(("x", SET, "INFO"), name="1", resource_type=8), ErrorCode.INVALID_CONFIG),
        (incremental(name="1", resource_type=77), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_changes_that_are_refused_change_nothing(
    broker: Broker, client: Any, resource: AlterConfigsResource, code: ErrorCode
) -> None:
    topic = broker.topics.create("a", configs={"retention.ms": "5"})
    assert await alter(client, resource) == [code]
    assert topic.configs == {"retention.ms": "5"}


def test_taking_from_a_list_looks_at_each_word_once() -> None:
    name = "leader.replication.throttled.replicas"
    own = ",".join(f"{number}:0" for number in range(5000))
    other = ",".join(f"{number}:1" for number in range(5000))
    began_s = thread_time()
    assert changed({name: own}, [Change(name, SUBTRACT, other)], lambda _: "") == {name: own}
    # Each with each took a second.
    assert thread_time() - began_s < 0.1


async def test_a_list_that_no_answer_could_show_is_refused(broker: Broker, client: Any) -> None:
    broker.topics.create("a")
    name = "leader.replication.throttled.replicas"
    replicas = [f"{number}:0" for number in range(9000)]
    some, more = ",".join(replicas[:4000]), ",".join(replicas[4000:8000])
    codes = [await alter(client, incremental((name, APPEND, each))) for each in (some, more)]
    assert codes == [[0], [ErrorCode.INVALID_CONFIG]]
    request = DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=TOPIC, resource_name="a")]
    )
    (result,) = (await client.ask(request, 4, DescribeConfigsResponse)).results
    assert {each.name: each.value for each in result.configs}[name] == some


async def test_a_resource_named_twice_is_not_changed(broker: Broker, client: Any) -> None:
    topic = broker.topics.create("a")
    twice = [incremental(("retention.ms", SET, "1")), incremental(("retention.ms", SET, "2"))]
    assert await alter(client, *twice) == [ErrorCode.INVALID_REQUEST] * 2
    resource = alter_configs.AlterConfigsResource(resource_type=TOPIC, resource_name="a")
    request = AlterConfigsRequest(resources=[resource, resource])
    answer = await client.ask(request, 2, AlterConfigsResponse)
    assert [each.error_code for each in answer.responses] == [ErrorCode.INVALID_REQUEST] * 2
    assert topic.configs == {}


async def test_checked_only_nothing_changes(broker: Broker, client: Any) -> None:
    topic = broker.topics.create("a")
    request = IncrementalAlterConfigsRequest(
        resources=[incremental(("retention.ms", SET, "1"))], validate_only=True
    )
    (response,) = (await client.ask(request, 1, IncrementalAlterConfigsResponse)).responses
    assert response.error_code == 0
    config = alter_configs.AlterableConfig(name="retention.ms", value="1")
    resource = alter_configs.AlterConfigsResource(
        resource_type=TOPIC, resource_name="a", configs=[config]
    )
    replacing = AlterConfigsRequest(resources=[resource], validate_only=True)
    (answer,) = (await client.ask(replacing, 2, AlterConfigsResponse)).responses
    assert answer.error_code == 0
    assert topic.configs == {}


@pytest.mark.parametrize("version", range(3))
async def test_replaced_configs_are_the_only_ones(
    broker: Broker, client: Any, version: int
) -> None:
    topic = broker.topics.create("a", configs={"retention.ms": "5", "segment.ms": "7"})
    assert await replace(client, {"retention.ms": "6"}, version) == 0
    assert topic.configs == {"retention.ms": "6"}
    assert await replace(client, {"retention.ms": None}, version) == ErrorCode.INVALID_REQUEST
    assert await replace(client, {"nope": "1"}, version) == ErrorCode.INVALID_CONFIG
    assert topic.configs == {"retention.ms": "6"}
    assert await replace(client, {}, version) == 0
    assert topic.configs == {}


async def test_replacing_refuses_resources_without_configs(client: Any) -> None:
    resources = [
        alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name)
        for kind, name in [(BROKER, "1"), (BROKER, "9"), (8, "1"), (TOPIC, "b")]
    ]
    resources[0].configs.append(alter_configs.AlterableConfig(name="num.partitions", value="1"))
    answer = await client.ask(AlterConfigsRequest(resources=resources), 2, AlterConfigsResponse)
    assert [each.error_code for each in answer.responses] == [
        *[ErrorCode.INVALID_REQUEST] * 3,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


def batch_of(size_bytes: int, timestamp_ms: int) -> bytearray:
    return build_batch([SimpleRecord(None, b"x" * size_bytes, timestamp_ms)])


@pytest.mark.parametrize("durability", ["memory", "page-cache"])
async def test_changes_act_on_open_logs(
    start_broker: StartBroker, tmp_path: Path, durability: str
) -> None:
    broker = await start_broker({"durability": durability})
    now_ms = broker.clock.now_ms()
    topic = broker.topics.create("a")
    (log,) = topic.local
    log.append(log.check(batch_of(1000, now_ms), now_ms))
    broker.topics.configs.replace(topic, {"max.message.bytes": "500"})
    with pytest.raises(KafkaError) as refused:
        log.append(log.check(batch_of(1000, now_ms), now_ms))
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    broker.topics.configs.replace(topic, {"message.timestamp.type": "LogAppendTime"})
    assert log.append(log.check(batch_of(1000, 5), now_ms)).log_append_time_ms == now_ms
    broker.topics.configs.replace(topic, {"segment.bytes": str(1 << 20)})
    for _ in range(3):
        log.append(log.check(batch_of(1_000_000, now_ms), now_ms))
    await log.durable(log.log_end_offset)
    if durability == "page-cache":
        segments = sorted(path.name for path in (tmp_path / "data" / "a-0").glob("*.log"))
        assert [int(name[:20]) for name in segments] == [0, 3, 4]


async def test_changes_are_there_after_a_restart(start_broker: StartBroker) -> None:
    settings = {"durability": "page-cache"}
    broker = await start_broker(settings)
    topic = broker.topics.create("a", configs={"retention.ms": "5"})
    broker.topics.configs.replace(topic, {"max.message.bytes": "100"})
    await broker.stop()
    again = (await start_broker(settings)).topics.by_name("a")
    assert again is not None
    assert again.configs == {"max.message.bytes": "100"}
    assert again.local[0].config.max_message_bytes == 100


def test_the_operations_are_those_of_the_protocol() -> None:
    assert [int(operation) for operation in Operation] == [0, 1, 2, 3]
    assert incremental_alter_configs.AlterableConfig().config_operation == Operation.SET


@pytest.mark.parametrize("resource_type", [TOPIC, GROUP])
async def test_what_resources_inherit_is_described_once(
    resource_type: int, broker: Broker, client: Any
) -> None:
    """The settings of 2,000 topics took 90 MB until they were sent."""
    own = "segment.bytes" if resource_type == TOPIC else "consumer.session.timeout.ms"
    for name in "abc":
        broker.topics.create(name, 1)
    changed_b = incremental((own, SET, "50000000"), name="b")
    if resource_type == GROUP:
        changed_b = incremental((own, SET, "50000"), name="b", resource_type=GROUP)
    assert await alter(client, changed_b) == [0]
    resources = [
        DescribeConfigsResource(resource_type=resource_type, resource_name=name) for name in "abc"
    ]
    request = DescribeConfigsRequest(resources=resources, include_synonyms=True)
    response = await _describe_all(broker.services, request)
    a, b, c = ({entry.name: entry for entry in each.configs} for each in response.results)
    assert len(a) > 5
    assert all(a[name] is c[name] for name in a)
    assert {name for name in a if a[name] is not b[name]} == {own}
    assert b[own].value != a[own].value
