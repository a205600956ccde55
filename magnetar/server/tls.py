"""TLS of one listener: its certificate, and what it makes of those of its clients.

Each handshake takes the newest context, so open connections live on when a certificate is renewed
(`magnetar.security.stores`). A context knows no sessions of the one before: who is believed no more
resumes none.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from magnetar.config.listeners import Listener
from magnetar.config.load import ConfigError
from magnetar.config.security import SecurityConfig
from magnetar.security.handshakes import ListeningContext
from magnetar.security.names import (
    MappingRule,
    certificate_name,
    certificate_names,
    mapped,
    parse_rules,
)
from magnetar.security.principal import ANONYMOUS, Principal, user
from magnetar.security.stores import Renewed, loaded_context
from wire.errors import WireError

_VERIFY = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


class _Loaded(NamedTuple):
    context: ssl.SSLContext
    #: The certificate and those that signed it, as PEM.
    chain: str


class ListenerTls:
    """The TLS of one listener."""

    def __init__(self, listener: Listener, security: SecurityConfig) -> None:
        """Raises ConfigError where its settings cannot be served."""
        self.name = listener.name
        self.rules: list[MappingRule] = _rules(listener.name, security)
        self._renewed = Renewed(self.name, security, partial(_load, self.name))

    def newest(self) -> ssl.SSLContext:
        """Return what the next handshake is done with."""
        return self._renewed.current.context

    def check(self, security: SecurityConfig) -> None:
        """Raise ConfigError unless new connections could be served by these settings.

        As in Kafka, a new certificate must have the names of the one before: a store that was
        mixed up with another must not go live. Files that are renewed in place may change them.
        """
        if self._renewed.is_new(security):
            loaded = _load(self.name, security)
            _check_names(self.name, self._renewed.current.chain, loaded.chain, security)

    def use(self, security: SecurityConfig) -> None:
        """Serve new connections by these settings, and by the files as they are now.

        What cannot be used leaves everything as it was, with a line in the log.
        """
        self._renewed.use(security)

    def reload(self) -> None:
        """Take over the files, where one has changed since the last look."""
        self._renewed.reload()


def _load(listener: str, security: SecurityConfig) -> _Loaded:
    """Return a context by these settings, and the chain of its certificate. Raises ConfigError."""
    server = ListeningContext(ssl.PROTOCOL_TLS_SERVER)
    context, chain = loaded_context(server, f"listener {listener}", security)
    context.verify_mode = _VERIFY[security.ssl_client_auth]
    return _Loaded(context, chain)


def _check_names(listener: str, old: str, new: str, security: SecurityConfig) -> None:
    """Raise ConfigError where a certificate lacks a name of the one before it."""
    if old == new:
        return
    of_old, of_new = certificate_names(old), certificate_names(new)
    if of_old.subject != of_new.subject and not security.ssl_allow_dn_changes:
        raise ConfigError(
            f"listener {listener}: the certificate of {of_new.subject} cannot follow that of"
            f" {of_old.subject} while clients connect. ssl.allow.dn.changes=true allows it."
        )
    missing = sorted(of_old.alternatives - of_new.alternatives)
    if missing and not security.ssl_allow_san_changes:
        raise ConfigError(
            f"listener {listener}: the new certificate lacks {', '.join(missing)} of the one"
            " before. ssl.allow.san.changes=true allows it."
        )


def principal_of(transport: asyncio.BaseTransport, rules: Sequence[MappingRule]) -> Principal:
    """Return the user that the client's certificate names, or ANONYMOUS. Raises WireError."""
    handshake = transport.get_extra_info("ssl_object")
    certificate = None if handshake is None else handshake.getpeercert(binary_form=True)
    if certificate is None:
        return ANONYMOUS
    try:
        return user(mapped(certificate_name(certificate), rules))
    except ValueError as mistake:
        raise WireError(f"its certificate: {mistake}") from None


def undelivered(
    transport: asyncio.BaseTransport, buffer: Callable[[], memoryview]
) -> Iterator[int]:
    """Receive in each `buffer()` what came before the end of a connection and was not handed on;
    return how many bytes.

    An event loop drops that where the connection ends while it is not read.
    """
    encrypted = transport.get_extra_info("ssl_object")
    if encrypted is None:
        return
    # The error says that there is no more.
    with suppress(ssl.SSLError):
        while count := encrypted.read(len(place := buffer()), place):
            yield count


def _rules(listener: str, security: SecurityConfig) -> list[MappingRule]:
    try:
        return parse_rules(security.ssl_principal_mapping_rules)
    except ValueError as mistake:
        raise ConfigError(f"listener {listener}: ssl.principal.mapping.rules {mistake}") from None
