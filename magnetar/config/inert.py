"""Kafka's broker settings that are accepted and have no effect here, and why.

They are checked for their type, stored and shown like any other, so that Kafka's tools and a
server.properties written for Kafka find every name they know. One line each: name, type, default.
Without a default it is unset, also where Kafka's is a class of Java. An asterisk: it can be changed
while the broker runs, as in Kafka; an exclamation mark: it is shown only when it was. A type may
carry the least value. A name that `BrokerConfig` declares is not in here.

Topics and groups have such settings too (`stored_settings`). Their lines go on: the release that
brought the name, and the broker's setting behind it, if there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from magnetar.config.setting import (
    ConfigType,
    InvalidValue,
    Setting,
    boolean,
    integer,
    long,
    parse_integer,
    string,
    words,
)
from wire.types import INT32_MAX, INT64_MAX

#: Names that Kafka itself has left behind.
OBSOLETE: dict[str, str] = {
    "zookeeper.connect": "there is no ZooKeeper",
    "zookeeper.connection.timeout.ms": "there is no ZooKeeper",
}

_TABLE: dict[str, str] = {
    "brokers copy no records from each other": """
        follower.replication.throttled.rate*! long>=0
        leader.replication.throttled.rate*! long>=0
        replica.alter.log.dirs.io.max.bytes.per.second*! long>=0
        alter.log.dirs.replication.quota.window.num int>=1 11
        alter.log.dirs.replication.quota.window.size.seconds int>=1 1
        num.replica.alter.log.dirs.threads int
        num.replica.fetchers* int>=1 1
        replica.fetch.backoff.ms int>=0 1000
        replica.fetch.max.bytes int>=0 1048576
        replica.fetch.min.bytes int 1
        replica.fetch.response.max.bytes int>=0 10485760
        replica.fetch.wait.max.ms int 500
        replica.high.watermark.checkpoint.interval.ms long 5000
        replica.lag.time.max.ms long 30000
        replica.socket.receive.buffer.bytes int 65536
        replica.socket.timeout.ms int 30000
        replication.quota.window.num int>=1 11
        replication.quota.window.size.seconds int>=1 1
    """,
    "a cluster spreads leaders by itself, and one machine moves none while it runs": """
        auto.leader.rebalance.enable boolean true
        leader.imbalance.check.interval.seconds long>=1 300
    """,
    "nodes wait for each other for times of their own": """
        add.partitions.to.txn.retry.backoff.max.ms int>=0 100
        add.partitions.to.txn.retry.backoff.ms int>=1 20
        request.timeout.ms int>=1 30000
        socket.connection.setup.timeout.max.ms long 30000
        socket.connection.setup.timeout.ms long 10000
    """,
    "classes of Java cannot be loaded": """
        alter.config.policy.class.name class
        client.quota.callback.class class
        create.topic.policy.class.name class
        kafka.metrics.polling.interval.secs int>=1 10
        kafka.metrics.reporters list ""
        metric.reporters* list
        metrics.num.samples int>=1 2
        metrics.recording.level string INFO
        metrics.sample.window.ms long>=1 30000
        principal.builder.class* class
        replica.selector.class string
        security.providers string
    """,
    "one event loop serves everything, and waits for the disk in few threads": """
        background.threads* int>=1 10
        group.coordinator.append.linger.ms int>=-1 -1
        group.coordinator.background.threads int>=1 2
        group.coordinator.cached.buffer.max.bytes* int>=524288 1048588
        group.coordinator.threads int>=1 4
        num.io.threads* int>=1 8
        num.network.threads* int>=1 3
        num.recovery.threads.per.data.dir* int>=1 2
        queued.max.requests int>=1 500
    """,
    "there is no controller quorum, and no metadata log": """
        broker.heartbeat.interval.ms int 2000
        broker.session.timeout.ms int 9000
        controlled.shutdown.enable boolean true
        controller.quorum.append.linger.ms int>=0 25
        controller.quorum.auto.join.enable boolean false
        controller.quorum.bootstrap.servers list ""
        controller.quorum.election.backoff.max.ms int>=0 1000
        controller.quorum.election.timeout.ms int>=0 1000
        controller.quorum.fetch.max.bytes int>=1 1048576
        controller.quorum.fetch.snapshot.max.bytes int>=1 1048576
        controller.quorum.fetch.timeout.ms int>=0 2000
        controller.quorum.request.timeout.ms int>=0 2000
        controller.quorum.retry.backoff.ms int>=0 20
        controller.quorum.voters list ""
        controller.socket.timeout.ms int 30000
        early.start.listeners list
        metadata.log.dir string
        metadata.log.max.record.bytes.between.snapshots long>=1 20971520
        metadata.log.max.snapshot.interval.ms long>=0 3600000
        metadata.log.segment.bytes int>=8388608 1073741824
        metadata.log.segment.ms long 604800000
        metadata.max.idle.interval.ms int>=0 500
        metadata.max.retention.bytes long 104857600
        metadata.max.retention.ms long 604800000
        process.roles list
    """,
    "Kerberos is not served": """
        sasl.kerberos.kinit.cmd* string /usr/bin/kinit
        sasl.kerberos.min.time.before.relogin* long 60000
        sasl.kerberos.principal.to.local.rules* list DEFAULT
        sasl.kerberos.service.name* string
        sasl.kerberos.ticket.renew.jitter* double 0.05
        sasl.kerberos.ticket.renew.window.factor* double 0.8
    """,
    "the broker logs in to no other broker": """
        sasl.client.callback.handler.class class
        sasl.login.callback.handler.class class
        sasl.login.class class
        sasl.login.connect.timeout.ms int
        sasl.login.read.timeout.ms int
        sasl.login.refresh.buffer.seconds* short 300
        sasl.login.refresh.min.period.seconds* short 60
        sasl.login.refresh.window.factor* double 0.8
        sasl.login.refresh.window.jitter* double 0.05
        sasl.login.retry.backoff.max.ms long 10000
        sasl.login.retry.backoff.ms long 100
        sasl.mechanism.controller.protocol string GSSAPI
        sasl.mechanism.inter.broker.protocol* string GSSAPI
        sasl.oauthbearer.assertion.algorithm string RS256
        sasl.oauthbearer.assertion.claim.aud string
        sasl.oauthbearer.assertion.claim.exp.seconds int>=0 300
        sasl.oauthbearer.assertion.claim.iss string
        sasl.oauthbearer.assertion.claim.jti.include boolean false
        sasl.oauthbearer.assertion.claim.nbf.seconds int>=0 60
        sasl.oauthbearer.assertion.claim.sub string
        sasl.oauthbearer.assertion.file string
        sasl.oauthbearer.assertion.private.key.file string
        sasl.oauthbearer.assertion.private.key.passphrase password
        sasl.oauthbearer.assertion.template.file string
        sasl.oauthbearer.client.credentials.client.id string
        sasl.oauthbearer.client.credentials.client.secret password
        sasl.oauthbearer.jwt.retriever.class class
        sasl.oauthbearer.scope string
        sasl.oauthbearer.token.endpoint.url string
    """,
    "what waits is woken by what it waits for: there is no purgatory": """
        delete.records.purgatory.purge.interval.requests int 1
        fetch.purgatory.purge.interval.requests int 1000
        producer.purgatory.purge.interval.requests int 1000
        share.fetch.purgatory.purge.interval.requests int 1000
    """,
    "nothing is tiered to remote storage": """
        follower.fetch.last.tiered.offset.enable* boolean false
        log.local.retention.bytes* long>=-2 -2
        log.local.retention.ms* long>=-2 -2
        log.remote.copy.lag.bytes* long>=-1 -1
        log.remote.copy.lag.ms* long>=-1 0
        remote.fetch.max.wait.ms* int>=1 500
        remote.list.offsets.request.timeout.ms* long>=1 30000
        remote.log.index.file.cache.total.size.bytes* long>=1 1073741824
        remote.log.manager.copier.thread.pool.size* int>=1 10
        remote.log.manager.copy.max.bytes.per.second* long>=1 9223372036854775807
        remote.log.manager.copy.quota.window.num int>=1 11
        remote.log.manager.copy.quota.window.size.seconds int>=1 1
        remote.log.manager.expiration.thread.pool.size* int>=1 10
        remote.log.manager.fetch.max.bytes.per.second* long>=1 9223372036854775807
        remote.log.manager.fetch.quota.window.num int>=1 11
        remote.log.manager.fetch.quota.window.size.seconds int>=1 1
        remote.log.manager.follower.thread.pool.size* int>=1 2
        remote.log.manager.task.interval.ms long>=1 30000
        remote.log.manager.thread.pool.size int>=1 2
        remote.log.metadata.custom.metadata.max.bytes int>=0 128
        remote.log.metadata.manager.class.name string
        remote.log.metadata.manager.class.path string
        remote.log.metadata.manager.impl.prefix string rlmm.config.
        remote.log.metadata.manager.listener.name string
        remote.log.reader.max.pending.tasks int>=1 100
        remote.log.reader.threads* int>=1 10
        remote.log.storage.manager.class.name string
        remote.log.storage.manager.class.path string
        remote.log.storage.manager.impl.prefix string rsm.config.
        remote.log.storage.system.enable boolean false
    """,
    "share groups are not served": """
        errors.deadletterqueue.auto.create.topics.enable* boolean false
        errors.deadletterqueue.topic.name.prefix* string dlq.
        group.share.assignment.interval.ms* int>=0 1000
        group.share.assignors list simple
        group.share.delivery.count.limit int>=2 5
        group.share.heartbeat.interval.ms int>=1 5000
        group.share.max.assignment.interval.ms int>=0 15000
        group.share.max.delivery.count.limit int>=5 10
        group.share.max.heartbeat.interval.ms int>=1 15000
        group.share.max.partition.max.record.locks int>=2000 4000
        group.share.max.record.lock.duration.ms int>=30000 60000
        group.share.max.session.timeout.ms int>=1 60000
        group.share.max.share.sessions int>=1 2000
        group.share.max.size int>=1 200
        group.share.min.assignment.interval.ms int>=0 0
        group.share.min.delivery.count.limit int>=2 2
        group.share.min.heartbeat.interval.ms int>=1 5000
        group.share.min.partition.max.record.locks int>=100 100
        group.share.min.record.lock.duration.ms int>=1000 15000
        group.share.min.session.timeout.ms int>=1 45000
        group.share.partition.max.record.locks int>=100 2000
        group.share.record.lock.duration.ms int>=1000 30000
        group.share.session.timeout.ms int>=1 45000
        share.coordinator.append.linger.ms int>=-1 -1
        share.coordinator.cached.buffer.max.bytes* int>=524288 1048588
        share.coordinator.load.buffer.size int>=1 5242880
        share.coordinator.snapshot.update.records.per.snapshot int>=0 500
        share.coordinator.state.topic.compression.codec int 0
        share.coordinator.state.topic.min.isr short>=1 2
        share.coordinator.state.topic.num.partitions int>=1 50
        share.coordinator.state.topic.replication.factor short>=1 3
        share.coordinator.state.topic.segment.bytes int>=1 104857600
        share.coordinator.threads int>=1 1
        share.coordinator.write.timeout.ms int>=1 5000
    """,
    "streams groups are not served": """
        group.streams.assignment.interval.ms* int>=0 1000
        group.streams.assignors list sticky
        group.streams.heartbeat.interval.ms int>=1 5000
        group.streams.initial.rebalance.delay.ms int>=0 3000
        group.streams.max.assignment.interval.ms int>=0 15000
        group.streams.max.heartbeat.interval.ms int>=1 15000
        group.streams.max.session.timeout.ms int>=1 60000
        group.streams.max.size int>=1 2147483647
        group.streams.max.standby.replicas int>=0 2
        group.streams.min.assignment.interval.ms int>=0 0
        group.streams.min.heartbeat.interval.ms int>=1 5000
        group.streams.min.session.timeout.ms int>=1 45000
        group.streams.num.standby.replicas int>=0 0
        group.streams.rack.aware.assignment.tags list ""
        group.streams.session.timeout.ms int>=1 45000
        group.streams.topology.description.plugin.class class
    """,
    "a batch is read whole, and segments are read in steps of their own": """
        log.cleaner.io.buffer.size* int>=0 524288
    """,
    "durability decides when data is synced, and checkpoints follow the syncs": """
        log.dir.failure.timeout.ms long>=1 30000
        log.flush.offset.checkpoint.interval.ms int>=0 60000
        log.flush.start.offset.checkpoint.interval.ms int>=0 60000
    """,
    "internal topics are read in one go, and stored as they are written": """
        offsets.load.buffer.size int>=1 5242880
        offsets.topic.compression.codec int 0
        transaction.state.log.load.buffer.size int>=1 5242880
    """,
    "TLS is that of OpenSSL": """
        ssl.engine.factory.class* class
        ssl.keymanager.algorithm* string SunX509
        ssl.protocol* string TLSv1.3
        ssl.provider* string
        ssl.secure.random.implementation* string
        ssl.trustmanager.algorithm* string PKIX
    """,
    "timeouts are exact: nothing looks for them periodically": """
        transaction.abort.timed.out.transaction.cleanup.interval.ms int>=1 10000
        transaction.remove.expired.transaction.cleanup.interval.ms int>=1 3600000
    """,
    "there is one data directory": """
        cordoned.log.dirs* list ""
    """,
    "logs roll on time": """
        log.roll.jitter.hours int>=0 0
        log.roll.jitter.ms* long>=0
    """,
    "two-phase commit is not served": """
        transaction.two.phase.commit.enable boolean false
    """,
}


class InertSetting(Setting[object]):
    """A setting without effect: the reason, and whether it may be changed at run time."""

    __slots__ = ("is_dynamic", "is_listed", "reason")

    def __init__(
        self, name: str, type_: ConfigType, minimum: int | None, default: str | None, reason: str
    ) -> None:
        super().__init__(
            type_,
            lambda text: _parse(type_, minimum, text),
            default,
            doc=f"Accepted, without effect: {reason}.",
            since="",
            acts=False,
        )
        self.name = name.rstrip("*!")
        self.reason = reason
        self.is_dynamic = "*" in name
        #: False: Kafka shows it only where it was set.
        self.is_listed = "!" not in name


_BOUNDS = {
    ConfigType.SHORT: 2**15 - 1,
    ConfigType.INT: INT32_MAX,
    ConfigType.LONG: INT64_MAX,
}


@cache
def inert_settings() -> dict[str, InertSetting]:
    """Return the table by name; read at its first use, for a start does without it."""
    table = {}
    for reason, lines in _TABLE.items():
        for line in lines.split("\n"):
            if declared := line.split():
                setting = _declare(declared, reason)
                table[setting.name] = setting
    return table


def _declare(declared: list[str], reason: str) -> InertSetting:
    """Return the setting of a line; defaults are texts, as Kafka shows them."""
    name, kind, *defaults = declared
    default = None
    if defaults:
        # A table of words cannot hold an empty one; no default at all means unset.
        default = "" if defaults == ['""'] else defaults[0]
    type_name, _, minimum = kind.partition(">=")
    type_ = ConfigType[type_name.upper()]
    return InertSetting(name, type_, int(minimum) if minimum else None, default, reason)


def _parse(type_: ConfigType, minimum: int | None, text: str) -> str:
    """Return the text as it was given, for a value of its type."""
    stripped = text.strip()
    if type_ is ConfigType.BOOLEAN and stripped.lower() not in ("true", "false"):
        raise InvalidValue("is neither true nor false")
    if type_ is ConfigType.DOUBLE:
        try:
            float(stripped)
        except ValueError:
            raise InvalidValue("is not a number") from None
    # The value stays a text, but must have fitted Kafka's type: else the file would not start Kafka
    # again.
    bound = _BOUNDS.get(type_)
    if bound is not None and not -bound - 1 <= parse_integer(stripped) <= bound:
        raise InvalidValue(f"does not fit into {type_.name}")
    if minimum is not None and parse_integer(stripped) < minimum:
        raise InvalidValue(f"is below its minimum of {minimum}")
    return stripped


def stored_settings(table: Mapping[str, str]) -> dict[str, Setting[Any]]:
    """Return the settings of a table: a reason, then a line for each setting.

    A type may also be the words that are allowed: `read_committed|read_uncommitted`. An empty
    default is `""`.
    """
    settings = {}
    for reason, lines in table.items():
        for line in lines.split("\n"):
            if row := line.split():
                name, kind, default, since, *synonyms = row
                default = "" if default == '""' else default
                settings[name] = _setting(kind, default, since, tuple(synonyms), reason)
    return settings


def _setting(
    kind: str, default: str, since: str, synonyms: tuple[str, ...], reason: str
) -> Setting[Any]:
    doc = f"Stored and shown: {reason}."
    if kind == "boolean":
        is_on = default == "true"
        return boolean(is_on, since=since, doc=doc, synonyms=synonyms, acts=False)
    name, _, least = kind.partition(">=")
    if name in ("int", "long"):
        declare = integer if name == "int" else long
        minimum = int(least) if least else None
        return declare(
            int(default), minimum=minimum, since=since, doc=doc, synonyms=synonyms, acts=False
        )
    if name == "list":
        default_words = default.split(",") if default else []
        return words(default_words, since=since, doc=doc, synonyms=synonyms, acts=False)
    one_of = () if kind == "string" else kind.split("|")
    return string(default, one_of=one_of, since=since, doc=doc, synonyms=synonyms, acts=False)
