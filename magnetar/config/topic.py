"""A topic's settings: Kafka's names, each with the broker setting that gives its default."""

from __future__ import annotations

from collections.abc import Container, Mapping
from contextlib import suppress

from magnetar.config import compression
from magnetar.config.broker import CLEANUP_POLICIES, TIMESTAMP_TYPES, BrokerConfig
from magnetar.config.inert import stored_settings
from magnetar.config.setting import (
    Config,
    ConfigType,
    InvalidValue,
    boolean,
    double,
    integer,
    long,
    optional_integer,
    parse_named,
    string,
    throttled_replicas,
    words,
)
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.types import INT32_MAX, INT64_MAX

MS_PER_MINUTE = 60_000
MS_PER_HOUR = 3_600_000


#: Topics may be created with these by clients written for Kafka, so they are stored and shown, and
#: nothing acts on them.
_STORED = {
    "nothing is tiered to remote storage": """
        local.retention.bytes long>=-2 -2 3.6 log.local.retention.bytes
        local.retention.ms long>=-2 -2 3.6 log.local.retention.ms
        remote.copy.lag.bytes long>=-1 -1 4.4 log.remote.copy.lag.bytes
        remote.copy.lag.ms long>=-1 0 4.4 log.remote.copy.lag.ms
        remote.log.copy.disable boolean false 3.9
        remote.log.delete.on.disable boolean false 3.9
    """,
    "share groups are not served": """
        errors.deadletterqueue.group.enable boolean false 4.4
    """,
    "replicas hold no copies": """
        min.insync.replicas int>=1 1 0.9 min.insync.replicas
        unclean.leader.election.enable boolean false 0.8.2 unclean.leader.election.enable
    """,
    "files grow as they are written": """
        preallocate boolean false 0.8.3 log.preallocate
    """,
    "logs roll on time": """
        segment.jitter.ms long>=0 0 0.8.2 log.roll.jitter.ms log.roll.jitter.hours
    """,
}


class TopicConfig(Config, stored=stored_settings(_STORED)):
    """The settings of one topic. `resolve` fills in the broker's defaults."""

    cleanup_policy = words(
        ["delete"],
        one_of=CLEANUP_POLICIES,
        synonyms=("log.cleanup.policy",),
        since="0.8.1",
        doc="delete: old segments are deleted by age and size. compact: of each key the last"
        " record stays. Both may be given.",
    )
    compression_type = compression.compression_type(synonyms=("compression.type",))
    compression_gzip_level = compression.gzip_level(synonyms=("compression.gzip.level",))
    compression_lz4_level = compression.lz4_level(synonyms=("compression.lz4.level",))
    compression_zstd_level = compression.zstd_level(synonyms=("compression.zstd.level",))
    delete_retention_ms = long(
        86400000,
        minimum=0,
        synonyms=("log.cleaner.delete.retention.ms",),
        since="0.8.1",
        doc="How long tombstones and markers are kept.",
    )
    file_delete_delay_ms = long(
        60000,
        minimum=0,
        synonyms=("log.segment.delete.delay.ms",),
        since="0.8",
        doc="How long files of segments and topics are kept that are deleted or replaced.",
    )
    flush_messages = long(
        INT64_MAX,
        minimum=1,
        synonyms=("log.flush.interval.messages",),
        since="0.8",
        doc="With durability=page-cache: records after which all of a log is synced.",
    )
    flush_ms = long(
        INT64_MAX,
        minimum=0,
        synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
        since="0.8",
        doc="With durability=page-cache: the time after which all of a log is synced.",
    )
    index_interval_bytes = integer(
        4096,
        minimum=0,
        synonyms=("log.index.interval.bytes",),
        since="0.8",
        doc="Bytes of log between two index entries; more than 256 KB count as that.",
    )
    follower_replication_throttled_replicas = throttled_replicas(
        doc="Stored and shown: replicas hold no copies."
    )
    leader_replication_throttled_replicas = throttled_replicas(
        doc="Stored and shown: replicas hold no copies."
    )
    # Kafka's own tests create topics with it: `segment.bytes` has a floor of 1 MiB.
    internal_segment_bytes = optional_integer(
        type=ConfigType.INT,
        maximum=INT32_MAX,
        since="4.1",
        doc="Wins over segment.bytes, without its floor.",
    )
    max_compaction_lag_ms = long(
        INT64_MAX,
        minimum=1,
        synonyms=("log.cleaner.max.compaction.lag.ms",),
        since="2.3",
        doc="Age at which a record is compacted.",
    )
    max_decompressed_message_bytes = integer(
        2147483639,
        minimum=1,
        maximum=2147483639,
        synonyms=("max.decompressed.message.bytes",),
        since="4.4",
        doc="Largest record of a compressed batch; all of a batch's may have 64 MiB.",
    )
    max_message_bytes = integer(
        1048588,
        minimum=0,
        synonyms=("message.max.bytes",),
        since="0.8",
        doc="Largest record batch, its 12 bytes of frame included.",
    )
    message_timestamp_after_max_ms = long(
        3600000,
        minimum=0,
        synonyms=("log.message.timestamp.after.max.ms",),
        since="3.6",
        doc="How far a timestamp may lie ahead of the clock.",
    )
    message_timestamp_before_max_ms = long(
        INT64_MAX,
        minimum=0,
        synonyms=("log.message.timestamp.before.max.ms",),
        since="3.6",
        doc="How far a timestamp may lie behind the clock.",
    )
    message_timestamp_type = string(
        "CreateTime",
        one_of=TIMESTAMP_TYPES,
        synonyms=("log.message.timestamp.type",),
        since="0.10",
        doc="Whether a record's timestamp is the producer's or the broker's.",
    )
    min_cleanable_dirty_ratio = double(
        0.5,
        minimum=0,
        maximum=1,
        synonyms=("log.cleaner.min.cleanable.ratio",),
        since="0.8.1",
        doc="Part of a log that must be uncompacted before compaction begins.",
    )
    min_compaction_lag_ms = long(
        0,
        minimum=0,
        synonyms=("log.cleaner.min.compaction.lag.ms",),
        since="0.10.1",
        doc="Age before which a record is not compacted.",
    )
    # Declared here and not among the stored ones, because `true` is refused: records that a client
    # believes to be tiered would be deleted.
    remote_storage_enable = boolean(
        False, since="3.6", doc="Only false: there is no remote storage.", acts=False
    )
    retention_bytes = long(
        -1,
        synonyms=("log.retention.bytes",),
        since="0.7",
        doc="Size of a partition that is kept: older segments are deleted; -1: all.",
    )
    retention_ms = long(
        604800000,
        minimum=-1,
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        since="0.7",
        doc="Age of its newest record at which a segment is deleted; -1: never.",
    )
    segment_bytes = integer(
        1073741824,
        minimum=1048576,
        rule="KIP-1030",
        synonyms=("log.segment.bytes",),
        since="0.7",
        doc="Size at which the log rolls.",
    )
    segment_index_bytes = integer(
        10485760,
        minimum=4,
        synonyms=("log.index.size.max.bytes",),
        since="0.8",
        doc="Largest index file; when it is full the log rolls.",
    )
    segment_ms = long(
        604800000,
        minimum=1,
        synonyms=("log.roll.ms", "log.roll.hours"),
        since="0.7",
        doc="Age at which the log rolls.",
    )


#: Settings that no list has, but for topics that set them.
_UNLISTED = frozenset({"internal.segment.bytes"})
#: The broker's names whose unit is coarser than that of the topic's setting, which is in ms.
_UNITS = {
    "log.retention.minutes": MS_PER_MINUTE,
    "log.retention.hours": MS_PER_HOUR,
    "log.roll.hours": MS_PER_HOUR,
    "log.roll.jitter.hours": MS_PER_HOUR,
}


def listed_settings(own: Container[str] = ()) -> list[str]:
    """Return the names that lists of settings have, for a topic with `own` ones."""
    return [name for name in TopicConfig.settings if name not in _UNLISTED or name in own]


def broker_default(name: str, broker: BrokerConfig) -> object:
    """Return the value of `name` on this broker for topics that do not set it."""
    setting = TopicConfig.settings[name]
    for synonym in setting.synonyms:
        # A setting without effect is no attribute of the broker until it is given.
        if synonym not in BrokerConfig.settings and synonym not in broker.explicit:
            continue
        value = broker[synonym]
        # It is kept as its text.
        if isinstance(value, str):
            value = setting.parse(value)
        # The default of a coarse name does not count: a finer one further on may have been given.
        # The default of the topic's setting says the same.
        if value is None or (synonym not in broker.explicit and synonym in _UNITS):
            continue
        # Negative stands for "never" in every unit: -1 hour is no time.
        if isinstance(value, int) and synonym in _UNITS:
            return value * _UNITS[synonym] if value >= 0 else -1
        return value
    return setting.default


def parse_topic_configs(texts: Mapping[str, str | None]) -> dict[str, object]:
    """Return the typed values of a topic's own settings.

    Raises InvalidValue whose reason is a whole sentence, for an unknown name or a bad value.
    """
    values: dict[str, object] = {}
    for name, text in texts.items():
        setting = TopicConfig.settings.get(name)
        # A topic's unknown name is an error, unlike the broker's: clients that misspell one would
        # never learn of it.
        if setting is None:
            raise InvalidValue(f"Unknown topic config name: {name}")
        if text is None:
            raise InvalidValue(f"Null value not supported for topic configs: {name}")
        values[name] = parse_named(setting, name, text)
    _check_together(values)
    return values


def check_topic_configs(texts: Mapping[str, str | None]) -> None:
    """Raise INVALID_CONFIG unless these may be a topic's own settings."""
    try:
        parse_topic_configs(texts)
    except InvalidValue as invalid:
        raise KafkaError(ErrorCode.INVALID_CONFIG, invalid.reason) from None


def read_topic_configs(texts: Mapping[str, str]) -> tuple[dict[str, object], list[str]]:
    """Return the typed values of stored settings, and the reasons why others are left out.

    Another release may have stored what this one refuses. If two values are impossible together,
    the first counts.
    """
    # The usual case in one go; the slow way below parses a prefix again for each name.
    with suppress(InvalidValue):
        return parse_topic_configs(texts), []
    understood: dict[str, str | None] = {}
    values: dict[str, object] = {}
    reasons = []
    for name, text in texts.items():
        try:
            # All understood so far, because a value may be impossible beside another one only.
            values = parse_topic_configs({**understood, name: text})
        except InvalidValue as invalid:
            reasons.append(invalid.reason)
        else:
            understood[name] = text
    return values, reasons


def _check_together(values: Mapping[str, object]) -> None:
    """Raise InvalidValue for values that are well-formed alone and impossible together."""
    if values.get("remote.storage.enable"):
        raise InvalidValue("remote.storage.enable=true is impossible: there is no remote storage.")
    # Only values that the topic gives itself: a broker's later change must not make stored topics
    # invalid.
    lags = [values.get(f"{end}.compaction.lag.ms") for end in ("min", "max")]
    if isinstance(lags[0], int) and isinstance(lags[1], int) and lags[0] > lags[1]:
        raise InvalidValue(
            f"min.compaction.lag.ms={lags[0]} is above max.compaction.lag.ms={lags[1]}."
        )


def broker_defaults(broker: BrokerConfig) -> dict[str, object]:
    """Return the values on this broker, as it is now, for topics that set nothing."""
    return {name: broker_default(name, broker) for name in TopicConfig.settings}


def resolve(own: Mapping[str, object], defaults: Mapping[str, object]) -> TopicConfig:
    """Return every setting of a topic that has `own` values; `explicit` names these.

    `defaults`: the broker's, which are asked for once where there are many topics.
    """
    config = TopicConfig({**defaults, **own})
    # Not all of `values`, which the constructor takes for given: the defaults among them are the
    # broker's.
    config.explicit = frozenset(own)
    return config
