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

    def log_in(connection: Connection) -> None:
        begun = connection.call(SaslHandshakeRequest[1](mechanism="PLAIN"), SaslHandshakeResponse)
        assert begun.error_code == 0
        token = SaslAuthenticateRequest[1](auth_bytes=f"\0{user}\0{password}".encode())
        done = connection.call(token, SaslAuthenticateResponse)
        assert done.error_code == 0, done

    return Connection(broker.address("SASL_PLAINTEXT"), log_in)
