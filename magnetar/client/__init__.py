"""A blocking Kafka client: what the command line and Spark's sink are built on.

`connection` speaks to one broker; `cluster` finds the broker for a request. Above these lie what
clients do (`producer` with `batching`, `consumer`, `group_member`) and what administrators ask
(`topics`, `partitions`, `configs`, `groups`, `group_offsets`, `transactions`,
`transaction_aborts`).

This package imports `wire` and nothing else of the project: it knows brokers by the protocol alone,
so it works with Apache Kafka too. It prints nothing. Whatever goes wrong is a `ClientError` with a
message for a person.
"""

from __future__ import annotations

from magnetar.client.cluster import Client, TopicPartition
from magnetar.client.connection import ClientError, Refused, Unreachable

__all__ = ["Client", "ClientError", "Refused", "TopicPartition", "Unreachable"]
