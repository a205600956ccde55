"""The client's side of SASL: PLAIN (RFC 4616), SCRAM-SHA-256 and -512 (RFC 5802, KIP-84), and
OAUTHBEARER (RFC 7628).

Tokens in and out, without a connection. A login by SCRAM also proves that the broker knows the
password: a broker that does not is refused.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Generator, Sequence

PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"
#: The hash of each mechanism of SCRAM.
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
#: More would let a peer keep this client computing for as long as it likes. Kafka's limit is 16384.
ITERATIONS_MAX = 1 << 20

#: Yields the client's tokens, and is sent the broker's.
Login = Generator[bytes, bytes, None]


class NotTheBroker(Exception):
    """The peer does not follow the mechanism, or does not know the password."""


def plain(username: str, password: str) -> Login:
    """Log in by PLAIN: the one token holds the password."""
    yield f"\0{username}\0{password}".encode()


def oauthbearer(token: str, extensions: Sequence[str]) -> Login:
    """Log in by a token; `extensions` are NAME=VALUE. Raises NotTheBroker."""
    pairs = "".join(f"{pair}\x01" for pair in extensions)
    status = yield f"n,,\x01auth=Bearer {token}\x01{pairs}\x01".encode()
    if status:
        # The broker says what is wrong as if the login went on, and fails it when it is told so.
        yield b"\x01"
        raise NotTheBroker("it neither takes the token nor refuses it")


def scram(mechanism: str, username: str, password: str, nonce: str) -> Login:
    """Log in by SCRAM; `nonce` is fresh and random. Raises NotTheBroker."""
    name = HASHES[mechanism]
    # `=` first: it is part of the other escape.
    first = f"n={username.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
    server_first = yield f"n,,{first}".encode()
    shown = server_first.decode("utf-8", "replace")
    told = {part[:1]: part[2:] for part in shown.split(",") if part[1:2] == "="}
    try:
        salt, iterations = b64decode(told["s"], validate=True), int(told["i"])
        is_sound = told["r"].startswith(nonce) and 0 < iterations <= ITERATIONS_MAX
    except (KeyError, ValueError):
        is_sound = False
    if not is_sound:
        raise NotTheBroker("its answer is none of SCRAM")
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
    final = f"c=biws,r={told['r']}"
    message = f"{first},{shown},{final}".encode()
    client_key = hmac.digest(salted, b"Client Key", name)
    signature = hmac.digest(hashlib.new(name, client_key).digest(), message, name)
    proof = bytes(ours ^ theirs for ours, theirs in zip(client_key, signature, strict=True))
    server_final = yield f"{final},p={b64encode(proof).decode()}".encode()
    expected = hmac.digest(hmac.digest(salted, b"Server Key", name), message, name)
    if not hmac.compare_digest(server_final, b"v=" + b64encode(expected)):
        raise NotTheBroker("it does not know the password itself")
