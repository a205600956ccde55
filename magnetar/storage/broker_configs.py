"""Configs of the broker that change while it runs (KIP-226): kept in the catalog, obeyed at once.

They are set for this broker alone, or for every broker of the cluster. `magnetar.config.dynamic`
knows which settings can be changed and which value wins. Settings that topics inherit reach their
logs by `TopicConfigs.inherit`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from magnetar.config.dynamic import (
    apply_texts,
    check_together,
    find_setting,
    parse_texts,
    refusal_of_names,
    with_texts,
)
from magnetar.config.load import ConfigError
from magnetar.config.setting import InvalidValue
from magnetar.logging import get_logger
from magnetar.storage.catalog import Catalog
from magnetar.storage.differences import difference
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.resource_type import ResourceType

if TYPE_CHECKING:
    from magnetar.config.broker import BrokerConfig

#: The name that stands for every broker.
EVERY_BROKER = ""
#: Most configs that are set at run time for one name. Those of listeners need not exist: without a
#: bound one client could store so many that to describe them takes seconds.
CONFIGS_MAX = 256

_INTEGER = re.compile(r"[+-]?[0-9]+")
_INTEGER_CHARACTERS_MAX = 100

_log = get_logger("configs")


class BrokerConfigs:
    """The configs set at run time for this broker, and for every broker."""

    def __init__(self, config: BrokerConfig, catalog: Catalog) -> None:
        """Apply the catalog's configs to `config`, except those unknown to this release."""
        self._config = config
        self._catalog = catalog
        #: Called with what the configuration would be. Raises ConfigError where it cannot serve.
        self.check_change: Callable[[BrokerConfig], None] = lambda candidate: None
        #: Called when the configuration has changed.
        self.on_change: Callable[[], None] = lambda: None
        self.reload()

    def reload(self) -> None:
        """Apply the catalog's configs: at a start, and where another node has changed them."""
        config, stored = self._config, self._catalog.resource_configs()
        apply_texts(
            config,
            _readable(stored.get((ResourceType.BROKER, EVERY_BROKER), {})),
            _readable(stored.get((ResourceType.BROKER, str(config.node_id)), {})),
        )

    def texts(self, name: str) -> dict[str, str]:
        """Return the configs set for `name`: this broker's id, or EVERY_BROKER."""
        config = self._config
        return dict(config.shared_texts if name == EVERY_BROKER else config.own_texts)

    def check_name(self, name: str) -> None:
        """Raise INVALID_REQUEST unless `name` is this broker's id, or EVERY_BROKER."""
        node_id = self._config.node_id
        if name == EVERY_BROKER:
            return
        if not _INTEGER.fullmatch(name):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}"
            )
        # Python reads no more than 4300 digits, and no node's id has so many as these.
        if len(name) > _INTEGER_CHARACTERS_MAX or int(name) != node_id:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {node_id}, but received {name}",
            )

    def check(
        self, name: str, changed: list[str], texts: Mapping[str, str], client_host: str
    ) -> None:
        """Raise INVALID_REQUEST unless these settings can be changed, and to these texts.

        POLICY_VIOLATION for too many. `name` is this broker's id, or EVERY_BROKER. `client_host` is
        the address of the client.
        """
        reason = refusal_of_names(changed, for_every_broker=name == EVERY_BROKER)
        if reason is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, reason)
        if len(texts) > CONFIGS_MAX:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"a broker has {CONFIGS_MAX} configs of its own at most, and every broker as many",
            )
        config = self._config
        try:
            if name == EVERY_BROKER:
                candidate = with_texts(config, texts, config.own_texts)
            else:
                candidate = with_texts(config, config.shared_texts, texts)
            check_together(candidate, client_host)
            self.check_change(candidate)
        except InvalidValue as invalid:
            raise KafkaError(ErrorCode.INVALID_REQUEST, invalid.reason) from None
        except ConfigError as mistake:
            _log.warning("configs refused", broker=name or "every", reason=str(mistake))
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(mistake)) from None

    def replace(self, name: str, texts: Mapping[str, str]) -> None:
        """Replace the configs of `name`, durably; expects what `check` lets pass.

        Topics obey what they inherit after `TopicConfigs.inherit`.
        """
        config = self._config
        resource = EVERY_BROKER if name == EVERY_BROKER else str(config.node_id)
        # The catalog first: settings that are obeyed survive a restart.
        changes = difference(self.texts(name), texts)
        self._catalog.set_resource_configs(ResourceType.BROKER, resource, changes)
        if resource == EVERY_BROKER:
            apply_texts(config, texts, config.own_texts)
        else:
            apply_texts(config, config.shared_texts, texts)
        self.on_change()
        _log.info("configs changed", broker=resource or "every", names=sorted(texts))


def _readable(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the configs that this release understands: another one may have stored them."""
    readable = {}
    for name, text in texts.items():
        try:
            if find_setting(name) is None:
                raise InvalidValue(f"{name} is not a setting of the broker")
            parse_texts({name: text})
        except InvalidValue as invalid:
            _log.warning("stored config ignored", reason=invalid.reason)
        else:
            readable[name] = text
    return readable
