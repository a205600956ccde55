"""Requests about delegation tokens (KIP-48) as bytes over a socket; kafka-python lacks them."""

from __future__ import annotations

from datetime import timedelta
from importlib import import_module
from io import BytesIO
from typing import Any

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from compat_tests.raw import Connection

CREATE, RENEW, EXPIRE, DESCRIBE = 38, 39, 40, 41
#: The newest version of each, and its name. The first is 1.
_APIS = {
    CREATE: (3, "create"),
    RENEW: (2, "renew"),
    EXPIRE: (2, "expire"),
    DESCRIBE: (3, "describe"),
}
_FLEXIBLE_SINCE = 2
_OWNER_SINCE = 3

Principal = tuple[str, str]


class TokenRefused(Exception):
    """A request about tokens was answered with an error."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


def create(
    connection: Connection,
    owner: str | None = None,
    renewers: list[Principal] | None = None,
    lifetime_ms: int = -1,
    version: int = 3,
) -> Any:
    """Make a token, for another owner where one is named. Raises TokenRefused."""
    renewer = _module(CREATE, version, "request").CreatableRenewers
    of_owner = {
        "owner_principal_type": None if owner is None else "User",
        "owner_principal_name": owner,
    }
    return _call(
        connection,
        CREATE,
        version,
        **(of_owner if version >= _OWNER_SINCE else {}),
        renewers=tuple(
            renewer(principal_type=kind, principal_name=name) for kind, name in renewers or ()
        ),
        max_lifetime=timedelta(milliseconds=lifetime_ms),
    )


def renew(connection: Connection, hmac: bytes, period_ms: int = -1, version: int = 2) -> Any:
    """Let a token be good for longer. Raises TokenRefused."""
    period = timedelta(milliseconds=period_ms)
    return _call(connection, RENEW, version, hmac=hmac, renew_period=period)


def expire(connection: Connection, hmac: bytes, period_ms: int = -1, version: int = 2) -> ErrorCode:
    """End a token, or let it be good for so long from now. Raises TokenRefused."""
    period = timedelta(milliseconds=period_ms)
    answer = _ask(connection, EXPIRE, version, hmac=hmac, expiry_time_period=period)
    return _code(answer)


def describe(connection: Connection, owners: list[str] | None = None) -> set[str]:
    """Return the ids of the tokens that a client sees. Raises TokenRefused."""
    return {token.token_id for token in described(connection, owners)}


def described(
    connection: Connection, owners: list[str] | None = None, version: int = 3
) -> tuple[Any, ...]:
    """Return the tokens that a client sees. Raises TokenRefused."""
    owner = _module(DESCRIBE, version, "request").DescribeDelegationTokenOwner
    asked = None
    if owners is not None:
        asked = tuple(owner(principal_type="User", principal_name=name) for name in owners)
    tokens: tuple[Any, ...] = _call(connection, DESCRIBE, version, owners=asked).tokens
    return tokens


def versions(api_key: int) -> range:
    """Return the versions of a request about tokens."""
    return range(1, _APIS[api_key][0] + 1)


def _call(connection: Connection, api_key: int, version: int, **fields: Any) -> Any:
    answer = _ask(connection, api_key, version, **fields)
    _code(answer)
    return entity_reader(_class(api_key, version, "response"))(answer, 0)[0]


def _ask(connection: Connection, api_key: int, version: int, **fields: Any) -> bytes:
    """Return the answer without its header."""
    request = _class(api_key, version, "request")
    body = BytesIO()
    entity_writer(request)(body, request(**fields))
    is_flexible = version >= _FLEXIBLE_SINCE
    answer = connection.call_bytes(api_key, version, body.getvalue(), is_flexible=is_flexible)
    # Correlation id, and tags.
    return answer[5 if is_flexible else 4 :]


def _code(answer: bytes) -> ErrorCode:
    # Read here: kio takes no time before 1970 for one, as errors have it.
    code = ErrorCode(int.from_bytes(answer[:2], "big"))
    if code is not ErrorCode.none:
        raise TokenRefused(code)
    return code


def _module(api_key: int, version: int, side: str) -> Any:
    verb = _APIS[api_key][1]
    return import_module(f"kio.schema.{verb}_delegation_token.v{version}.{side}")


def _class(api_key: int, version: int, side: str) -> Any:
    name = f"{_APIS[api_key][1].capitalize()}DelegationToken{side.capitalize()}"
    return getattr(_module(api_key, version, side), name)
