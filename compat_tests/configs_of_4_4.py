"""Configs of Kafka 4.4, which the reference does not have yet, and their defaults."""

from __future__ import annotations

OF_TOPICS = {
    "errors.deadletterqueue.group.enable": "false",
    "max.decompressed.message.bytes": "2147483639",
    "remote.copy.lag.bytes": "-1",
    "remote.copy.lag.ms": "0",
}
OF_GROUPS = {
    "errors.deadletterqueue.copy.record.enable": "false",
    "errors.deadletterqueue.topic.name": "",
    "streams.assignor.name": "sticky",
    "streams.rack.aware.assignment.tags": "",
}
OF_BROKERS: dict[str, str | None] = {
    "errors.deadletterqueue.auto.create.topics.enable": "false",
    "errors.deadletterqueue.topic.name.prefix": "dlq.",
    "group.streams.assignors": "sticky",
    "group.streams.rack.aware.assignment.tags": "",
    "group.streams.topology.description.plugin.class": None,
    "log.remote.copy.lag.bytes": "-1",
    "log.remote.copy.lag.ms": "0",
    "max.decompressed.message.bytes": "2147483639",
    "sasl.oauthbearer.allow.unverified.audience": "false",
    "sasl.oauthbearer.allow.unverified.issuer": "false",
}
NAMES = OF_TOPICS.keys() | OF_GROUPS.keys() | OF_BROKERS.keys()
