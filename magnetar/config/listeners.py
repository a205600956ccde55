"""Listeners: the entries NAME://host:port of `listeners` and `advertised.listeners`, by name."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass, replace
from ipaddress import ip_address

import wire.address
from magnetar.config.broker import BrokerConfig
from magnetar.config.cluster import ClusterConfig
from magnetar.config.load import ConfigError
from magnetar.config.security import (
    AuthorizationConfig,
    ListenersConfig,
    SecurityProtocol,
    listener_security,
)

_EVERY_INTERFACE = ("", "0.0.0.0", "::")  # noqa: S104  # compared with, not bound


@dataclass(frozen=True, slots=True)
class Listener:
    """An address to listen on, and the address that is advertised to its clients.

    An empty `host` means every interface; port 0 lets the operating system choose.
    """

    name: str
    host: str
    port: int
    advertised_host: str
    advertised_port: int
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT

    def bound_to(self, port: int) -> Listener:
        """Return this listener after the operating system chose `port` for it."""
        advertised_port = self.advertised_port or port
        return replace(self, port=port, advertised_port=advertised_port)


def parse_address(text: str, place: str) -> tuple[str, int]:
    """Return the host and port of `text`.

    Raises ConfigError, which names `place`: the setting or option that had the text.
    """
    try:
        return wire.address.parse_address(text)
    except ValueError as mistake:
        raise ConfigError(f"{place}: {mistake}") from None


def parse_listeners(config: BrokerConfig) -> list[Listener]:
    """Return the listeners of `config` without Kafka's controller listeners. Raises ConfigError."""
    given = config.view(ListenersConfig)
    bound = _parse("listeners", given.listeners)
    advertised = _parse("advertised.listeners", given.advertised_listeners)
    protocols = _protocol_names(given)
    for_controllers = {name.upper() for name in given.controller_listener_names}
    listeners = []
    for name, (host, port) in bound.items():
        # A combined KRaft node's server.properties has such a listener. It is not for clients.
        if name in for_controllers:
            continue
        # As in Kafka, a listener that the map does not name is called after its protocol.
        protocol = _protocol("listeners", name, protocols.get(name, name))
        shown_host, shown_port = advertised.get(name, ("", 0))
        # Clients connect to the advertised address, and "every interface" is no such address.
        if not shown_host:
            shown_host = socket.gethostname() if host in _EVERY_INTERFACE else host
        listeners.append(Listener(name, host, port, shown_host, shown_port or port, protocol))
    if not listeners:
        raise ConfigError("listeners: no listener for clients is named.")
    return listeners


def unguarded(config: BrokerConfig, listeners: Iterable[Listener]) -> list[Listener]:
    """Return the listeners without access control that other machines can reach."""
    if config.view(AuthorizationConfig).authorizer_class_name:
        return []
    return [
        listener
        for listener in listeners
        if not _is_loopback(listener.host)
        and not listener.protocol.has_sasl
        and not _asks_for_certificates(config, listener)
    ]


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _asks_for_certificates(config: BrokerConfig, listener: Listener) -> bool:
    security = listener_security(config, listener.name)
    return listener.protocol.has_tls and security.ssl_client_auth == "required"


def protocol_of_peers(config: BrokerConfig) -> tuple[str, SecurityProtocol]:
    """Return the listener name of the connections between nodes, and their protocol.

    Settings for these connections are found under this name. As in Kafka, the name comes from
    `inter.broker.listener.name` or the protocol from `security.inter.broker.protocol`, and each
    gives the other. Raises ConfigError.
    """
    given = config.view(ClusterConfig)
    name = given.inter_broker_listener_name
    if name is None:
        protocol = _protocol(
            "security.inter.broker.protocol", "", given.security_inter_broker_protocol
        )
        return protocol.value, protocol
    if "security.inter.broker.protocol" in config.explicit:
        raise ConfigError(
            "inter.broker.listener.name and security.inter.broker.protocol are both set. Set only"
            " one of the two."
        )
    name = name.upper()
    protocols = _protocol_names(config.view(ListenersConfig))
    return name, _protocol("inter.broker.listener.name", name, protocols.get(name, name))


def _protocol_names(given: ListenersConfig) -> dict[str, str]:
    """Return the entries of listener.security.protocol.map: protocol by listener name."""
    # Names are in capitals, as in `_parse`: Kafka normalises them in every setting.
    return {
        name.upper(): protocol
        for name, _, protocol in (
            entry.partition(":") for entry in given.listener_security_protocol_map
        )
    }


def _protocol(place: str, listener: str, text: str) -> SecurityProtocol:
    """Return the protocol named `text`. `listener`: whose it is, empty for no listener."""
    try:
        return SecurityProtocol(text.upper())
    except ValueError:
        known = ", ".join(SecurityProtocol)
        what_to_do = f" Name the protocol of {listener} in listener.security.protocol.map."
        raise ConfigError(
            f"{place}: {text} is not one of the protocols {known}.{what_to_do if listener else ''}"
        ) from None


def _parse(place: str, entries: list[str]) -> dict[str, tuple[str, int]]:
    parsed: dict[str, tuple[str, int]] = {}
    for entry in entries:
        name, separator, address = entry.partition("://")
        if not separator or not name:
            raise ConfigError(f"{place}: {entry} is not NAME://host:port")
        # Names are compared in capitals, as Kafka normalises them.
        if name.upper() in parsed:
            raise ConfigError(f"{place}: two addresses have the name {name.upper()}")
        parsed[name.upper()] = parse_address(address, place)
    return parsed
