"""One error for a whole request: it can be sent in every version, and client libraries read it."""

from __future__ import annotations

import pytest

from magnetar.apis.error_responses import error_response
from magnetar.apis.registry import Api, load_apis
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.messages.produce import ProduceRequest

REFUSAL = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "why")


@pytest.mark.parametrize("api", load_apis().values(), ids=lambda api: api.name)
def test_every_request_can_be_refused_in_every_version(api: Api) -> None:
    request = api.request_class()
    if isinstance(request, ProduceRequest):
        request.acks = -1  # otherwise there is no answer
    for version in range(api.min_version, api.max_version + 1):
        refused = error_response(request, version, api.response_class, REFUSAL)
        assert refused is not None
        api.response_class.decode(refused.encode(version), version)


@pytest.mark.parametrize("version", [4, 5, 6])
def test_no_records_of_a_refused_fetch_are_null(version: int) -> None:
    asked = FetchTopic(topic="orders", partitions=[FetchPartition(partition=0)])
    refused = error_response(FetchRequest(topics=[asked]), version, FetchResponse, REFUSAL)
    assert refused is not None
    answer = FetchResponse.decode(refused.encode(version), version)
    (partition,) = answer.responses[0].partitions
    assert (partition.error_code, partition.records) == (REFUSAL.code, b"")
