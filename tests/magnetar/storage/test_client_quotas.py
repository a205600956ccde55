"""Client quotas: what may be set, who is found, and that it is there after a restart."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from magnetar.apis import describe_client_quotas
from magnetar.broker import Broker
from magnetar.storage.catalog import Catalog
from magnetar.storage.client_quotas import Change, ClientQuotas, Component, make_entity
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)
from wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

StartBroker = Callable[..., Awaitable[Broker]]
RATE = "producer_byte_rate"
ADDRESS_RATE = "connection_creation_rate"
Parts = list[tuple[str, str | None]]
EXACT, DEFAULT, ANY = range(3)

ENTITIES: list[Parts] = [
    [("user", "u")],
    [("user", None)],
    [("user", "u"), ("client-id", "c")],
    [("user", "u"), ("client-id", None)],
    [("client-id", "c")],
]


@pytest.fixture
def quotas() -> Iterator[ClientQuotas]:
    with closing(Catalog(None)) as catalog:
        yield ClientQuotas(catalog)


def put(quotas: ClientQuotas, parts: Parts, key: str, value: float | None) -> None:
    entity = make_entity(parts)
    quotas.replace({entity: quotas.check(entity, [Change(key, value)])})


@pytest.mark.parametrize(
    ("wanted", "strict", "found"),
    [
        ([], False, [4, 3, 2, 1, 0]),
        ([], True, []),
        ([Component("user", "u", False)], False, [3, 2, 0]),
        ([Component("user", "u", False)], True, [0]),
        ([Component("user", None, False)], False, [1]),
        ([Component("user", None, True)], True, [1, 0]),
        ([Component("user", None, True), Component("client-id", None, True)], False, [3, 2]),
        ([Component("client-id", "c", False)], False, [4, 2]),
        ([Component("ip", None, True)], False, []),
    ],
)
def test_entities_are_found_by_their_parts(
    quotas: ClientQuotas, wanted: list[Component], strict: bool, found: list[int]
) -> None:
    for parts in ENTITIES:
        put(quotas, parts, RATE, 5.0)
    names = [entity for entity, _ in quotas.find(wanted, strict=strict)]
    assert set(names) == {make_entity(ENTITIES[each]) for each in found}


@pytest.mark.parametrize(
    ("parts", "key", "value"),
    [
        ([("user", "u")], RATE, 0.0),
        ([("user", "u")], RATE, 1.5),
        ([("user", "u")], RATE, float("nan")),
        ([("user", "u")], RATE, float("inf")),
        ([("user", "u")], "request_percentage", float("inf")),
        ([("user", "u")], RATE, 9223372036854777856.0),
        ([("user", "u")], "request_percentage", -1.0),
        ([("user", "u")], "nope", 1.0),
        ([("user", "u")], ADDRESS_RATE, 1.0),
        ([("ip", "127.0.0.1")], RATE, 1.0),
        ([("ip", "somewhere")], ADDRESS_RATE, 1.0),
        ([("ip", None), ("user", "u")], ADDRESS_RATE, 1.0),
        ([("colour", "red")], RATE, 1.0),
        ([("user", "")], RATE, 1.0),
        ([], RATE, 1.0),
    ],
)
def test_what_no_quota_can_be(quotas: ClientQuotas, parts: Parts, key: str, value: float) -> None:
    with pytest.raises(KafkaError) as refused:
        quotas.check(make_entity(parts), [Change(key, value)])
    assert refused.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("value", [9223372036854775807.0, 1.1 * 3e6])
def test_a_quota_is_as_exact_as_a_double(quotas: ClientQuotas, value: float) -> None:
    put(quotas, [("user", "u")], RATE, value)
    assert quotas.find([], strict=False) == [((("user", "u"),), {RATE: value})]


def test_quotas_are_removed_one_by_one_and_forgotten_with_the_last(quotas: ClientQuotas) -> None:
    for key in (RATE, "request_percentage"):
        put(quotas, [("user", "u")], key, 5.0)
    put(quotas, [("user", "u")], RATE, None)
    assert quotas.find([], strict=False) == [((("user", "u"),), {"request_percentage": 5.0})]
    put(quotas, [("user", "u")], "request_percentage", None)
    assert quotas.find([], strict=False) == []


async def alter(
    client: Any, version: int, *entries: tuple[Parts, list[OpData]], validate_only: bool = False
) -> list[int]:
    request = AlterClientQuotasRequest(
        entries=[
            EntryData(
                entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in parts],
                ops=ops,
            )
            for parts, ops in entries
        ],
        validate_only=validate_only,
    )
    answer = await client.ask(request, version, AlterClientQuotasResponse)
    return [entry.error_code for entry in answer.entries]


async def describe(client: Any, version: int, *components: ComponentData) -> Any:
    request = DescribeClientQuotasRequest(components=list(components))
    return await client.ask(request, version, DescribeClientQuotasResponse)


@pytest.mark.parametrize("version", [0, 1])
async def test_clients_set_and_read_them(client: Any, version: int) -> None:
    entry = ([("user", "u"), ("client-id", None)], [OpData(key=RATE, value=5.0)])
    assert await alter(client, version, entry, validate_only=True) == [0]
    assert (await describe(client, version)).entries == []
    assert await alter(client, version, entry) == [0]
    any_user = ComponentData(entity_type="user", match_type=ANY, match=None)
    (found,) = (await describe(client, version, any_user)).entries
    assert {part.entity_type: part.entity_name for part in found.entity} == {
        "user": "u",
        "client-id": None,
    }
    assert [(value.key, value.value) for value in found.values] == [(RATE, 5.0)]
    removal = (entry[0], [OpData(key=RATE, remove=True)])
    assert await alter(client, version, removal) == [0]
    assert (await describe(client, version)).entries == []


async def test_what_is_named_twice_is_refused(client: Any) -> None:
    op = OpData(key=RATE, value=5.0)
    twice: tuple[Parts, list[OpData]] = ([("user", "u")], [op])
    once: tuple[Parts, list[OpData]] = ([("user", "v")], [op])
    assert await alter(client, 1, twice, twice, once) == [42, 0]
    assert await alter(client, 1, (twice[0], [op, op])) == [42]


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("", ANY, None)], ErrorCode.INVALID_REQUEST),
        ([("colour", ANY, None)], ErrorCode.UNSUPPORTED_VERSION),
        ([("user", 9, None)], ErrorCode.INVALID_REQUEST),
        ([("user", EXACT, None)], ErrorCode.INVALID_REQUEST),
        ([("user", DEFAULT, "u")], ErrorCode.INVALID_REQUEST),
        ([("user", ANY, None), ("user", ANY, None)], ErrorCode.INVALID_REQUEST),
        ([("user", ANY, None), ("ip", ANY, None)], ErrorCode.INVALID_REQUEST),
    ],
)
async def test_filters_that_are_refused(
    client: Any, components: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    asked = [
        ComponentData(entity_type=kind, match_type=match, match=name)
        for kind, match, name in components
    ]
    answer = await describe(client, 1, *asked)
    assert (answer.error_code, answer.entries) == (code, None)


async def test_quotas_outlive_the_broker(start_broker: StartBroker) -> None:
    broker = await start_broker({"durability": "page-cache"})
    put(broker.client_quotas, [("user", "ü"), ("client-id", None)], RATE, 7.0)
    before = broker.client_quotas.find([], strict=False)
    await broker.stop()
    again = await start_broker({"durability": "page-cache"})
    assert again.client_quotas.find([], strict=False) == before != []


async def test_others_have_their_turn_while_many_are_described(
    broker: Broker, client: Any, given_up: list[None]
) -> None:
    stored = broker.services.client_quotas
    stored.replace({make_entity([("user", f"u{number}")]): {RATE: 5.0} for number in range(1000)})
    answer = await describe(client, 1)
    assert len(answer.entries) == 1000
    names = [entry.entity[0].entity_name for entry in answer.entries]
    assert names == sorted(names)
    # A thousand are four pieces, which are looked through once and told once.
    assert len(given_up) >= 4


async def test_of_many_components_no_more_than_the_types_are_looked_at(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = []
    component = describe_client_quotas._component

    def noted(asked: ComponentData) -> Component:
        looked_at.append(asked)
        return component(asked)

    monkeypatch.setattr(describe_client_quotas, "_component", noted)
    many = [ComponentData(entity_type="user", match_type=ANY, match=None) for _ in range(1000)]
    unknown = ComponentData(entity_type="nope", match_type=ANY, match=None)
    answer = await describe(client, 1, *many, unknown)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert len(looked_at) == 1
