"""The settings of quotas and of limits on connections.

What a quota allows is no setting: it is stored for users, client ids and addresses
(`magnetar.storage.client_quotas`).
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any, NamedTuple

from magnetar.config.addresses import plain_address
from magnetar.config.setting import (
    Config,
    ConfigType,
    InvalidValue,
    Setting,
    integer,
    parse_integer,
    split_words,
)
from wire.types import INT32_MAX

LISTENER_PREFIX = "listener.name."


class QuotasConfig(Config):
    """How long a burst may be: as in Kafka, by the number and the length of its samples."""

    quota_window_num = integer(
        11,
        minimum=1,
        since="0.9",
        doc="Samples of bytes, request time and connections: a burst is what the quota allows in"
        " one sample less, so in 10 s.",
    )
    quota_window_size_seconds = integer(
        1,
        minimum=1,
        since="0.9",
        doc="Length of such a sample; also the longest pause for request time.",
    )
    controller_quota_window_num = integer(
        11,
        minimum=1,
        since="2.7",
        doc="Samples of mutations: a burst is what the quota allows in all of them.",
    )
    controller_quota_window_size_seconds = integer(
        1, minimum=1, since="2.7", doc="Length of such a sample."
    )


def _overrides() -> Setting[str]:
    """Declare a list of ADDRESS:COUNT."""

    def parse(text: str) -> str:
        parse_overrides(text)
        return text.strip()

    return Setting(
        ConfigType.STRING,
        parse,
        "",
        doc="Other limits than max.connections.per.ip for some addresses: ADDRESS:COUNT,…"
        " Names of hosts are refused.",
        since="0.8.2",
    )


def parse_overrides(text: str) -> dict[str, int]:
    """Return the count of each address. Raises InvalidValue."""
    counts = {}
    for each in split_words(text):
        address, _, count = each.rpartition(":")
        try:
            address = str(ip_address(address.strip("[]")))
            counts[plain_address(address)] = parse_integer(count)
        except (ValueError, InvalidValue):
            raise InvalidValue(
                f"has {each}, which is not ADDRESS:COUNT", "Write an IP address and a number."
            ) from None
    return counts


def check_addresses(per_address_max: int, overrides: str, client_host: str | None) -> None:
    """Raise InvalidValue, with a whole sentence, where no address at all may connect.

    Or where the client that makes the change may not: it could not take the change back, and a
    restart would not help. None: no client does.
    """
    of_hosts = parse_overrides(overrides)
    if client_host is not None and of_hosts.get(client_host, per_address_max) <= 0 < len(of_hosts):
        raise InvalidValue(
            f"with max.connections.per.ip={per_address_max} and"
            f" max.connections.per.ip.overrides={overrides} no client at {client_host}, which"
            " makes this change, could connect any more. Make it from another address"
        )
    if per_address_max == 0 and not of_hosts:
        raise InvalidValue(
            "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides"
            " property is set"
        )


class ConnectionsConfig(Config):
    """Limits on connections beside `max.connections` and `max.connections.per.ip`."""

    max_connections_per_ip_overrides = _overrides()
    max_connection_creation_rate = integer(
        INT32_MAX,
        minimum=1,
        since="2.7",
        doc="New connections for each second. One beyond it waits until it is served."
        " listener.name.LISTENER.max.connection.creation.rate: of one listener.",
    )


#: What may be given for one listener besides its security: `listener.name.LISTENER.NAME`.
OF_LISTENERS: dict[str, Setting[Any]] = {
    # Not 0, as in Kafka: no client could take that back, and a restart would not help.
    "max.connections": integer(INT32_MAX, minimum=1, since="2.4", doc="Connections at once."),
    "max.connection.creation.rate": ConnectionsConfig.settings["max.connection.creation.rate"],
}
#: The settings of this file, which a broker has besides its own.
QUOTA_SETTINGS = {**QuotasConfig.settings, **ConnectionsConfig.settings}


class ListenerLimits(NamedTuple):
    """The limits of one listener."""

    connections_max: int
    #: New connections for each second; None: without a limit of its own.
    creation_rate: int | None


def listener_limits(config: Config, listener: str) -> ListenerLimits:
    """Return what is given for one listener alone."""
    prefix = f"{LISTENER_PREFIX}{listener.lower()}."
    found: dict[str, int] = {}
    for name in OF_LISTENERS:
        value = config[prefix + name] if prefix + name in config.explicit else None
        if isinstance(value, int):
            found[name] = value
    return ListenerLimits(
        found.get("max.connections", INT32_MAX), found.get("max.connection.creation.rate")
    )
