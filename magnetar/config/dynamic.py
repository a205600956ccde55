"""The broker's settings that can be changed while it runs (KIP-226), and how they change.

A text is given for one broker or for every broker of the cluster. A text for one broker wins over
one for every broker, and both win over file and flags. The values become attributes of the one
`BrokerConfig`, so code that reads a setting when it needs it sees the change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from magnetar.config.broker import BrokerConfig
from magnetar.config.inert import inert_settings
from magnetar.config.quotas import (
    LISTENER_PREFIX,
    OF_LISTENERS,
    ConnectionsConfig,
    check_addresses,
)
from magnetar.config.security import SecurityConfig, listener_setting
from magnetar.config.setting import InvalidValue, Setting, attribute_of, parse_named

#: The broker reads these when it needs them, or carries them over to topics and logs. Two of
#: Kafka's dynamic settings are missing: `listeners` and `listener.security.protocol.map`.
DYNAMIC = frozenset(
    {
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "group.consumer.assignment.interval.ms",
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.delete.retention.ms",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.io.max.bytes.per.second",
        "log.cleaner.max.compaction.lag.ms",
        "log.cleaner.min.cleanable.ratio",
        "log.cleaner.min.compaction.lag.ms",
        "log.cleaner.threads",
        "log.cleanup.policy",
        "log.flush.interval.messages",
        "log.flush.interval.ms",
        "log.index.interval.bytes",
        "log.index.size.max.bytes",
        "log.message.timestamp.after.max.ms",
        "log.message.timestamp.before.max.ms",
        "log.message.timestamp.type",
        "log.preallocate",
        "log.retention.bytes",
        "log.retention.ms",
        "log.roll.ms",
        "log.segment.bytes",
        "log.segment.delete.delay.ms",
        "max.active.transactions",
        "max.connection.creation.rate",
        "max.connections",
        "max.connections.per.ip",
        "max.connections.per.ip.overrides",
        "max.decompressed.message.bytes",
        "message.max.bytes",
        "min.insync.replicas",
        "producer.id.expiration.ms",
        "transaction.partition.verification.enable",
        "unclean.leader.election.enable",
    }
)
#: Settings of Kafka's authorizer, and an internal one of its broker. Shown only if they were set.
_HIDDEN = frozenset(
    {
        "allow.everyone.if.no.acl.found",
        "producer.id.expiration.check.interval.ms",
        "super.users",
    }
)
#: The settings of a listener that can be changed while it serves: where its key, its certificates
#: and those of its clients come from, and its limits.
_OF_SERVING_LISTENERS = frozenset(
    f"ssl.{store}"
    for store in (
        *("keystore.type", "keystore.location", "keystore.password", "key.password"),
        *("keystore.certificate.chain", "keystore.key"),
        *("truststore.type", "truststore.location", "truststore.password"),
        "truststore.certificates",
    )
) | frozenset(OF_LISTENERS)
#: How the names of security settings begin. In Kafka these belong to the listeners of one broker. A
#: setting with an effect is changed only with a listener's prefix; one without (`inert`) is stored.
_SECURITY_PREFIXES = ("ssl.", "sasl.", "principal.builder.class")
#: The security settings that Kafka changes at run time, and so does not call read-only.
_CHANGED_BY_LISTENER = frozenset(
    {"sasl.enabled.mechanisms", "sasl.jaas.config"}
    | {name for name in SecurityConfig.settings if name.startswith("ssl.")}
) - {"ssl.allow.dn.changes", "ssl.allow.san.changes", "ssl.principal.mapping.rules"}


def find_setting(name: str) -> Setting[object] | None:
    """Return a setting of the broker, with or without effect; None for an unknown name."""
    declared: Setting[object] | None = BrokerConfig.settings.get(name)
    if declared is not None:
        return declared
    return inert_settings().get(name) or listener_setting(name)


def setting_names(config: BrokerConfig) -> list[str]:
    """Return the names of all settings that a broker has, and shows."""
    # Names that were set are shown too: those that Kafka hides until then, and those of a listener.
    inert = {name for name, setting in inert_settings().items() if setting.is_listed}
    names = BrokerConfig.settings.keys() | inert | config.explicit
    return sorted(names - (_HIDDEN - config.explicit))


def is_read_only(name: str) -> bool:
    """Return whether Kafka calls a setting read-only: it calls all settings of one listener so."""
    return not is_dynamic(name) or base_name(name) is not None


def is_dynamic(name: str) -> bool:
    """Return whether Kafka changes the setting without a restart and so do we."""
    inert = inert_settings().get(name)
    if inert is not None:
        return inert.is_dynamic
    return name in DYNAMIC or name in _CHANGED_BY_LISTENER or base_name(name) is not None


def base_name(name: str) -> str | None:
    """Return the name without the prefix of a listener, and of a mechanism if it has one.

    None for a name without the prefix of a listener.
    """
    if listener_setting(name) is None:
        return None
    base = name.removeprefix(LISTENER_PREFIX).partition(".")[2]
    return base if find_setting(base) is not None else base.partition(".")[2]


def refusal_of_names(names: Collection[str], *, for_every_broker: bool) -> str | None:
    """Return why these cannot be changed at run time, or None where all can be."""
    fixed = [name for name in names if not is_dynamic(name)]
    if fixed:
        return f"Cannot update these configs dynamically: {_listed(fixed)}"
    security = [name for name in names if name.startswith(_SECURITY_PREFIXES)]
    secured = [name for name in security if name not in inert_settings()]
    if secured:
        return (
            "These security configs can be dynamically updated only per-listener using the listener"
            f" prefix: {_listed(secured)}"
        )
    of_listeners = {name: base for name in names if (base := base_name(name)) is not None}
    started = [name for name, base in of_listeners.items() if base not in _OF_SERVING_LISTENERS]
    if started:
        return f"These configs of a listener need a restart of the broker: {_listed(started)}"
    own = [name for name, base in of_listeners.items() if base not in OF_LISTENERS]
    if for_every_broker and (own or security):
        return (
            "Cannot update these configs at default cluster level, broker id must be specified:"
            f" {_listed([*own, *security])}"
        )
    return None


def _listed(names: Iterable[str]) -> str:
    return f"[{', '.join(sorted(names))}]"


def parse_texts(texts: Mapping[str, str]) -> dict[str, object]:
    """Return the values. Raises InvalidValue, whose reason is a whole sentence."""
    values = {}
    for name, text in texts.items():
        setting = find_setting(name)
        if setting is None:
            raise InvalidValue(f"{name} is not a setting of the broker")
        values[name] = parse_named(setting, name, text)
    return values


def with_texts(
    config: BrokerConfig, shared: Mapping[str, str], own: Mapping[str, str]
) -> BrokerConfig:
    """Return what `apply_texts` would make of `config`, unchanged itself. Raises InvalidValue."""
    return BrokerConfig(config.static | parse_texts(shared) | parse_texts(own))


def check_together(config: BrokerConfig, client_host: str | None = None) -> None:
    """Raise InvalidValue for settings that can change at run time and cannot go together.

    `client_host`: the address of the client that changes them; None: no client does.
    """
    overrides = config.view(ConnectionsConfig).max_connections_per_ip_overrides
    check_addresses(config.max_connections_per_ip, overrides, client_host)


def apply_texts(config: BrokerConfig, shared: Mapping[str, str], own: Mapping[str, str]) -> None:
    """Give `config` these texts in place of all that were set at run time.

    Raises InvalidValue; then nothing has changed.
    """
    # All is parsed before anything is assigned: a bad text leaves the configuration as it was.
    values = config.static | parse_texts(shared) | parse_texts(own)
    # Names that are no longer set count as well: they fall back to file, flags or default.
    touched = {*config.shared_texts, *config.own_texts, *shared, *own}
    config.shared_texts, config.own_texts = dict(shared), dict(own)
    config.explicit = frozenset(values)
    for name in touched:
        if name in values:
            config.__dict__[attribute_of(name)] = values[name]
        else:
            # The class has the default: the next read puts it into the instance again.
            config.__dict__.pop(attribute_of(name), None)
