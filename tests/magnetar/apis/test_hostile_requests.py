"""Well-formed requests that say anything: every served API answers each one, in every version."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given

from magnetar.apis.registry import Api, load_apis
from tests.magnetar.served_broker import Client, ServedBroker
from tests.wire.message_strategies import few, messages
from wire.message import Message
from wire.messages.fetch import FetchRequest
from wire.messages.join_group import JoinGroupRequest
from wire.messages.produce import ProduceRequest

SERVED = [
    pytest.param(api, version, id=f"{api.name} {version}")
    for api in load_apis().values()
    for version in range(api.min_version, api.max_version + 1)
]
serial = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    settings = {
        "offsets.topic.num.partitions": "2",
        "transaction.state.log.num.partitions": "2",
        # Without it PushTelemetry is not served. Its endpoint belongs to the command line.
        "metrics.listen": "127.0.0.1:0",
    }
    with ServedBroker(tmp_path_factory.mktemp("broker"), settings) as served:
        yield served


def without_waiting(request: Message) -> Message:
    """Return the request, changed where the right answer would be late, or none at all."""
    if isinstance(request, ProduceRequest) and request.acks == 0:
        request.acks = 1
    elif isinstance(request, FetchRequest):
        request.max_wait_ms = 0
    elif isinstance(request, JoinGroupRequest):
        # Of a group with members, a new one would wait for the others to join again.
        request.group_id += str(next(serial))
    return request


@pytest.mark.parametrize(("api", "version"), SERVED)
def test_anything_well_formed_is_answered(broker: ServedBroker, api: Api, version: int) -> None:
    with Client(broker.port) as client:

        @few(5)
        @given(messages(api.request_class, version, tame=False))
        def is_answered(request: Message) -> None:
            client.call(without_waiting(request), api.response_class, version)

        is_answered()
    assert broker.serves()
    assert "handler failed" not in broker.log
