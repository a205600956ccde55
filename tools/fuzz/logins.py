"""Logins: tokens of PLAIN, SCRAM and OAUTHBEARER through a session, in any order, true or not.

An input is a list of steps: a kind (one byte), a size (two bytes), then so many bytes. Where a step
asks for it, the token is that of a client that knows ada's password: lies come at every stage.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterator
from functools import cache, partial
from random import Random
from typing import NamedTuple

from magnetar.security.oauthbearer import OAUTHBEARER, OAuthBearerExchange, TokenRefused
from magnetar.security.plain import PlainExchange
from magnetar.security.principal import ANONYMOUS, user
from magnetar.security.sasl import Identity, Mechanism
from magnetar.security.scram import (
    HASHES,
    USUAL_SHAPE,
    ScramCredential,
    ScramExchange,
    TokenLogin,
    credential,
    decoy,
    salted_password,
)
from magnetar.security.session import Session
from tools.fuzz.mutations import mutated
from tools.fuzz.target import Target, judge
from wire.errors import KafkaError, WireError

_NAME, _PASSWORD = "ada", "pw of ada"
_SALT, _ITERATIONS = b"salt of ada", 4096
_MECHANISMS = ("PLAIN", *HASHES, OAUTHBEARER)
#: What stands for a signed token here: `tools.fuzz.tokens` is about real ones.
_SIGNED = "header.claims.signature"
_TRUE_FIRST = re.compile(rb"\x01auth=bearer +header\.claims\.signature\x01", re.IGNORECASE)
#: Kinds of steps: a request, a handshake, a token, the true final token of SCRAM, that token with
#: the step's bytes in place of a part of it.
_REQUEST, _HANDSHAKE, _TOKEN, _FINAL, _CHANGED_FINAL = range(5)
#: A true login of PLAIN.
PLAIN_TOKEN = f"\0{_NAME}\0{_PASSWORD}".encode()
_TOKENS = (
    PLAIN_TOKEN,
    f"{_NAME}\0{_NAME}\0{_PASSWORD}".encode(),
    f"bob\0{_NAME}\0{_PASSWORD}".encode(),
    b"\0ada\0wrong",
    b"\0\0",
    b"n,,n=ada,r=clientnonce",
    b"n,,n=ada,r=clientnonce,tokenauth=true",
    b"n,a=ada,n=ada,r=clientnonce,tokenauth=true",
    b"n,,n=nobody=2C=3D,r=clientnonce",
    b"p=tls-unique,,n=ada,r=x",
    b"c=biws,r=clientnonceserver,p=AAAA",
    f"n,,\x01auth=Bearer {_SIGNED}\x01\x01".encode(),
    f"n,a=ada,\x01auth=bearer {_SIGNED}\x01host=h\x01\x01".encode(),
    f"n,a=bob,\x01auth=Bearer {_SIGNED}\x01\x01".encode(),
    b"n,,\x01auth=Bearer header.claims.forged\x01\x01",
    b"\x01",
    b"",
)
_BEFORE_LOGIN = (17, 18, 36)
_API_KEYS = (0, 1, 3, 17, 18, 36, 65535)


@cache
def _salted(mechanism: str) -> bytes:
    return salted_password(mechanism, _PASSWORD, _SALT, _ITERATIONS)


class _Users(NamedTuple):
    """ada, who has a delegation token of the same name and password."""

    mechanism: str

    def find(self, name: str) -> ScramCredential | None:
        if name != _NAME:
            return None
        return credential(self.mechanism, _SALT, _ITERATIONS, _salted(self.mechanism))

    def find_token(self, token_id: str, now_ms: int) -> TokenLogin | None:
        kept = self.find(token_id)
        return None if kept is None else TokenLogin(kept, user(_NAME), 10_000)

    def decoy(self, name: str) -> ScramCredential:
        return decoy(self.mechanism, name, b"secret", USUAL_SHAPE)


def _verify(token: str, now_ms: int) -> Identity:
    if token != _SIGNED:
        raise TokenRefused("it is not signed")
    return Identity(user(_NAME), now_ms + 5_000)


def _session() -> Session:
    mechanisms = {
        name: Mechanism(name, partial(ScramExchange, name, _Users(name), "server"), 5_000)
        for name in HASHES
    }
    tokens = Mechanism(OAUTHBEARER, partial(OAuthBearerExchange, _verify), 0)
    plain = Mechanism("PLAIN", partial(PlainExchange, {_NAME: _PASSWORD}), 0)
    return Session({"PLAIN": plain, OAUTHBEARER: tokens, **mechanisms}, 1_000)


class _Step(NamedTuple):
    kind: int
    data: bytes

    def encode(self) -> bytes:
        return bytes((self.kind,)) + len(self.data).to_bytes(2, "big") + self.data


def _generate(random: Random) -> bytes:
    steps = []
    for _ in range(random.randrange(1, 8)):
        kind = random.choice((_REQUEST, _HANDSHAKE, _TOKEN, _TOKEN, _FINAL, _CHANGED_FINAL))
        if kind == _REQUEST:
            data = random.choice(_API_KEYS).to_bytes(2, "big")
        elif kind == _HANDSHAKE:
            data = bytes((random.randrange(2),)) + random.choice(_MECHANISMS).encode()
        else:
            data = random.choice(_TOKENS)
        if random.random() < 0.2:
            data = mutated(random, data, _TOKENS)
        steps.append(_Step(kind, data).encode())
    return b"".join(steps)


def _steps(given: bytes) -> Iterator[_Step]:
    position = 0
    while position + 3 <= len(given):
        size = int.from_bytes(given[position + 1 : position + 3], "big")
        yield _Step(given[position], given[position + 3 : position + 3 + size])
        position += 3 + size


class _Client:
    """What a client remembers that has the password, and what it may truly say next."""

    def __init__(self) -> None:
        self.session = _session()
        self._mechanism = ""
        self._first = self._server_first = ""

    def perform(self, step: _Step, now_ms: int) -> None:
        """Perform a step, and judge who the session says the client is after it."""
        session = self.session
        if step.kind == _REQUEST:
            was_open = session.mechanism is not None
            api_key = int.from_bytes(step.data[:2], "big")
            session.admit(api_key, now_ms)
            judge(was_open or api_key in _BEFORE_LOGIN, "no data before a login")
            return
        if step.kind == _HANDSHAKE:
            mechanism = step.data[1:].decode(errors="replace")
            session.handshake(mechanism, step.data[0] % 2 if step.data else 0, now_ms)
            self._mechanism, self._first = mechanism, ""
            return
        token = step.data if step.kind == _TOKEN else self._final()
        if step.kind == _CHANGED_FINAL:
            at = len(step.data) % (len(token) + 1)
            token = token[:at] + step.data + token[at + len(step.data) :]
        self._send(token, now_ms)

    def _send(self, token: bytes, now_ms: int) -> None:
        was = self.session.principal
        is_true = self._is_true(token)
        answer, _ = self.session.authenticate(token, now_ms, now_ms)
        if self._mechanism != "PLAIN" and not self._first:
            self._first, self._server_first = token.decode(), answer.decode()
        if self.session.principal != was:
            judge(is_true, f"a login by {token!r} proves no password")
        judge(self.session.principal in (ANONYMOUS, user(_NAME)), "no one else can log in")

    def _is_true(self, token: bytes) -> bool:
        if self._mechanism == "PLAIN":
            return token.endswith(_TOKENS[0])
        if self._mechanism == OAUTHBEARER:
            return _TRUE_FIRST.search(token) is not None
        return _proof(token) == _proof(self._final())

    def _final(self) -> bytes:
        """Return the client-final of RFC 5802 for what was said so far."""
        bare = self._first[self._first.find(",", 2) + 1 :]
        if self._mechanism not in HASHES or not self._server_first:
            return b"c=biws,r=x,p=AAAA"
        header = self._first[: len(self._first) - len(bare)]
        channel = base64.b64encode(header.encode()).decode()
        nonce = self._server_first.partition(",")[0]
        without_proof = f"c={channel},{nonce}"
        name = HASHES[self._mechanism]
        client_key = hmac.digest(_salted(self._mechanism), b"Client Key", name)
        signed = f"{bare},{self._server_first},{without_proof}".encode()
        signature = hmac.digest(hashlib.new(name, client_key).digest(), signed, name)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


def _proof(token: bytes) -> bytes:
    """Return everything but the spelling of the proof: its last characters have unused bits."""
    said, _, proof = token.rpartition(b",p=")
    try:
        return said + base64.b64decode(proof)
    except ValueError:
        return token


def _run(given: bytes) -> None:
    client = _Client()
    for number, step in enumerate(_steps(given)):
        try:
            client.perform(step, 1_000_000 + number * 1_500)
        except (KafkaError, WireError):
            # The connection is closed, but for a session that goes on.
            if client.session.mechanism is None:
                judge(client.session.principal == ANONYMOUS, "a failed login names no one")


TARGET = Target("logins", _generate, _run)
