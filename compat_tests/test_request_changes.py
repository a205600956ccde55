"""What one request of administration may change: both brokers refuse one for more as a whole.

Kafka's controller writes 10,000 records at most for a request. For what that means of users' SCRAM
credentials it has no refusal: it resigns. So these are not asked here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka.protocol.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterConfigsRequest,
    AlterConfigsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

from compat_tests.brokers import Broker, make_broker, started_when_asked
from compat_tests.raw import Connection
from compat_tests.secured import STANDARD_AUTHORIZER

MAX = 10_000
INVALID_REQUEST, POLICY_VIOLATION = 42, 44
EXCESSIVE = (POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
TOO_MANY_PARTITIONS = (POLICY_VIOLATION, "Excessively large number of partitions per request.")
GROUP = 32
#: Of topics by name, of a name and of one user alone, in the numbers of Kafka's enums.
TOPIC, LITERAL, READ, ALLOW, ANY = 2, 3, 3, 3, 1


def call(broker: Broker, request: Any, response: Any) -> Any:
    with Connection(broker.bootstrap) as connection:
        return connection.call(request, response)


def codes(results: Any) -> set[tuple[int, str | None]]:
    """Return the error codes and messages of the results; one where all have the same."""
    return {(each.error_code, each.error_message) for each in results}


def names(count: int) -> Iterator[str]:
    return (f"name-{number}" for number in range(count))


@pytest.mark.parametrize(
    ("topic_count", "partitions", "configs", "wanted"),
    [
        (1, MAX - 1, 0, None),
        (1, MAX, 0, EXCESSIVE),
        (1, MAX - 1, 1, EXCESSIVE),
        (1, MAX + 1, 0, TOO_MANY_PARTITIONS),
        (101, 100, 0, TOO_MANY_PARTITIONS),
        (MAX // 2 + 1, 1, 0, EXCESSIVE),
    ],
)
def test_topics_are_too_many_with_their_partitions_and_configs(
    broker: Broker,
    topic_count: int,
    partitions: int,
    configs: int,
    wanted: tuple[int, str] | None,
) -> None:
    settings = [("retention.ms", "100000")][:configs]
    topics: list[Any] = [(name, partitions, 1, [], settings) for name in names(topic_count)]
    request = CreateTopicsRequest(version=7, topics=topics, timeout_ms=60_000, validate_only=True)
    found = call(broker, request, CreateTopicsResponse).topics
    assert len(found) == topic_count
    assert codes(found) == {wanted or (0, None)}


@pytest.mark.parametrize("validate_only", [False, True])
def test_topics_to_grow_are_too_many(broker: Broker, validate_only: bool) -> None:
    topics: list[Any] = [(name, 2, None) for name in names(MAX + 1)]
    request = CreatePartitionsRequest(
        version=3, topics=topics, timeout_ms=60_000, validate_only=validate_only
    )
    assert codes(call(broker, request, CreatePartitionsResponse).results) == {EXCESSIVE}


def test_quotas_are_too_many(broker: Broker) -> None:
    quotas = [("producer_byte_rate", 1e6, False), ("consumer_byte_rate", 1e6, False)]
    entries = [([("user", name)], quotas) for name in names(MAX // 2 + 1)]
    request = AlterClientQuotasRequest(version=1, entries=entries, validate_only=True)
    found = call(broker, request, AlterClientQuotasResponse).entries
    assert len(found) == len(entries)
    assert {each.error_code for each in found} == {POLICY_VIOLATION}


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (9223372036854775807.0, 0),
        (9223372036854777856.0, INVALID_REQUEST),
        (3300000.0000000005, 0),
        (3299999.9999999, INVALID_REQUEST),
        (3300000.00001, INVALID_REQUEST),
    ],
)
def test_a_quota_is_whole_as_far_as_a_double_can_tell(
    broker: Broker, value: float, code: int
) -> None:
    entries = [([("user", "exact")], [("producer_byte_rate", value, False)])]
    request = AlterClientQuotasRequest(version=1, entries=entries, validate_only=True)
    (found,) = call(broker, request, AlterClientQuotasResponse).entries
    assert found.error_code == code


@pytest.mark.parametrize("validate_only", [False, True])
def test_configs_are_too_many(broker: Broker, validate_only: bool) -> None:
    config = "consumer.session.timeout.ms"
    one_by_one = IncrementalAlterConfigsRequest(
        version=1,
        resources=[(GROUP, name, [(config, 0, "46000")]) for name in names(MAX + 1)],
        validate_only=validate_only,
    )
    whole = AlterConfigsRequest(
        version=2,
        resources=[(GROUP, name, [(config, "46000")]) for name in names(MAX + 1)],
        validate_only=validate_only,
    )
    asked = [(one_by_one, IncrementalAlterConfigsResponse), (whole, AlterConfigsResponse)]
    for request, response in asked:
        assert codes(call(broker, request, response).responses) == {EXCESSIVE}


@pytest.fixture(scope="module")
def guarded_brokers(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], Broker]]:
    """Return the broker of a kind, with an authorizer."""
    settings = {
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:ANONYMOUS",
    }

    def make(kind: str) -> Broker:
        return make_broker(kind, tmp_path_factory.mktemp(kind), settings)

    with started_when_asked(make) as get:
        yield get


def rules(first: int, last: int) -> Any:
    return CreateAclsRequest(
        version=3,
        creations=[
            (TOPIC, f"name-{number}", LITERAL, "User:ada", "*", READ, ALLOW)
            for number in range(first, last)
        ],
    )


def test_access_control_lists_are_too_many(
    guarded_brokers: Callable[[str], Broker], broker_kind: str
) -> None:
    broker = guarded_brokers(broker_kind)
    assert codes(call(broker, rules(0, MAX + 1), CreateAclsResponse).results) == {EXCESSIVE}
    for first in (0, MAX // 2 + 1):
        results = call(broker, rules(first, first + MAX // 2 + 1), CreateAclsResponse).results
        assert {each.error_code for each in results} == {0}
    every = (ANY, None, LITERAL, "User:ada", None, ANY, ANY)
    other = (ANY, None, LITERAL, "User:bob", None, ANY, ANY)
    request = DeleteAclsRequest(version=3, filters=[other, every])
    found = call(broker, request, DeleteAclsResponse).filter_results
    too_many = f"Cannot remove more than {MAX} acls in a single delete operation."
    assert [(each.error_code, each.error_message) for each in found] == [
        (INVALID_REQUEST, too_many),
        (INVALID_REQUEST, too_many),
    ]
