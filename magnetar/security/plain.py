"""PLAIN: user name and password as they are (RFC 4616). Only TLS keeps them secret."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from magnetar.security.principal import user
from magnetar.security.sasl import AuthenticationFailed, Identity

#: Compared with where the user is unknown, so that the answer takes the same time.
_NO_PASSWORD = b"\0"


class PlainExchange:
    """One login against the `user_NAME="password"` entries of a JAAS line."""

    failure = ""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self.identity: Identity | None = None
        self._passwords = passwords

    def step(self, token: bytes, now_ms: int) -> bytes:
        """Check `[authorization id] NUL user NUL password`; the answer is empty."""
        count = token.count(b"\0") + 1
        if count != 3:
            raise AuthenticationFailed(
                f"Invalid SASL/PLAIN response: expected 3 tokens, got {count}"
            )
        try:
            authorization_id, name, password = (part.decode() for part in token.split(b"\0"))
        except UnicodeDecodeError:
            raise AuthenticationFailed("Invalid SASL/PLAIN response: not UTF-8") from None
        if not name:
            raise AuthenticationFailed("Authentication failed: username not specified")
        if not password:
            raise AuthenticationFailed("Authentication failed: password not specified")
        expected = self._passwords.get(name)
        wanted = _NO_PASSWORD if expected is None else expected.encode()
        if not hmac.compare_digest(wanted, password.encode()) or expected is None:
            raise AuthenticationFailed("Authentication failed: Invalid username or password")
        if authorization_id not in ("", name):
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different"
                " from username"
            )
        self.identity = Identity(user(name))
        return b""
