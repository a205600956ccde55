"""OAUTHBEARER: a signed token says who the client is (RFC 7628, KIP-255, KIP-768).

A token that is refused is answered as if the login went on, with the status in JSON; the client
acknowledges that with one byte, and only then the login fails. The client learns that its token is
invalid, the log learns why.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from magnetar.security.sasl import AuthenticationFailed, Identity

OAUTHBEARER = "OAUTHBEARER"
#: The answer to every token that is refused.
REFUSAL = '{"status":"invalid_token"}'
#: A longer token is refused unread. Tokens have one or two kilobytes.
TOKEN_BYTES_MAX = 1 << 16
#: A first message has a token, a name and some extensions. It is read before anyone is known.
MESSAGE_BYTES_MAX = TOKEN_BYTES_MAX + (1 << 15)

# gs2-header, then pairs, each ended by a byte 1. Channel binding may not be asked for. Clients send
# the token and a few extensions; 17,000 pairs, which fit, take 6 ms of the event loop.
_FIRST = re.compile(
    r"n,(?:a=(?P<authorization_id>(?:[\x01-+\--<>-\x7f]|=2C|=3D)+))?,\x01"
    r"(?P<pairs>(?:[A-Za-z]+=[!-~ \t\r\n]+\x01){,64})\x01"
)
_BEARER = re.compile(r"bearer +(?P<token>[-_~+/.a-zA-Z0-9]+=*)", re.IGNORECASE)


class TokenRefused(Exception):
    """A token proves no one. The text is for the log, and has no part of the token's signature."""


#: Return who a token names, by the time in milliseconds. Raises TokenRefused.
VerifyToken = Callable[[str, int], Identity]


class _First(NamedTuple):
    """What the client's first message says."""

    token: str
    #: Whom the client wants to act for; empty: the one that the token names.
    authorization_id: str


class OAuthBearerExchange:
    """One login: the token, and for one that is refused the client's acknowledgement."""

    def __init__(self, verify: VerifyToken) -> None:
        self.identity: Identity | None = None
        self.failure = ""
        self._verify = verify

    def step(self, token: bytes, now_ms: int) -> bytes:
        """Return nothing for a good token, else the status. Raises AuthenticationFailed."""
        if self.failure:
            raise AuthenticationFailed(REFUSAL)
        first = parse_first(token)
        try:
            identity = self._verify(first.token, now_ms)
        except TokenRefused as refused:
            self.failure = str(refused)
            return REFUSAL.encode()
        if first.authorization_id not in ("", identity.principal.name):
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different"
                " from the token's principal name"
            )
        self.identity = identity
        return b""


def parse_first(message: bytes) -> _First:
    """Return the client's first message. Raises AuthenticationFailed."""
    if len(message) > MESSAGE_BYTES_MAX:
        raise _malformed()
    text = message.decode("latin-1")
    first = _FIRST.fullmatch(text)
    if first is None:
        raise _malformed()
    pairs = [pair.partition("=") for pair in first["pairs"].split("\x01")[:-1]]
    values = {name: value for name, _, value in pairs}
    bearer = _BEARER.fullmatch(values.get("auth", ""))
    if bearer is None or len(values) < len(pairs):
        raise _malformed()
    name = (first["authorization_id"] or "").replace("=2C", ",").replace("=3D", "=")
    return _First(bearer["token"], name)


def _malformed() -> AuthenticationFailed:
    return AuthenticationFailed(
        "Authentication failed during authentication due to invalid credentials with SASL"
        f" mechanism {OAUTHBEARER}"
    )
