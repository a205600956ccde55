"""The end of a transaction: Kafka answers a producer before readers know of it."""

from __future__ import annotations

from functools import partial

from kafka.protocol.admin import DescribeTransactionsRequest, DescribeTransactionsResponse

from compat_tests.brokers import KAFKA_ADDRESSES, Broker
from compat_tests.raw import Connection
from compat_tests.waiting import eventually

_LATEST, _READ_COMMITTED = -1, 1


def await_end(bootstrap: str, transactional_id: str) -> None:
    """Return when all partitions have the marker of the transaction that this id ended last.

    On magnetar they have it when the end is answered: there this waits for nothing.
    """
    if bootstrap not in KAFKA_ADDRESSES:
        return
    request = DescribeTransactionsRequest[0](transactional_ids=[transactional_id])
    with Connection(bootstrap) as connection:

        def has_ended() -> bool:
            answer = connection.call(request, DescribeTransactionsResponse)
            (found,) = answer.transaction_states
            return found.error_code == 0 and not found.transaction_state.startswith("Prepare")

        eventually(has_ended)


def await_markers(broker: Broker, *topics: str) -> None:
    """Return when no transaction is open in partition 0 of the topics, as when all have been told
    to end. On magnetar this waits for nothing either.
    """
    if broker.bootstrap not in KAFKA_ADDRESSES:
        return
    with Connection(broker.bootstrap) as connection:
        for topic in topics:
            eventually(partial(_is_stable, connection, topic))


def _is_stable(connection: Connection, topic: str) -> bool:
    stable = connection.list_offset(topic, _LATEST, isolation=_READ_COMMITTED)
    return stable == connection.list_offset(topic, _LATEST)
