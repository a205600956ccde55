"""`config.providers`: values that a file names, and that lie elsewhere (KIP-297, KIP-421, KIP-887).

    config.providers=env
    config.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider
    ssl.key.password=${env:KEY_PASSWORD}

The form is `${PROVIDER:PATH:KEY}`, or `${PROVIDER:KEY}` of the environment. Unlike in Kafka, a
value that cannot be had is an error: the variable itself would be taken for a password. What a
provider gave is shown in no message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from magnetar.config.properties import PropertiesError, parse_properties
from magnetar.config.setting import Config, empty_words, split_words

_NAME = "config.providers"
_PACKAGE = "org.apache.kafka.common.config.provider"
_VARIABLE = re.compile(r"\$\{([^}]*?):(?:([^}]*?):)?([^}]*?)\}")
#: A secret is short, and so is a file of them.
_FILE_BYTES_MAX = 1 << 20

#: Returns the value of path and key. Raises ProviderFailed.
Provider = Callable[[str, str], str]


class ProviderFailed(ValueError):
    """A provider cannot be had, or has no such value. The text names no value."""


class ProvidersConfig(Config):
    """The setting that names the providers; theirs are below its name."""

    config_providers = empty_words(
        since="2.0",
        doc="Names of providers of values, each with config.providers.NAME.class of Kafka:"
        " FileConfigProvider, DirectoryConfigProvider, EnvVarConfigProvider. In files and flags.",
    )


def is_of_provider(name: str) -> bool:
    """Return whether a setting describes a provider."""
    return name.startswith(f"{_NAME}.")


def make_providers(settings: Mapping[str, str]) -> dict[str, Provider]:
    """Return the providers that the settings describe, by name. Raises ProviderFailed."""
    providers = {}
    for name in split_words(settings.get(_NAME, "")):
        prefix = f"{_NAME}.{name}"
        kind = settings.get(f"{prefix}.class")
        if kind is None:
            raise ProviderFailed(f"{prefix}.class is missing")
        make = _KINDS.get(kind.strip().removeprefix(f"{_PACKAGE}."))
        if make is None:
            known = ", ".join(f"{_PACKAGE}.{each}" for each in _KINDS)
            raise ProviderFailed(f"{prefix}.class={kind} is not one of {known}")
        providers[name] = make(settings, f"{prefix}.param")
    return providers


def substituted(text: str, providers: Mapping[str, Provider]) -> str:
    """Return a text with the values of its variables. Raises ProviderFailed.

    What looks like a variable of no provider stays as it is.
    """

    def value(found: re.Match[str]) -> str:
        provider = providers.get(found[1])
        if provider is None:
            return found[0]
        try:
            return provider(found[2] or "", found[3])
        except ProviderFailed as failed:
            raise ProviderFailed(f"{found[0]} has no value: {failed}") from None

    return _VARIABLE.sub(value, text) if providers else text


def resolved(settings: Mapping[str, str]) -> dict[str, str]:
    """Return a client's settings with the values of all variables. Raises ProviderFailed."""
    providers = make_providers(settings)
    return {
        name: text if is_of_provider(name) else _substituted(name, text, providers)
        for name, text in settings.items()
    }


def _substituted(name: str, text: str, providers: Mapping[str, Provider]) -> str:
    try:
        return substituted(text, providers)
    except ProviderFailed as failed:
        raise ProviderFailed(f"{name}: {failed}") from None


def _file(settings: Mapping[str, str], params: str) -> Provider:
    allowed = _allowed_paths(settings, params)

    def get(path: str, key: str) -> str:
        try:
            text = _read(_checked(path, allowed))
            values = {name: value for _, name, value in parse_properties(text)}
        except PropertiesError as error:
            raise ProviderFailed(f"{path} {error}") from None
        if key not in values:
            raise ProviderFailed(f"{path} has no such key")
        return values[key]

    return get


def _directory(settings: Mapping[str, str], params: str) -> Provider:
    allowed = _allowed_paths(settings, params)

    def get(path: str, key: str) -> str:
        # The key is a file of this very directory.
        if "/" in key or key in ("", ".", ".."):
            raise ProviderFailed("its key is no name of a file")
        return _read(_checked(path, allowed) / key)

    return get


def _environment(settings: Mapping[str, str], params: str) -> Provider:
    name = f"{params}.allowlist.pattern"
    try:
        pattern = re.compile(settings.get(name, ".*"))
    except re.error as error:
        raise ProviderFailed(f"{name} is no regular expression: {error}") from None

    def get(path: str, key: str) -> str:
        if path:
            raise ProviderFailed("the environment has no paths")
        if pattern.fullmatch(key) is None:
            raise ProviderFailed(f"{name} does not allow it")
        if key not in os.environ:
            raise ProviderFailed("the environment has no such variable")
        return os.environ[key]

    return get


_KINDS: dict[str, Callable[[Mapping[str, str], str], Provider]] = {
    "FileConfigProvider": _file,
    "DirectoryConfigProvider": _directory,
    "EnvVarConfigProvider": _environment,
}


def _allowed_paths(settings: Mapping[str, str], params: str) -> list[Path] | None:
    """Return the paths that may be read; None: all."""
    name = f"{params}.allowed.paths"
    if not settings.get(name):
        return None
    paths = [Path(os.path.normpath(each.strip())) for each in settings[name].split(",")]
    for path in paths:
        if not path.is_absolute() or not path.exists():
            raise ProviderFailed(f"{name}: {path} is not absolute, or does not exist")
    return paths


def _checked(path: str, allowed: list[Path] | None) -> Path:
    # Without looking at links, as Kafka does: Kubernetes mounts secrets as links.
    normal = Path(os.path.normpath(path))
    if not path:
        raise ProviderFailed("it names no path")
    if allowed is not None and not any(normal.is_relative_to(each) for each in allowed):
        raise ProviderFailed(f"allowed.paths does not allow {path}")
    return normal


def _read(path: Path) -> str:
    try:
        if not path.is_file() or path.stat().st_size > _FILE_BYTES_MAX:
            raise ProviderFailed(f"{path} is no file, or has more than {_FILE_BYTES_MAX} bytes")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ProviderFailed(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ProviderFailed(f"{path} is not UTF-8") from None
