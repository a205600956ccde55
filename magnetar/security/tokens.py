"""Delegation tokens: passwords for a time, which a user has made for others to log in as that user.

A token's password is the HMAC of its id under the broker's secret, in base64, so nothing of it is
stored. Clients log in by SCRAM with the id as their name and the extension `tokenauth=true`.
Pure: the caller gives the time, and random ids. Source: KIP-48, KIP-373,
DelegationTokenControlManager.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Set
from typing import NamedTuple

from magnetar.security.principal import USER_TYPE, Principal
from magnetar.security.scram import HASHES, ITERATIONS_MIN, ScramCredential, credential
from magnetar.security.scram import salted_password as salted
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.types import INT64_MAX

#: Those who may renew one token.
RENEWERS_MAX = 100
#: Characters in all names of one token, of its owner and its renewers: they are held in memory.
NAMES_MAX = 4_096
_HASH = "sha512"
_SALT_BYTES = 20


class Token(NamedTuple):
    """One token; the times are those of the wall clock."""

    id: str
    owner: Principal
    #: The user who asked for it, the owner or another who may.
    requester: Principal
    renewers: tuple[Principal, ...]
    issued_ms: int
    #: Until when it is good, inclusive; and until when it may be renewed.
    expires_ms: int
    ends_ms: int

    def is_for(self, principal: Principal) -> bool:
        """Return whether the principal owns the token, or may renew it."""
        return principal == self.owner or principal in self.renewers

    def is_for_any(self, principals: Set[Principal]) -> bool:
        """Return whether one of the principals, however many, owns the token or may renew it."""
        return self.owner in principals or not principals.isdisjoint(self.renewers)

    def is_good(self, now_ms: int) -> bool:
        """Return whether the token has not expired."""
        return now_ms <= self.expires_ms


class Lifetimes(NamedTuple):
    """How long a token can be renewed, and how long it is good before that."""

    max_ms: int
    renewed_ms: int


def issue(
    token_id: str,
    owner: Principal,
    requester: Principal,
    renewers: tuple[Principal, ...],
    lifetime_ms: int,
    now_ms: int,
    lifetimes: Lifetimes,
) -> Token:
    """Return a new token; `lifetime_ms` of 0 or less is the longest that there is.

    Raises INVALID_PRINCIPAL_TYPE, and INVALID_REQUEST for too many renewers or too long
    names.
    """
    if any(each.type != USER_TYPE for each in renewers):
        raise KafkaError(ErrorCode.INVALID_PRINCIPAL_TYPE, "renewers are of type User")
    if len(renewers) > RENEWERS_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"more than {RENEWERS_MAX} renewers")
    if sum(len(each.type) + len(each.name) for each in (owner, *renewers)) > NAMES_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"the token's names have more than {NAMES_MAX} characters"
        )
    longest_ms = min(lifetime_ms, lifetimes.max_ms) if lifetime_ms > 0 else lifetimes.max_ms
    # Kafka's bound: a configured lifetime of 2^63 - 1 means that tokens do not end.
    ends_ms = min(now_ms + longest_ms, INT64_MAX)
    expires_ms = min(ends_ms, now_ms + lifetimes.renewed_ms)
    return Token(token_id, owner, requester, renewers, now_ms, expires_ms, ends_ms)


def renew(
    token: Token, principal: Principal, period_ms: int, now_ms: int, lifetimes: Lifetimes
) -> Token:
    """Return the token, good for `period_ms` from now, or as long as may be where that is not
    above 0.

    Raises DELEGATION_TOKEN_EXPIRED, DELEGATION_TOKEN_OWNER_MISMATCH.
    """
    _check_good(token, now_ms)
    _check_principal(token, principal)
    longest_ms = lifetimes.renewed_ms
    renewed_ms = min(period_ms, longest_ms) if period_ms > 0 else longest_ms
    return token._replace(expires_ms=min(token.ends_ms, now_ms + renewed_ms))


def expire(token: Token, principal: Principal, period_ms: int, now_ms: int) -> Token | None:
    """Return the token, good for `period_ms` from now; None where it ends at once, below 0.

    Raises DELEGATION_TOKEN_OWNER_MISMATCH, DELEGATION_TOKEN_EXPIRED.
    """
    _check_principal(token, principal)
    if period_ms < 0:
        return None
    _check_good(token, now_ms)
    return token._replace(expires_ms=min(token.ends_ms, now_ms + period_ms))


def _check_good(token: Token, now_ms: int) -> None:
    if not token.is_good(now_ms):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED, f"token {token.id} has expired")


def _check_principal(token: Token, principal: Principal) -> None:
    if not token.is_for(principal):
        raise KafkaError(
            ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH,
            f"{principal} neither owns token {token.id} nor may renew it",
        )


def token_hmac(secret: bytes, token_id: str) -> bytes:
    """Return what proves a token: in base64 its password."""
    return hmac.digest(secret, token_id.encode(), _HASH)


def token_credential(secret: bytes, token_id: str, mechanism: str) -> ScramCredential:
    """Return what SCRAM compares a login with. Takes 1 to 2.5 ms.

    The salt is the same each time, so a login may begin before a restart and end after it.
    """
    password = base64.b64encode(token_hmac(secret, token_id)).decode()
    salt = hmac.digest(secret, f"{mechanism} {token_id}".encode(), HASHES[mechanism])[:_SALT_BYTES]
    salted_password = salted(mechanism, password, salt, ITERATIONS_MIN)
    return credential(mechanism, salt, ITERATIONS_MIN, salted_password)
