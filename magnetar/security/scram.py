"""SCRAM-SHA-256 and SCRAM-SHA-512: a password never crosses the wire (RFC 5802, RFC 7677, KIP-84).

The broker keeps salt, iterations, StoredKey and ServerKey of a user; the password cannot be
computed from them. An unknown user gets a salt made from the broker's secret and fails at the last
step, like a wrong password does: users cannot be guessed by the answers.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from typing import NamedTuple

from magnetar.security.principal import user
from magnetar.security.sasl import AuthenticationFailed, Identity

#: The hash of each mechanism, by the mechanism's name.
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
#: The numbers that DescribeUserScramCredentials and its sibling have for the mechanisms (KIP-554).
MECHANISM_IDS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
ITERATIONS_MIN = 4096
ITERATIONS_MAX = 16384
_SALT_BYTES = 20

# gs2-header, then the bare message. The authorization id may be given; channel binding may not.
_CLIENT_FIRST = re.compile(
    r"(?P<gs2>n,(?:a=(?P<authorization_id>[^,\x00]+))?,)"
    r"(?P<bare>(?:m=[^,]*,)?n=(?P<name>(?:[^,=\x00]|=2C|=3D)+),r=(?P<nonce>[!-+\--~]+)"
    r"(?P<extensions>(?:,[A-Za-z]+=[^,\x00]+)*))"
)
_CLIENT_FINAL = re.compile(
    r"(?P<without_proof>c=(?P<channel>[A-Za-z0-9+/=]+),r=(?P<nonce>[!-+\--~]+)"
    r"(?:,[A-Za-z]+=[^,\x00]+)*),p=(?P<proof>[A-Za-z0-9+/=]+)"
)


class ScramCredential(NamedTuple):
    """What the broker keeps of one user's password for one mechanism."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


#: Return the credential of a user name, where there is one.
FindCredential = Callable[[str], ScramCredential | None]


def credential(mechanism: str, salt: bytes, iterations: int, salted: bytes) -> ScramCredential:
    """Return what to keep for a salted password, as AlterUserScramCredentials brings it."""
    name = HASHES[mechanism]
    client_key = hmac.digest(salted, b"Client Key", name)
    return ScramCredential(
        salt,
        iterations,
        hashlib.new(name, client_key).digest(),
        hmac.digest(salted, b"Server Key", name),
    )


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Return Hi(password, salt, iterations): slow by design, some milliseconds."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


class ScramExchange:
    """One login: client-first, server-first, client-final, server-final."""

    failure = ""

    def __init__(
        self,
        mechanism: str,
        find: FindCredential,
        secret: bytes,
        nonce: str,
    ) -> None:
        """`secret` is the broker's, for the salts of unknown users; `nonce` is fresh and random."""
        self.identity: Identity | None = None
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._find = find
        self._secret = secret
        self._nonce = nonce
        self._first: re.Match[str] | None = None
        self._server_first = ""
        self._credential: ScramCredential | None = None

    def step(self, token: bytes, now_ms: int) -> bytes:
        """Return server-first or server-final. Raises AuthenticationFailed."""
        try:
            text = token.decode()
        except UnicodeDecodeError:
            raise self._refusal() from None
        if self._first is None:
            return self._on_first(text).encode()
        return self._on_final(self._first, text).encode()

    def _on_first(self, text: str) -> str:
        first = _CLIENT_FIRST.fullmatch(text)
        if first is None:
            raise self._refusal()
        self._first = first
        self._nonce = first["nonce"] + self._nonce
        name = _unescaped(first["name"])
        if first["authorization_id"] not in (None, first["name"]):
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different"
                " from username"
            )
        self._credential = self._find(name)
        shown = self._credential or self._decoy(name)
        salt = base64.b64encode(shown.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={shown.iterations}"
        return self._server_first

    def _on_final(self, first: re.Match[str], text: str) -> str:
        final = _CLIENT_FINAL.fullmatch(text)
        if final is None or self.identity is not None:
            raise self._refusal()
        name = _unescaped(first["name"])
        known = self._credential or self._decoy(name)
        message = f"{first['bare']},{self._server_first},{final['without_proof']}".encode()
        signature = hmac.digest(known.stored_key, message, self._hash)
        proof = self._decoded(final["proof"])
        if len(proof) != len(signature):
            raise self._refusal()
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        is_proven = hmac.compare_digest(
            hashlib.new(self._hash, client_key).digest(), known.stored_key
        )
        is_whole = (
            final["nonce"] == self._nonce
            and self._decoded(final["channel"]).decode("latin-1") == first["gs2"]
        )
        if not (is_proven and is_whole) or self._credential is None:
            raise self._refusal()
        self.identity = Identity(user(name))
        verifier = hmac.digest(known.server_key, message, self._hash)
        return f"v={base64.b64encode(verifier).decode()}"

    def _decoy(self, name: str) -> ScramCredential:
        """Return the credential of a user that does not exist: always the same for one name."""
        salt = hmac.digest(self._secret, f"{self._mechanism} {name}".encode(), "sha256")
        key = hmac.digest(self._secret, salt, self._hash)
        return ScramCredential(salt[:_SALT_BYTES], ITERATIONS_MIN, key, key)

    def _decoded(self, text: str) -> bytes:
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error:
            raise self._refusal() from None

    def _refusal(self) -> AuthenticationFailed:
        return AuthenticationFailed(
            "Authentication failed during authentication due to invalid credentials with SASL"
            f" mechanism {self._mechanism}"
        )


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")
