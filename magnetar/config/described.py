"""The present value of a setting and its source: the answers of DescribeConfigs (KIP-226).

A broker's setting has the first of: the value set at run time for this broker, the one set for all
brokers, the one of file and flags, the default. A topic's or a group's setting has its own value,
or that of the broker's setting behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from magnetar.config.broker import BrokerConfig
from magnetar.config.dynamic import base_name, find_setting
from magnetar.config.group import GroupConfig
from magnetar.config.setting import ConfigType, InvalidValue, Setting
from magnetar.config.topic import TopicConfig, broker_default


class ConfigSource(IntEnum):
    """Where a value comes from, with the ids that DescribeConfigs answers."""

    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class Synonym(NamedTuple):
    """A name and a text that would apply without the synonyms before it."""

    name: str
    text: str | None
    source: ConfigSource


class Described(NamedTuple):
    """A setting's value as text, its source, and all synonyms, the winning one first."""

    text: str | None
    source: ConfigSource
    synonyms: list[Synonym]


#: Settings of the broker that take their value from others where they are not set.
_FALLBACKS: dict[str, tuple[str, ...]] = {
    "log.retention.ms": ("log.retention.minutes", "log.retention.hours"),
    "log.retention.minutes": ("log.retention.hours",),
    "log.roll.ms": ("log.roll.hours",),
    "log.roll.jitter.ms": ("log.roll.jitter.hours",),
    "log.flush.interval.ms": ("log.flush.scheduler.interval.ms",),
}


class TopicSettings:
    """What topics have for their settings, and why.

    Most topics inherit nearly all of them, which takes a while to look up: once for each name. Make
    one for each request, since what the broker has may change.
    """

    def __init__(self, broker: BrokerConfig) -> None:
        self._broker = broker
        self._inherited: dict[str, Described] = {}

    def inherited(self, name: str) -> Described:
        """Return what a topic has for `name` that does not set it."""
        found = self._inherited.get(name)
        if found is None:
            setting = TopicConfig.settings[name]
            # The first name only: its own fallbacks lead on to the others.
            behind = _synonyms(setting.synonyms[0], self._broker) if setting.synonyms else []
            source = behind[0].source if behind else ConfigSource.DEFAULT_CONFIG
            # Computed: the text of a synonym may be in hours.
            text = setting.render(broker_default(name, self._broker))
            found = self._inherited[name] = Described(text, source, behind)
        return found

    def describe(self, name: str, own: Mapping[str, str]) -> Described:
        """Return what a topic with `own` settings has for `name`."""
        inherited = self.inherited(name)
        if name not in own:
            return inherited
        source, text = ConfigSource.TOPIC_CONFIG, normal_text(TopicConfig.settings[name], own[name])
        return Described(text, source, [Synonym(name, text, source), *inherited.synonyms])


def describe_group_setting(name: str, own: Mapping[str, str], broker: BrokerConfig) -> Described:
    """Return what a group with `own` settings has for `name`, and why."""
    setting = GroupConfig.settings[name]
    behind = _synonyms(setting.synonyms[0], broker) if setting.synonyms else []
    # Kafka lists a group's default as its own synonym where no broker setting is behind it.
    if not behind:
        default = setting.render(setting.default)
        behind = [Synonym(name, default, ConfigSource.DEFAULT_CONFIG)]
    if name in own:
        source, text = ConfigSource.GROUP_CONFIG, normal_text(setting, own[name])
        return Described(text, source, [Synonym(name, text, source), *behind])
    return Described(behind[0].text, behind[0].source, behind)


def describe_broker_setting(name: str, broker: BrokerConfig) -> Described:
    """Return what the broker has for `name`, and why; secrets are None."""
    setting = find_setting(name)
    assert setting is not None, name
    synonyms = _synonyms(name, broker)
    if not synonyms:
        return Described(None, ConfigSource.DEFAULT_CONFIG, synonyms)
    return Described(synonyms[0].text, synonyms[0].source, synonyms)


def describe_shared_settings(broker: BrokerConfig) -> dict[str, Described]:
    """Return what was set for every broker at run time, by name."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    described = {}
    for name, text in sorted(broker.shared_texts.items()):
        synonyms = [each for each in _synonyms(name, broker) if each.source == source]
        described[name] = Described(_shown(name, text), source, synonyms)
    return described


def _synonyms(name: str, broker: BrokerConfig) -> list[Synonym]:
    """Return all synonyms of `name`; none where another name's value applies, as in Kafka."""
    base = base_name(name)
    names = (name, *_FALLBACKS.get(name, ()), *([] if base is None else [base]))
    found = [
        Synonym(each, _shown(each, text), source)
        for source, texts in _layers(names, broker)
        for each in names
        if (text := texts.get(each)) is not None
    ]
    # A value under another name is in another unit: as the value of this one it would mislead.
    while found and found[0].name != name:
        del found[0]
    return found


def _layers(
    names: tuple[str, ...], broker: BrokerConfig
) -> Iterator[tuple[ConfigSource, Mapping[str, str | None]]]:
    # In order of precedence: the first layer that has a text wins (KIP-226).
    yield ConfigSource.DYNAMIC_BROKER_CONFIG, broker.own_texts
    yield ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, broker.shared_texts
    settings = {name: setting for name in names if (setting := find_setting(name)) is not None}
    given = {
        name: setting.render(broker.static[name])
        for name, setting in settings.items()
        if name in broker.static
    }
    yield ConfigSource.STATIC_BROKER_CONFIG, given
    defaults = {
        name: setting.render(setting.default)
        for name, setting in settings.items()
        # Kafka shows an empty list as unset. A listener's setting has the default of the broker's.
        if setting.default != [] and setting.name == name
    }
    yield ConfigSource.DEFAULT_CONFIG, defaults


def _shown(name: str, text: str | None) -> str | None:
    setting = find_setting(name)
    if text is None or setting is None or is_sensitive(setting):
        return None
    return normal_text(setting, text)


def normal_text(setting: Setting[object], text: str) -> str | None:
    """Return a text as the value it stands for is shown: ` TRUE` as `true`.

    A text that is no value any more, which another release has stored, is returned unchanged.
    """
    try:
        return setting.render(setting.parse(text))
    except InvalidValue:
        return text


def is_sensitive(setting: Setting[object] | None) -> bool:
    """Return whether the value must not be shown: a password, or an unknown name's."""
    return setting is None or setting.type is ConfigType.PASSWORD
