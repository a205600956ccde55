"""Many open transactions, begun by requests that do not wait for each other's answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kafka.protocol.producer import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

from compat_tests.raw import Connection


def begin(
    connection: Connection, transactional_ids: Sequence[str], topic: str, timeout_ms: int
) -> None:
    """Begin a transaction of each id, with partition 0 of the topic in it. The ids have one
    coordinator. Anything but success is an error of the test.
    """
    connection.go_to_coordinator(transactional_ids[0])
    inits = [
        InitProducerIdRequest[4](
            transactional_id=each,
            transaction_timeout_ms=timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )
        for each in transactional_ids
    ]
    identities = _answers(connection, inits, InitProducerIdResponse)
    assert {each.error_code for each in identities} == {0}
    adds = [
        AddPartitionsToTxnRequest[3](
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.producer_epoch,
            v3_and_below_topics=[(topic, [0])],
        )
        for transactional_id, identity in zip(transactional_ids, identities, strict=True)
    ]
    for answer in _answers(connection, adds, AddPartitionsToTxnResponse):
        (added,) = answer.results_by_topic_v3_and_below
        assert [each.partition_error_code for each in added.results_by_partition] == [0]


def _answers(connection: Connection, requests: Sequence[Any], response: Any) -> list[Any]:
    """Return the answers to requests that are all sent before the first answer is read."""
    for request in requests:
        connection.send(request)
    return [
        response.decode(connection.receive_frame(), version=request.API_VERSION, header=True)
        for request in requests
    ]
