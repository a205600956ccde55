"""A blocking Kafka client: what the command line and Spark's sink are built on.

`connection` speaks to one broker, over TLS and SASL where `security` says so (`login` holds the
mechanisms); `cluster` finds the broker for a request. Above these lie what
clients do (`producer` with `batching`, `consumer`, `group_member`) and what administrators ask
(`topics`, `partitions`, `configs`, `groups`, `group_offsets`, `transactions`,
`transaction_aborts`, `acls`, `users`).

This package knows brokers by the protocol alone, so it works with Apache Kafka too. It imports
`wire`, `endpoint`, the syntax of settings (`config.properties`, `config.jaas`, `config.providers`),
and the vocabulary of ACLs (`security.acls`). It prints nothing. Whatever goes wrong is a
`ClientError` with a message for a person.
"""

from __future__ import annotations

from magnetar.client.cluster import Client, TopicPartition
from magnetar.client.errors import ClientError, NotFound, NotLetIn, Refused, Unreachable

__all__ = [
    "Client",
    "ClientError",
    "NotFound",
    "NotLetIn",
    "Refused",
    "TopicPartition",
    "Unreachable",
]
