"""Tokens of OAUTHBEARER: first messages, signed tokens, and sets of keys, true or not.

An input is the number of the kind (one byte), then the message, the token or the document. The key
is the same in each run, and so are the tokens: Ed25519 signs without chance.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from random import Random
from typing import Any

import jwt
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import OKPAlgorithm

from magnetar.security.jwt import (
    ALGORITHMS,
    TokenRules,
    parse_key_set,
    verified,
)
from magnetar.security.oauthbearer import TokenRefused, parse_first
from magnetar.security.principal import user
from magnetar.security.sasl import AuthenticationFailed
from tools.fuzz.mutations import mutated
from tools.fuzz.target import Target, judge

_NOW_S = 1_700_000_000
_KEY = Ed25519PrivateKey.from_private_bytes(b"a key that everybody may know by")
_PUBLIC = {**OKPAlgorithm.to_jwk(_KEY.public_key(), as_dict=True), "kid": "a", "use": "sig"}
KEY_SET = json.dumps({"keys": [_PUBLIC]}).encode()
_RULES = TokenRules(frozenset({"kafka"}), "https://issuer.test")
_CLAIMS: dict[str, Any] = {
    "sub": "ada",
    "iss": "https://issuer.test",
    "aud": "kafka",
    "iat": _NOW_S,
    "exp": 4_000_000_000,
}
_LIES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1e308,
    2**64,
    "",
    " ",
    "kafka",
    [],
    ["kafka", 1],
    {},
    "x" * 3000,
)
_HEADERS: tuple[Any, ...] = (
    {"alg": "none"},
    {"alg": "HS256", "kid": "a"},
    {"alg": "RS256", "kid": "a"},
    {"alg": "EdDSA", "kid": "b"},
    {"alg": "EdDSA", "kid": ["a"]},
    {"alg": ["EdDSA"]},
    {"alg": "EdDSA", "crit": ["exp"], "exp": 1},
    {"alg": "EdDSA", "jwk": _PUBLIC},
    [],
)
_KEYS: tuple[Any, ...] = (
    _PUBLIC,
    {"kty": "RSA", "n": "AQAB" * 90, "e": "AQAB"},
    {"kty": "RSA", "n": "AQAB", "e": "A" * 90},
    {"kty": "EC", "crv": "P-256", "x": "A" * 43, "y": "A" * 43},
    {"kty": "EC", "crv": "P-384", "x": 1, "y": None},
    {"kty": "OKP", "crv": "X25519", "x": "A" * 43},
    {"kty": "oct", "k": "AAAA"},
    {"kty": ["RSA"]},
    7,
)


def token(changes: dict[str, Any] | None = None) -> str:
    """Return a token that the key has signed."""
    claims = {**_CLAIMS, **(changes or {})}
    return jwt.api_jws.encode(json.dumps(claims).encode(), _KEY, "EdDSA", {"kid": "a"})


def first_message(text: str) -> bytes:
    """Return the first message of a client with a token."""
    return f"n,,\x01auth=Bearer {text}\x01\x01".encode()


@cache
def _true_token() -> str:
    return token()


def _segment(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _unsigned(random: Random) -> str:
    header = _segment(json.dumps(random.choice(_HEADERS)).encode())
    signed = f"{header}.{_segment(json.dumps(_CLAIMS).encode())}"
    pem = _KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return f"{signed}.{random.choice(('', _segment(pem[:32]), _true_token().split('.')[2]))}"


def _token(random: Random) -> bytes:
    match random.randrange(3):
        case 0:
            return _true_token().encode()
        case 1:
            return token({random.choice(sorted(_CLAIMS)): random.choice(_LIES)}).encode()
        case _:
            return _unsigned(random).encode()


def _judge_token(given: bytes) -> None:
    text = given.decode("latin-1")
    try:
        identity = verified(text, parse_key_set(KEY_SET), _RULES, _NOW_S * 1000)
    except TokenRefused as refused:
        judge(len(str(refused)) < 400, "a reason is a line of the log")
        return
    judge(_is_signed(text), "a token is signed")
    claims = json.loads(_decoded(text.split(".")[1]))
    judge(identity.principal == user(claims["sub"]), "a token names whom its issuer named")
    judge((identity.expires_at_ms or 0) >= _NOW_S * 1000, "a token has not expired")


def _is_signed(text: str) -> bool:
    """Whether the key has signed it, by the library of keys alone."""
    signed, _, signature = text.rpartition(".")
    try:
        _KEY.public_key().verify(_decoded(signature), signed.encode())
    except InvalidSignature:
        return False
    return True


def _decoded(segment: str) -> bytes:
    bare = segment.rstrip("=")
    return urlsafe_b64decode(bare + "=" * (-len(bare) % 4))


def _first(random: Random) -> bytes:
    named = random.choice(("n,,", "n,a=ada,", "n,a=a=2Cb,", "y,,", "p=x,,"))
    pairs = random.choice(("", "host=h\x01", "a=b\x01c= \x01", "auth=Bearer x\x01", "1=2\x01"))
    scheme = random.choice(("Bearer", "bearer ", "Basic", ""))
    text = random.choice((_true_token(), "a", "", "a b", "=" * 500))
    return f"{named}\x01auth={scheme} {text}\x01{pairs}\x01".encode()


def _judge_first(given: bytes) -> None:
    with suppress(AuthenticationFailed):
        found = parse_first(given)
        judge(bool(found.token) and found.token.encode() in given, "a token is read as it is sent")


def _document(random: Random) -> bytes:
    keys = random.choices(_KEYS, k=random.randrange(5))
    return json.dumps(random.choice(({"keys": keys}, {"keys": keys[0:1]}, keys))).encode()


def _judge_document(given: bytes) -> None:
    try:
        found = parse_key_set(given).keys
    except ValueError:
        return
    judge(bool(found), "a set without a key is none")
    for each in found:
        judge(set(each.algorithms) <= ALGORITHMS, "no key serves another algorithm")
        judge(not hasattr(each.key, "sign"), "no private key is kept")


_KINDS: tuple[tuple[Callable[[Random], bytes], Callable[[bytes], None]], ...] = (
    (_token, _judge_token),
    (_first, _judge_first),
    (_document, _judge_document),
)


def _generate(random: Random) -> bytes:
    number = random.randrange(len(_KINDS))
    data = _KINDS[number][0](random)
    if random.random() < 0.6:
        data = mutated(random, data, (_true_token().encode(), KEY_SET))
    return bytes((number,)) + data


def _run(given: bytes) -> None:
    if given:
        _KINDS[given[0] % len(_KINDS)][1](given[1:])


TARGET = Target("tokens", _generate, _run)
