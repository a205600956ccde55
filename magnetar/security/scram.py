"""SCRAM-SHA-256 and SCRAM-SHA-512: a password never crosses the wire (RFC 5802, RFC 7677, KIP-84).

The broker keeps salt, iterations, StoredKey and ServerKey of a user; the password cannot be
computed from them. An unknown user gets a decoy, whose salt is made from the broker's secret and
looks like the salts of users. The login fails at the last step, as with a wrong password. So the
answers do not tell which users exist. With the extension `tokenauth=true` the name is a delegation
token's id (KIP-48).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from typing import NamedTuple, Protocol

from magnetar.security.principal import Principal, user
from magnetar.security.sasl import AuthenticationFailed, Identity

#: The hash of each mechanism, by the mechanism's name.
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
#: The numbers that DescribeUserScramCredentials and its sibling have for the mechanisms (KIP-554).
MECHANISM_IDS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
ITERATIONS_MIN = 4096
ITERATIONS_MAX = 16384
#: The longest salt, and salted password, of a credential. Kafka's tools make salts of 25 bytes;
#: every login by SCRAM is answered with a salt as long as some user's.
SALT_BYTES_MAX = 1024
_DELEGATED = "tokenauth"

#: A longer message is refused: a connection that has not logged in holds what it has sent, and the
#: event loop reads it. The longest name of a user fits.
MESSAGE_BYTES_MAX = 64 * 1024

# gs2-header, then the bare message. The authorization id may be given; channel binding may not.
# Each part is one run of characters that gives none back (`++`), so a long one takes no time. What
# a name may escape is looked at later.
_CLIENT_FIRST = re.compile(
    r"(?P<gs2>n,(?:a=(?P<authorization_id>[^,\x00]++))?,)"
    r"(?P<bare>(?:m=[^,]*,)?n=(?P<name>[^,\x00]++),r=(?P<nonce>[!-+\--~]+)"
    r"(?P<extensions>(?:,[A-Za-z]+=[^,\x00]++)*))"
)
_CLIENT_FINAL = re.compile(
    r"(?P<without_proof>c=(?P<channel>[A-Za-z0-9+/=]+),r=(?P<nonce>[!-+\--~]+)"
    r"(?:,[A-Za-z]+=[^,\x00]++)*),p=(?P<proof>[A-Za-z0-9+/=]{1,128})"
)


class ScramCredential(NamedTuple):
    """What the broker keeps of one user's password for one mechanism."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


class TokenLogin(NamedTuple):
    """A delegation token: what a login by it must prove, whom it lets in, and until when."""

    credential: ScramCredential
    owner: Principal
    expires_at_ms: int


class Users(Protocol):
    """Those who may log in by one mechanism."""

    def find(self, name: str) -> ScramCredential | None:
        """Return a user's credential, where there is one."""
        ...

    def find_token(self, token_id: str, now_ms: int) -> TokenLogin | None:
        """Return what is known of a delegation token that has not expired."""
        ...

    def decoy(self, name: str) -> ScramCredential:
        """Return the credential of a user that does not exist: always the same for one name."""
        ...


class SaltShape(NamedTuple):
    """What can be seen of a credential before a login: iterations, and the salt's bytes.

    `is_text`: they are digits and small letters, as Kafka's tools make them.
    """

    size_bytes: int
    iterations: int
    is_text: bool


#: As Kafka's tools make it: 130 random bits in base 36.
USUAL_SHAPE = SaltShape(25, ITERATIONS_MIN, True)
_DIGITS = b"0123456789abcdefghijklmnopqrstuvwxyz"


def shape_of(kept: ScramCredential) -> SaltShape:
    """Return what can be seen of a user's credential."""
    is_text = all(byte in _DIGITS for byte in kept.salt)
    return SaltShape(len(kept.salt), kept.iterations, is_text)


def decoy(mechanism: str, name: str, secret: bytes, shape: SaltShape) -> ScramCredential:
    """Return a credential of this shape that no password fits.

    `secret` is the broker's: without it no one can tell the salt from a random one.
    """
    seed = hmac.digest(secret, f"{mechanism} {name}".encode(), "sha512")
    salt = hashlib.shake_256(seed).digest(shape.size_bytes)
    if shape.is_text:
        salt = bytes(_DIGITS[byte % len(_DIGITS)] for byte in salt)
    key = hmac.digest(secret, salt, HASHES[mechanism])
    return ScramCredential(salt, shape.iterations, key, key)


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

    def __init__(self, mechanism: str, users: Users, nonce: str) -> None:
        """`nonce` is fresh and random."""
        self.identity: Identity | None = None
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._users = users
        self._nonce = nonce
        self._first: re.Match[str] | None = None
        self._server_first = ""
        #: What the client has to prove that it knows.
        self._credential: ScramCredential
        #: Who the client is once it has proven that; None: the credential is a decoy.
        self._claimed: Identity | None = None

    def step(self, token: bytes, now_ms: int) -> bytes:
        """Return server-first or server-final. Raises AuthenticationFailed."""
        if len(token) > MESSAGE_BYTES_MAX:
            raise self._refusal()
        try:
            text = token.decode()
        except UnicodeDecodeError:
            raise self._refusal() from None
        if self._first is None:
            return self._on_first(text, now_ms).encode()
        return self._on_final(self._first, text).encode()

    def _on_first(self, text: str, now_ms: int) -> str:
        first = _CLIENT_FIRST.fullmatch(text)
        if first is None or not _is_escaped(first["name"]):
            raise self._refusal()
        self._first = first
        self._nonce = first["nonce"] + self._nonce
        name = _unescaped(first["name"])
        if first["authorization_id"] not in (None, first["name"]):
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different"
                " from username"
            )
        self._look_up(name, _is_token(first["extensions"]), now_ms)
        salt = base64.b64encode(self._credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        return self._server_first

    def _look_up(self, name: str, is_token: bool, now_ms: int) -> None:
        # Computed also for a user that exists: the time of the answer must not tell.
        decoy_credential = self._users.decoy(name)
        known: ScramCredential | None = None
        if is_token:
            token = self._users.find_token(name, now_ms)
            if token is not None:
                known = token.credential
                self._claimed = Identity(token.owner, token.expires_at_ms, is_token=True)
        else:
            known = self._users.find(name)
            if known is not None:
                self._claimed = Identity(user(name))
        self._credential = known or decoy_credential

    def _on_final(self, first: re.Match[str], text: str) -> str:
        final = _CLIENT_FINAL.fullmatch(text)
        if final is None or self.identity is not None:
            raise self._refusal()
        known = self._credential
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
            and self._decoded(final["channel"]) == first["gs2"].encode()
        )
        if not (is_proven and is_whole) or self._claimed is None:
            raise self._refusal()
        self.identity = self._claimed
        verifier = hmac.digest(known.server_key, message, self._hash)
        return f"v={base64.b64encode(verifier).decode()}"

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


def _is_token(extensions: str) -> bool:
    """Return whether a login's extensions, `,name=value` each, say that its name is a token's."""
    given = dict(each.split("=", 1) for each in extensions.split(",")[1:])
    return given.get(_DELEGATED, "").lower() == "true"


def _is_escaped(name: str) -> bool:
    """Return whether each `=` of a name begins an escape."""
    return name.count("=") == name.count("=2C") + name.count("=3D")


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")
