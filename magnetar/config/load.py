"""From a file and flags to a `BrokerConfig`: later sources win, and every mistake is reported.

A bad value raises ConfigError, whose text names the place, the value, the rule and the way out.
An unknown name is only a warning with the closest known name: a server.properties written for Kafka
starts a broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from magnetar.config.broker import BrokerConfig
from magnetar.config.dynamic import check_together
from magnetar.config.inert import OBSOLETE, inert_settings
from magnetar.config.properties import PropertiesError, parse_properties
from magnetar.config.providers import (
    ProviderFailed,
    is_of_provider,
    make_providers,
    substituted,
)
from magnetar.config.security import listener_setting
from magnetar.config.setting import InvalidValue, Setting


class ConfigError(ValueError):
    """A configuration that no broker can start with."""


def unusable_directory(directory: Path, error: OSError) -> ConfigError:
    """Return what a start says of a data directory in which a file cannot be opened."""
    where = "" if error.filename in (None, str(directory)) else f"{error.filename}: "
    return ConfigError(f"cannot use the data directory {directory}: {where}{error.strerror}")


class Given(NamedTuple):
    """One name and value, and where they were written.

    `written` is the value with its variables, where a provider gave a part of it: that part may be
    a secret, which no message shows.
    """

    name: str
    value: str
    place: str
    written: str | None = None


class Loaded(NamedTuple):
    """A configuration and the warnings about its sources."""

    config: BrokerConfig
    warnings: list[str]


def read_properties(path: Path) -> list[Given]:
    """Return the settings of a .properties file in UTF-8, in the file's order."""
    try:
        text = path.read_text(encoding="utf-8")
        return [
            Given(name, value, f"{path.name} line {number}")
            for number, name, value in parse_properties(text)
        ]
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        at = error.start
        said = f"{path} is no text in UTF-8: its byte {at + 1} is 0x{error.object[at]:02x}"
        raise ConfigError(said) from error
    except PropertiesError as error:
        raise ConfigError(f"{path}: {error}") from error


def read_assignments(assignments: Iterable[str]) -> list[Given]:
    """Return the settings of `--set name=value` flags."""
    given = []
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set {assignment}: expected name=value")
        given.append(Given(name.strip(), value.strip(), "--set"))
    return given


def load(given: Sequence[Given]) -> Loaded:
    """Return the configuration of all that was given; the last value of a name wins."""
    values: dict[str, object] = {}
    warnings: list[str] = []
    places: dict[str, Given] = {}
    for item in _provided(given):
        setting: Setting[object] | None = BrokerConfig.settings.get(item.name) or listener_setting(
            item.name
        )
        if setting is None:
            warnings.append(f"{item.place}: {_unknown(item.name)}")
            # A setting without effect is still parsed: a typing mistake in it would fail on Kafka.
            setting = inert_settings().get(item.name)
        if setting is None:
            continue
        try:
            values[item.name] = setting.parse(item.value)
        except InvalidValue as invalid:
            raise ConfigError(_refusal(item, invalid, setting.render(setting.default))) from None
        places[item.name] = item
    # Before the configuration is made: what `explicit` names must have the names that are read.
    _reconcile(values)
    config = BrokerConfig(values)
    _check_together(config, places)
    return Loaded(config, warnings)


def _provided(given: Sequence[Given]) -> list[Given]:
    """Return what was given with the values of providers, and without what describes these."""
    try:
        providers = make_providers({item.name: item.value for item in given})
    except ProviderFailed as failed:
        raise ConfigError(f"{failed}.") from None
    found = []
    for item in given:
        if is_of_provider(item.name):
            continue
        try:
            value = substituted(item.value, providers)
        except ProviderFailed as failed:
            raise ConfigError(f"{item.place}: {item.name}: {failed}.") from None
        written = None if value == item.value else item.value
        found.append(item._replace(value=value, written=written))
    return found


def _reconcile(values: dict[str, object]) -> None:
    """Carry older names over to the names that the rest of the broker reads."""
    if "broker.id" in values and "node.id" not in values:
        values["node.id"] = values["broker.id"]
    if "node.id" in values:
        # Shown by both names, whichever was given; node.id wins, as in Kafka.
        values["broker.id"] = values["node.id"]
    if "log.dir" in values and "log.dirs" not in values:
        values["log.dirs"] = [values["log.dir"]]


def _check_together(config: BrokerConfig, places: dict[str, Given]) -> None:
    """Refuse values that are well-formed alone and impossible together."""
    # Refused, not ignored: topics in the other directories would seem lost.
    if len(config.log_dirs) > 1:
        raise ConfigError(
            f"{places['log.dirs'].place}: log.dirs={','.join(config.log_dirs)} names"
            f" {len(config.log_dirs)} directories; magnetar keeps its data in one. Name one."
        )
    if config.group_min_session_timeout_ms > config.group_max_session_timeout_ms:
        raise ConfigError(
            f"group.min.session.timeout.ms={config.group_min_session_timeout_ms} is above"
            f" group.max.session.timeout.ms={config.group_max_session_timeout_ms}."
        )
    try:
        check_together(config)
    except InvalidValue as invalid:
        raise ConfigError(f"{invalid.reason}.") from None


def _refusal(item: Given, invalid: InvalidValue, default: str | None) -> str:
    advice = invalid.advice or (f"Leave it out for the default, {default}." if default else "")
    if item.written is not None:
        # The reason may name the value, which a provider gave.
        return f"{item.place}: {item.name}={item.written} does not stand for a value it may have."
    return f"{item.place}: {item.name}={item.value} {invalid.reason}. {advice}".rstrip()


def _unknown(name: str) -> str:
    inert = inert_settings().get(name)
    reason = OBSOLETE.get(name) if inert is None else inert.reason
    if reason is not None:
        return f"{name} has no effect: {reason}."
    # difflib costs 5 ms to import, which a start without mistakes need not pay.
    from difflib import get_close_matches

    close = get_close_matches(name, BrokerConfig.settings, n=1, cutoff=0.5)
    suggestion = f" Did you mean {close[0]}?" if close else ""
    return f"{name} is not a setting magnetar knows; it is ignored.{suggestion}"
