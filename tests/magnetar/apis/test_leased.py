"""A node of a cluster answers from memory only while it leads, by proof where that counts."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from magnetar.apis import leased as leases
from magnetar.apis.leased import leased
from magnetar.apis.registry import load_apis
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.message import Message
from wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from wire.messages.describe_groups import DescribeGroupsRequest
from wire.messages.fetch import FetchRequest
from wire.messages.list_groups import ListGroupsRequest
from wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse

ANSWER = OffsetFetchResponse()


class HeldLease:
    """A lease whose commits return when they are told to."""

    def __init__(self) -> None:
        self.is_leased = True
        self.commits = asyncio.Event()

    async def proven(self) -> None:
        await self.commits.wait()


def handler_of(request_class: Any, lease: HeldLease, answered: list[str]) -> Any:
    """Return the handler that a node of a cluster has, around one that notes its calls."""

    def inner(services: Any, request: Any, context: Any) -> Any:
        answered.append("answered")
        return ANSWER

    key = request_class.api_key
    apis = {**load_apis()}
    apis[key] = apis[key]._replace(handler=inner)
    return cast("Any", leased(apis, lease)[key].handler)


async def test_a_fetch_is_answered_at_once_while_there_is_a_lease() -> None:
    lease, answered = HeldLease(), list[str]()
    handle = handler_of(FetchRequest, lease, answered)
    assert handle(None, None, None) is ANSWER
    lease.is_leased = False
    waiting = asyncio.ensure_future(handle(None, None, None))
    await asyncio.sleep(0)
    assert answered == ["answered"]
    lease.commits.set()
    assert await waiting is ANSWER


@pytest.mark.parametrize(
    "request_class",
    [
        ConsumerGroupDescribeRequest,
        DescribeGroupsRequest,
        ListGroupsRequest,
        OffsetFetchRequest,
    ],
)
async def test_what_says_where_groups_stand_waits_for_a_commit_even_with_a_lease(
    request_class: type[Message],
) -> None:
    lease, answered = HeldLease(), list[str]()
    waiting = asyncio.ensure_future(handler_of(request_class, lease, answered)(None, None, 0))
    await asyncio.sleep(0)
    assert not answered
    lease.commits.set()
    assert await waiting is ANSWER


async def test_a_database_that_does_not_answer_is_a_refusal_that_clients_retry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases, "_PROOF_S", 0.001)
    answered = list[str]()
    handle = handler_of(OffsetFetchRequest, HeldLease(), answered)
    with pytest.raises(KafkaError) as raised:
        await handle(None, None, None)
    assert raised.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert not answered
