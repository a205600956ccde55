"""A bare connection that has logged in by PLAIN."""

from __future__ import annotations

from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from compat_tests.brokers import Broker
from compat_tests.raw import Connection


def plain_connection(broker: Broker, user: str, password: str) -> Connection:
    """Return a connection to SASL_PLAINTEXT that has logged in by PLAIN."""
    connection = Connection(broker.address("SASL_PLAINTEXT"))
    begun = connection.call(SaslHandshakeRequest[1](mechanism="PLAIN"), SaslHandshakeResponse)
    assert begun.error_code == 0
    token = f"\0{user}\0{password}".encode()
    done = connection.call(SaslAuthenticateRequest[1](auth_bytes=token), SaslAuthenticateResponse)
    assert done.error_code == 0, done
    return connection
