"""TLS between nodes: one certificate, shown to those that are dialled and to those that dial.

Each side asks the other for its certificate, and trusts what the truststore signs. The node that
dials checks that the certificate names the host that it has dialled. The proofs of the cluster's
secret are made inside, over the certificate of the node that dials (`channel_of_dialler`). A relay
between two nodes has another certificate, even one that both trust, so neither proof holds.

A certificate is tried before it is used: this node dials itself in memory. So one that has expired,
or names another host, is a reason not to start, and does not replace a good one.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from magnetar.config.load import ConfigError
from magnetar.config.security import SecurityConfig
from magnetar.security.handshakes import ListeningContext
from magnetar.security.stores import Renewed, loaded_context

#: What the log and mistakes call the listener.
PLACE = "peers.listener"
#: Both sides' messages are through after so many turns.
_TURNS = 4


class DiallingContext(ssl.SSLContext):
    """A context that knows its own certificate."""

    #: In DER.
    certificate: bytes


class _Contexts(NamedTuple):
    listening: ssl.SSLContext
    dialling: DiallingContext


class PeerTls:
    """The TLS of a node among its peers."""

    def __init__(self, settings: Callable[[], SecurityConfig], host: str) -> None:
        """`settings` returns them as they are now; `host` is where peers reach this node.

        Raises ConfigError where peers would not trust its certificate.
        """
        self._settings = settings
        self._renewed = Renewed(PLACE, settings(), partial(_load, host))

    def listening(self) -> ssl.SSLContext:
        """Return what the next connection of a peer is accepted with."""
        return self._renewed.current.listening

    def dialling(self) -> ssl.SSLContext:
        """Return what the next connection to a peer is made with."""
        return self._renewed.current.dialling

    def reload(self) -> None:
        """Take over settings and files, where one has changed since the last look."""
        self._renewed.use(self._settings())


def channel_of_dialler(transport: asyncio.BaseTransport) -> bytes:
    """Return what the proofs of a connection that this node has dialled are bound to."""
    encrypted = transport.get_extra_info("ssl_object")
    if encrypted is None:
        return b""
    context = encrypted.context
    assert isinstance(context, DiallingContext)
    return _channel(context.certificate)


def channel_of_listener(transport: asyncio.BaseTransport) -> bytes:
    """Return what the proofs of a connection that a peer has dialled are bound to."""
    encrypted = transport.get_extra_info("ssl_object")
    return b"" if encrypted is None else _channel(encrypted.getpeercert(binary_form=True))


def _channel(certificate: bytes) -> bytes:
    return hashlib.sha256(certificate).digest()


def _load(host: str, security: SecurityConfig) -> _Contexts:
    """Return contexts by these settings. Raises ConfigError."""
    if not (security.ssl_truststore_location or security.ssl_truststore_certificates):
        raise ConfigError(
            f"{PLACE}: nodes that speak TLS need ssl.truststore.location (or"
            " ssl.truststore.certificates): it says whose certificates are those of nodes."
        )
    listening, _ = loaded_context(ListeningContext(ssl.PROTOCOL_TLS_SERVER), PLACE, security)
    listening.verify_mode = ssl.CERT_REQUIRED
    dialling, _ = loaded_context(DiallingContext(ssl.PROTOCOL_TLS_CLIENT), PLACE, security)
    dialling.check_hostname = _checks_host(security)
    dialling.certificate = _tried(listening, dialling, host)
    return _Contexts(listening, dialling)


def _checks_host(security: SecurityConfig) -> bool:
    algorithm = security.ssl_endpoint_identification_algorithm.lower()
    if algorithm not in ("https", "none", ""):
        raise ConfigError(
            f"{PLACE}: ssl.endpoint.identification.algorithm={algorithm} is neither https nor empty"
        )
    return algorithm == "https"


def _tried(listening: ssl.SSLContext, dialling: ssl.SSLContext, host: str) -> bytes:
    """Return this node's certificate. Raises ConfigError unless it trusts itself, in both roles.

    As in Kafka, which tries the stores of brokers so.
    """
    to_listener, to_dialler = ssl.MemoryBIO(), ssl.MemoryBIO()
    dialler = dialling.wrap_bio(to_dialler, to_listener, server_hostname=host)
    listener = listening.wrap_bio(to_listener, to_dialler, server_side=True)
    for _ in range(_TURNS):
        for side in (dialler, listener):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                reason = error.verify_message.rstrip(".")
                raise ConfigError(
                    f"{PLACE}: other nodes would not trust this node's certificate as that of"
                    f" {host}: {reason}. The keystore's certificate must be signed by the"
                    " truststore, name the host, and be good for servers and clients."
                ) from None
            except ssl.SSLError as error:
                raise ConfigError(f"{PLACE}: TLS does not come about: {error.reason}") from None
    certificate = dialler.getpeercert(binary_form=True)
    assert certificate is not None, "a server shows one"
    return certificate
