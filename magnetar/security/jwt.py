"""Signed tokens (JWT, RFC 7519), and the sets of public keys that prove them (JWKS, RFC 7517).

Only asymmetric signatures count: with HMAC everyone who can check tokens could make them, and a
public key would pass for a secret. Claims are checked as Kafka's BrokerJwtValidator does.
"""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm, get_default_algorithms
from jwt.exceptions import PyJWTError

from magnetar.security.oauthbearer import TOKEN_BYTES_MAX, TokenRefused
from magnetar.security.principal import user
from magnetar.security.sasl import Identity
from wire.types import STRING_BYTES_MAX

_OF_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_OF_CURVES = {
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
    ("OKP", "Ed448"): ("EdDSA",),
}
ALGORITHMS = frozenset(_OF_RSA).union(*_OF_CURVES.values())
#: Smaller keys are too weak, larger ones and larger exponents take milliseconds for each token.
_RSA_BITS = range(2048, 8192 + 1)
_RSA_EXPONENT_MAX = (1 << 32) - 1
#: No number of such a key is longer in base64.
_NUMBER_CHARACTERS_MAX = 2048
#: Keys that are tried for a token that names none.
_CANDIDATES_MAX = 16
#: The largest time that a session's end may have: the numbers of JSON are exact up to here.
_TIME_MS_MAX = 1 << 53
_SHOWN_CHARACTERS_MAX = 64
#: What Java trims off the ends of a text.
_SPACE = "".join(map(chr, range(0x21)))

_PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey
_ALGORITHMS = {
    name: algorithm for name, algorithm in get_default_algorithms().items() if name in ALGORITHMS
}
_SEGMENT = re.compile("[A-Za-z0-9_-]*")


class UnknownKey(TokenRefused):
    """The set has no key of the name that the token gives: a newer set may have it."""


class VerificationKey(NamedTuple):
    """One public key, its name in the set, and the algorithms that it may verify."""

    key_id: str | None
    algorithms: tuple[str, ...]
    key: _PublicKey


@dataclass(frozen=True, slots=True)
class KeySet:
    """The keys of one issuer."""

    keys: tuple[VerificationKey, ...]

    def candidates(self, key_id: str | None, algorithm: str) -> list[_PublicKey]:
        """Return the keys that may have made a signature. Raises UnknownKey."""
        named = [each for each in self.keys if key_id in (None, each.key_id)]
        if key_id is not None and not named:
            raise UnknownKey(f"there is no key {_shown(key_id)} in the set of keys")
        fitting = [each.key for each in named if algorithm in each.algorithms]
        return fitting[:_CANDIDATES_MAX]


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What the claims of a token must say."""

    #: One of them must be among the token's audiences. Empty: a token with an audience was made for
    #: others; None: what a token says of it does not matter.
    audiences: frozenset[str] | None = frozenset()
    #: None: any.
    issuer: str | None = None
    clock_skew_s: int = 30
    scope_claim: str = "scope"
    subject_claim: str = "sub"


def parse_key_set(data: bytes) -> KeySet:
    """Return the keys of a JWKS that can verify signatures. Raises ValueError where it has none.

    Keys for other purposes, of other kinds, and those that cannot be read are passed over.
    """
    document = _parse_json(data)
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ValueError('it is no set of keys: there is no list "keys"')
    keys = [key for each in listed if (key := _verification_key(each)) is not None]
    if not keys:
        raise ValueError(f"none of its {len(listed)} keys can verify a token")
    return KeySet(tuple(keys))


def verified(token: str, keys: KeySet, rules: TokenRules, now_ms: int) -> Identity:
    """Return who a token names, and until when. Raises TokenRefused."""
    if len(token) > TOKEN_BYTES_MAX:
        raise TokenRefused(f"the token has {len(token)} bytes, more than {TOKEN_BYTES_MAX}")
    header, payload, signature = _parts(token)
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise TokenRefused(f"its algorithm {_shown(algorithm)} is not taken")
    if not header.keys().isdisjoint(("crit", "b64")):
        raise TokenRefused("its header has extensions that must be understood")
    if key_id is not None and not isinstance(key_id, str):
        raise TokenRefused("the name of its key is no text")
    signed = token.rpartition(".")[0].encode()
    for key in keys.candidates(key_id, algorithm):
        if _ALGORITHMS[algorithm].verify(signed, key, signature):
            return _identity(_claims(payload), rules, now_ms)
    raise TokenRefused(f"its signature is of no known key (algorithm {algorithm})")


def _verification_key(entry: object) -> VerificationKey | None:
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
        return None
    purposes, key_id = entry.get("key_ops", ["verify"]), entry.get("kid")
    if not isinstance(purposes, list) or "verify" not in purposes:
        return None
    if key_id is not None and not isinstance(key_id, str):
        return None
    fitting = _fitting_algorithms(entry)
    declared = entry.get("alg")
    if declared is not None:
        fitting = tuple(each for each in fitting if each == declared)
    try:
        key = _public_key(entry) if fitting else None
    # What a set holds is not ours: whatever is wrong with one key, the others count.
    except (PyJWTError, UnsupportedAlgorithm, ValueError, TypeError, KeyError, OverflowError):
        return None
    return None if key is None else VerificationKey(key_id, fitting, key)


def _fitting_algorithms(entry: dict[str, Any]) -> tuple[str, ...]:
    kind, curve = entry.get("kty"), entry.get("crv")
    if kind == "RSA":
        return _OF_RSA
    if isinstance(kind, str) and isinstance(curve, str):
        return _OF_CURVES.get((kind, curve), ())
    return ()


def _public_key(entry: dict[str, Any]) -> _PublicKey | None:
    # Only the public part is read, even of a private key that was published by mistake.
    public: dict[str, Any] = {
        name: entry[name] for name in ("kty", "crv", "n", "e", "x", "y") if name in entry
    }
    if any(len(number) > _NUMBER_CHARACTERS_MAX for number in public.values()):
        return None
    if entry["kty"] == "RSA":
        key = cast(RSAPublicKey, RSAAlgorithm.from_jwk(public))
        is_sound = key.key_size in _RSA_BITS and key.public_numbers().e <= _RSA_EXPONENT_MAX
        return key if is_sound else None
    if entry["kty"] == "EC":
        return cast(EllipticCurvePublicKey, ECAlgorithm.from_jwk(public))
    return cast("Ed25519PublicKey | Ed448PublicKey", OKPAlgorithm.from_jwk(public))


def _parts(token: str) -> tuple[dict[str, Any], bytes, bytes]:
    """Return header, payload and signature of a token (RFC 7515, the compact form)."""
    # Not by PyJWS, which looks at each character in Python: 7 ms for the longest token.
    segments = token.split(".")
    try:
        if len(segments) != 3:
            raise ValueError
        header, payload, signature = map(_decoded, segments)
        parsed = _parse_json(header)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise TokenRefused("it is no signed token (JWT)")
    return parsed, payload, signature


def _decoded(segment: str) -> bytes:
    """Return the bytes of base64url without padding. Raises ValueError."""
    if _SEGMENT.fullmatch(segment) is None:
        raise ValueError("there is another character")
    return urlsafe_b64decode(segment + "=" * (-len(segment) % 4))


def _claims(payload: bytes) -> dict[str, Any]:
    try:
        claims = _parse_json(payload)
    except ValueError:
        claims = None
    if not isinstance(claims, dict):
        raise TokenRefused("its claims are no object of JSON")
    return claims


def _parse_json(data: bytes) -> object:
    """Raises ValueError, also for what is nested too deeply."""
    try:
        return cast(object, json.loads(data))
    except (ValueError, RecursionError):
        raise ValueError("it is no JSON") from None


def _identity(claims: dict[str, Any], rules: TokenRules, now_ms: int) -> Identity:
    _check_issuer(claims, rules)
    expires_at_ms = _check_times(claims, rules, now_ms)
    _check_scope(claims, rules)
    subject = claims.get(rules.subject_claim)
    name = subject.strip(_SPACE) if isinstance(subject, str) else ""
    if not 0 < _size_bytes(name) <= STRING_BYTES_MAX:
        raise TokenRefused(f"it names no one: claim {rules.subject_claim} is {_shown(subject)}")
    return Identity(user(name), expires_at_ms)


def _size_bytes(name: str) -> int:
    """Return the size of a name in UTF-8; 0 for half of a surrogate pair, which JSON may hold."""
    try:
        return len(name.encode())
    except UnicodeEncodeError:
        return 0


def _check_issuer(claims: dict[str, Any], rules: TokenRules) -> None:
    issuer = claims.get("iss")
    if rules.issuer is not None and issuer != rules.issuer:
        raise TokenRefused(f"its issuer is {_shown(issuer)}, not {rules.issuer}")
    audiences = claims.get("aud")
    if rules.audiences is None or (audiences is None and not rules.audiences):
        return
    named: Sequence[object] = audiences if isinstance(audiences, list) else [audiences]
    if not any(isinstance(each, str) and each in rules.audiences for each in named):
        expected = ", ".join(sorted(rules.audiences)) or "none is expected"
        raise TokenRefused(f"its audience is {_shown(audiences)}: {expected}")


def _check_times(claims: dict[str, Any], rules: TokenRules, now_ms: int) -> int:
    """Return when the token expires, in milliseconds since 1970. Raises TokenRefused."""
    issued_s, expires_s = _time_s(claims, "iat"), _time_s(claims, "exp")
    if issued_s is None or expires_s is None:
        raise TokenRefused("it does not say when it was issued (iat) and when it expires (exp)")
    now_s = now_ms / 1000
    if now_s - rules.clock_skew_s >= expires_s:
        raise TokenRefused(f"it has expired {now_s - expires_s:.0f} s ago")
    begins_s = _time_s(claims, "nbf")
    if begins_s is not None and now_s + rules.clock_skew_s < begins_s:
        raise TokenRefused(f"it holds in {begins_s - now_s:.0f} s only (nbf)")
    if expires_s < issued_s or (begins_s is not None and expires_s < begins_s):
        raise TokenRefused("it expires before it holds")
    return int(min(expires_s * 1000, _TIME_MS_MAX))


def _time_s(claims: dict[str, Any], name: str) -> float | None:
    """Return a time in seconds since 1970; None where the token has none."""
    value = claims.get(name)
    if value is None:
        return None
    # A bool is an int in Python. The bound refuses infinity and what is no number, too.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) <= _TIME_MS_MAX:
        raise TokenRefused(f"{name} is {_shown(value)}, no time")
    return float(value)


def _check_scope(claims: dict[str, Any], rules: TokenRules) -> None:
    """Check the form of the scope, as Kafka does; a token need not have one."""
    scope = claims.get(rules.scope_claim, [])
    scopes = scope if isinstance(scope, list) else [scope]
    is_sound = all(isinstance(each, str) and each.strip(_SPACE) for each in scopes)
    if not is_sound or len(set(scopes)) < len(scopes):
        raise TokenRefused(f"claim {rules.scope_claim} is {_shown(scope)}, no scope")


def _shown(value: object) -> str:
    """Return what a token says, in a length that a line of the log can have."""
    text = repr(value)
    is_long = len(text) > _SHOWN_CHARACTERS_MAX
    return f"{text[:_SHOWN_CHARACTERS_MAX]}..." if is_long else text
