"""A group's settings (KIP-848): Kafka's names, each with the broker setting behind it.

A group's own values lie within the bounds that the broker sets (`group.consumer.min...`,
`group.consumer.max...`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from magnetar.config.broker import BrokerConfig
from magnetar.config.inert import inert_settings, stored_settings
from magnetar.config.setting import Config, InvalidValue, integer, parse_named

#: by_duration takes an ISO 8601 duration (KIP-1106).
_RESET = re.compile(r"earliest|latest|by_duration:P[0-9DTHMS.]+")
_DEAD_LETTERS = "errors.deadletterqueue.topic.name"
_TAGS = "streams.rack.aware.assignment.tags"


_STORED = {
    "share groups are not served": """
        errors.deadletterqueue.copy.record.enable boolean false 4.4
        errors.deadletterqueue.topic.name string "" 4.4
        share.assignment.interval.ms int>=0 1000 4.1 group.share.assignment.interval.ms
        share.auto.offset.reset string latest 4.1
        share.delivery.count.limit int>=2 5 4.1 group.share.delivery.count.limit
        share.heartbeat.interval.ms int>=1 5000 4.1 group.share.heartbeat.interval.ms
        share.isolation.level read_committed|read_uncommitted read_uncommitted 4.1
        share.partition.max.record.locks int>=100 2000 4.1 group.share.partition.max.record.locks
        share.record.lock.duration.ms int>=1 30000 4.1 group.share.record.lock.duration.ms
        share.renew.acknowledge.enable boolean true 4.1
        share.session.timeout.ms int>=1 45000 4.1 group.share.session.timeout.ms
    """,
    "streams groups are not served": """
        streams.assignment.interval.ms int>=0 1000 4.1 group.streams.assignment.interval.ms
        streams.assignor.name sticky sticky 4.4 group.streams.assignors
        streams.heartbeat.interval.ms int>=1 5000 4.1 group.streams.heartbeat.interval.ms
        streams.initial.rebalance.delay.ms int>=0 3000 4.1 group.streams.initial.rebalance.delay.ms
        streams.num.standby.replicas int>=0 0 4.1 group.streams.num.standby.replicas
        streams.rack.aware.assignment.tags list "" 4.4 group.streams.rack.aware.assignment.tags
        streams.session.timeout.ms int>=1 45000 4.1 group.streams.session.timeout.ms
    """,
}


class GroupConfig(Config, stored=stored_settings(_STORED)):
    """The settings of one group."""

    consumer_assignment_interval_ms = integer(
        0,
        minimum=0,
        synonyms=("group.consumer.assignment.interval.ms",),
        since="4.0",
        doc="Least time between two assignments.",
    )
    consumer_heartbeat_interval_ms = integer(
        5000,
        minimum=1,
        synonyms=("group.consumer.heartbeat.interval.ms",),
        since="4.0",
        doc="How often members are told to send heartbeats.",
    )
    consumer_session_timeout_ms = integer(
        45000,
        minimum=1,
        synonyms=("group.consumer.session.timeout.ms",),
        since="4.0",
        doc="How long a member may be silent.",
    )


def parse_group_configs(texts: Mapping[str, str], broker: BrokerConfig) -> dict[str, object]:
    """Return the typed values of a group's own settings.

    Raises InvalidValue whose reason is a whole sentence.
    """
    values: dict[str, object] = {}
    for name, text in texts.items():
        setting = GroupConfig.settings.get(name)
        if setting is None:
            raise InvalidValue(f"Unknown group config name: {name}")
        values[name] = parse_named(setting, name, text)
        _check_bounds(name, values[name], broker)
    # Sessions are compared after all values are parsed: a group may set both, in any order.
    for kind in ("consumer", "share", "streams"):
        _check_session(kind, texts, broker)
    _check_texts(values)
    return values


def group_integer(name: str, own: Mapping[str, str], broker: BrokerConfig) -> int:
    """Return the number that a group with `own` settings has for `name`."""
    if name in own:
        # Stored texts have passed `parse_group_configs`, so the number is one.
        return int(own[name])
    value = broker_integer(GroupConfig.settings[name].synonyms[0], broker)
    assert value is not None, f"{name} has a default"
    return value


def broker_integer(name: str, broker: BrokerConfig) -> int | None:
    """Return a number of the broker's settings, with or without effect; None: no such setting."""
    if name in BrokerConfig.settings:
        value = broker[name]
    elif name in broker.static:
        value = broker.static[name]
    # Bounds of groups that are not served yet are inert settings, and are checked all the same:
    # such a group's own settings are stored.
    elif (inert := inert_settings().get(name)) is not None:
        value = inert.default
    else:
        return None
    return int(str(value))


def _check_texts(values: Mapping[str, object]) -> None:
    """Raise InvalidValue for what no type forbids."""
    reset = values.get("share.auto.offset.reset")
    if reset is not None and not _RESET.fullmatch(str(reset)):
        raise InvalidValue(
            f"share.auto.offset.reset={reset} is not one of earliest, latest, by_duration"
        )
    if str(values.get(_DEAD_LETTERS, "")).startswith("__"):
        raise InvalidValue(f"{_DEAD_LETTERS}: the topic's name must not begin with __")
    tags = values.get(_TAGS)
    if isinstance(tags, list) and len(set(tags)) < len(tags):
        raise InvalidValue(f"{_TAGS} names a tag twice")


def _check_session(kind: str, texts: Mapping[str, str], broker: BrokerConfig) -> None:
    """Raise InvalidValue where a session could end between two heartbeats in time."""
    session, interval = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
    # A change of something else must not fail because the broker's own values do not fit together.
    if session not in texts and interval not in texts:
        return
    if group_integer(session, texts, broker) <= group_integer(interval, texts, broker):
        raise InvalidValue(f"{session} must be greater than {interval}")


def _check_bounds(name: str, value: object, broker: BrokerConfig) -> None:
    # A bool is an int in Python, and has no bounds.
    if isinstance(value, bool) or not isinstance(value, int):
        return
    kind, _, rest = name.partition(".")
    least = f"group.{kind}.min.{rest}"
    # The number of standby replicas is bounded without its first word.
    most = f"group.{kind}.max.{rest.removeprefix('num.')}"
    low, high = broker_integer(least, broker), broker_integer(most, broker)
    if low is not None and value < low:
        raise InvalidValue(f"{name}={value} is below {least}={low}")
    if high is not None and value > high:
        raise InvalidValue(f"{name}={value} is above {most}={high}")
