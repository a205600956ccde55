"""Requests of every API and version, with all around their handlers that may be there at once: an
authorizer that denies some of what they name, quotas, spans, partitions that move, and proofs of a
lease. None may be a bug, and nothing of them may stay in the accounts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from opentelemetry.sdk.trace import TracerProvider

from coordinator.transactions.metadata import TopicPartition
from magnetar.apis import authorization, offset_commit, txn_offset_commit
from magnetar.apis.leased import Lease, leased
from magnetar.apis.registry import Api, load_apis
from magnetar.broker import Broker
from magnetar.runtime import turns
from magnetar.security.acls import Acl, Operation, Pattern, Permission, Resource
from magnetar.server import dispatch
from magnetar.server.tracing import Tracing
from magnetar.storage.client_quotas import Change, make_entity
from magnetar.storage.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from tests.logstore.partitions import batch_of
from tests.magnetar.conftest import RawClient, StartBroker
from tests.magnetar.server.test_turns import until_empty
from wire import types
from wire.error_code import ErrorCode
from wire.schema import Field, fields_of

Connect = Callable[[Broker], Awaitable[RawClient]]
APIS = sorted(load_apis().values())
#: Not served where no metrics are collected.
_CLOSED = {"GetTelemetrySubscriptions", "PushTelemetry"}
_EACH = 2
_TOPICS = ("mine", "secret")
_QUOTAS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage")
#: What is long, or much, from one on.
_LARGE = (
    (dispatch, "ELEMENTS_AT_ONCE"),
    (offset_commit, "ELEMENTS_AT_ONCE"),
    (txn_offset_commit, "ELEMENTS_AT_ONCE"),
    (authorization, "_LOOKED_AT_ONCE"),
    (authorization, "_ASKED_AT_ONCE"),
    (authorization, "_REFUSED_AT_ONCE"),
)


class Making:
    """Makes requests of one version, of names that exist, are denied, or neither."""

    def __init__(self, broker: Broker, version: int, seed: str) -> None:
        self._version = version
        self._random = random.Random(seed)
        found = [broker.topics.by_name(name) for name in _TOPICS]
        self._ids = [*(topic.id for topic in found if topic), UUID(int=7), types.ZERO_UUID]

    def struct(self, declared: Any) -> Any:
        fields = (field for field in fields_of(declared) if self._version in field.versions)
        return declared(**{field.name: self._field(field) for field in fields})

    def _field(self, field: Field) -> Any:
        if self._version in field.nullable and self._random.random() < 0.2:
            return None
        return self._value(field.type, field.name)

    def _value(self, kind: types.WireType, name: str) -> Any:
        choose = self._random.choice
        match kind:
            case types.Scalar():
                return self._number(kind, name)
            case types.Uuid():
                return choose(self._ids)
            case types.String():
                return choose(["mine", "mine", "secret", "secret", "none", "0", ""])
            case types.RecordBytes():
                return bytes(batch_of(b"x"))
            case types.Bytes():
                return choose([b"", b"abc"])
            case types.Array():
                return [self._value(kind.element, name) for _ in range(choose([0, 1, 2, 4]))]
            case types.Nested():
                return self.struct(kind.struct)
        raise TypeError(f"no values of {kind!r}")

    def _number(self, kind: types.Scalar, name: str) -> Any:
        if kind.code == "?":
            return self._random.random() < 0.5
        if name == "acks":
            return -1
        if name == "isolation_level":
            return 0
        if "wait" in name or "timeout" in name:
            return 10_000 if "session" in name or "transaction" in name else 20
        return max(self._random.choice([0, 0, 0, 1, 2, -1]), kind.low)


@pytest.fixture(params=["small", "large", "in turns"])
async def broker(
    start_broker: StartBroker, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Broker:
    """Has everything around its handlers."""
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    settings = {"authorizer.class.name": authorizer, "group.initial.rebalance.delay.ms": "0"}
    broker = await start_broker(settings)
    for module, name in _LARGE if request.param == "large" else ():
        monkeypatch.setattr(module, name, 1)
    if request.param == "in turns":
        monkeypatch.setattr(turns, "TURN_S", 0.0)
    make_topics(broker)
    assert broker.acls is not None
    kinds = (Resource.TOPIC, Resource.GROUP, Resource.TRANSACTIONAL_ID)
    broker.acls.add([rule(each, "*", Permission.ALLOW) for each in kinds])
    broker.acls.add([rule(each, "secret", Permission.DENY) for each in kinds])
    broker.acls.add([rule(Resource.CLUSTER, "kafka-cluster", Permission.ALLOW)])
    quotas, entity = broker.services.client_quotas, make_entity([("client-id", "raw")])
    quotas.replace({entity: quotas.check(entity, [Change(each, 1e9) for each in _QUOTAS])})
    broker._placement.moves = True
    lease = cast("Lease", SimpleNamespace(is_leased=False, proven=lambda: asyncio.sleep(0)))
    broker.apis.update(leased(broker.apis, lease))
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
    broker.server.dispatcher.tracing = Tracing(tracer)
    broker.server.dispatcher.forget_routes()
    return broker


def rule(kind: Resource, name: str, permission: Permission) -> Acl:
    return Acl(kind, name, Pattern.LITERAL, "User:*", "*", Operation.ALL, permission)


def make_topics(broker: Broker) -> None:
    for name in _TOPICS:
        if broker.topics.by_name(name) is None:
            broker.topics.create(name, 2, 1)


async def test_every_request_is_answered_whatever_is_around_its_handler(
    broker: Broker, connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    client = await connect(broker)
    for api in APIS:
        if api.name in _CLOSED:
            continue
        for version in range(api.min_version, api.max_version + 1):
            for number in range(_EACH):
                seed = f"{api.name} {version} {number}"
                # Others may have deleted them.
                make_topics(broker)
                request = Making(broker, version, seed).struct(api.request_class)
                try:
                    answer = await asked(broker, client, api, request, version)
                except asyncio.IncompleteReadError:
                    pytest.fail(f"{seed}: the connection is closed")
                assert ErrorCode.UNKNOWN_SERVER_ERROR not in {*codes_in(answer)}, (seed, request)
    await until_empty(broker)
    assert not broker.services.batch_checks.queues
    assert "handler failed" not in capsys.readouterr().err


async def asked(broker: Broker, client: RawClient, api: Api, request: Any, version: int) -> Any:
    """Return the answer to a request that comes while all that it may be for moves."""
    names = (*_TOPICS, CONSUMER_OFFSETS, TRANSACTION_STATE)
    moving = ExitStack()
    moving.enter_context(
        broker.topics.led.moving.moving(
            TopicPartition(name, index) for name in names for index in range(2)
        )
    )
    asyncio.get_running_loop().call_later(0.001, moving.close)
    async with asyncio.timeout(30):
        return await client.ask(request, version, api.response_class)


def codes_in(struct: Any) -> Iterator[int]:
    """Yield all error codes of an answer."""
    for field in fields_of(type(struct)):
        value = getattr(struct, field.name)
        if field.name.endswith("error_code"):
            yield value
        elif field.element_struct is not None:
            for each in value or ():
                yield from codes_in(each)
