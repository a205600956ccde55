"""Users of SCRAM: list them, add or change them, remove them (KIP-554).

A password stays here: the broker gets what is computed from it.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import Any

from magnetar.client.cluster import Client
from magnetar.client.errors import ClientError, check
from magnetar.client.login import HASHES
from wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

#: The numbers of the mechanisms in requests.
_MECHANISMS = dict(enumerate(HASHES, 1))
_NUMBERS = {name: number for number, name in _MECHANISMS.items()}
_SALT_BYTES = 20


@dataclass(frozen=True)
class User:
    """A user, and the iterations of each mechanism that the user can log in by."""

    name: str
    iterations: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        return {"user": self.name, "mechanisms": self.iterations}


def list_users(client: Client) -> list[User]:
    """Return every user, by name."""
    # Not None, which means all of them too: Apache Kafka 4.4.0 never answers that to a user who may
    # not describe the cluster, as its refusal goes through the names of the request.
    request = DescribeUserScramCredentialsRequest(users=[])
    response = client.call(request, DescribeUserScramCredentialsResponse)
    check(response.error_code, "listing users", response.error_message)
    found = []
    for result in response.results:
        check(result.error_code, f"user {result.user}", result.error_message)
        mechanisms = {
            _MECHANISMS.get(each.mechanism, str(each.mechanism)): each.iterations
            for each in result.credential_infos
        }
        found.append(User(result.user, mechanisms))
    return sorted(found, key=lambda user: user.name)


def set_password(client: Client, name: str, mechanism: str, password: str, iterations: int) -> None:
    """Let a user log in by a mechanism with this password; an earlier password ends."""
    salt = secrets.token_bytes(_SALT_BYTES)
    salted = hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)
    change = ScramCredentialUpsertion(
        name=name,
        mechanism=_NUMBERS[mechanism],
        iterations=iterations,
        salt=salt,
        salted_password=salted,
    )
    _alter(client, AlterUserScramCredentialsRequest(upsertions=[change]))


def remove_user(client: Client, name: str) -> None:
    """Take every credential from a user. ClientError: there is none."""
    found = next((user for user in list_users(client) if user.name == name), None)
    if found is None:
        raise ClientError(f"there is no user {name!r}: `magnetar users list` shows the users.")
    for mechanism in found.iterations:
        # One at a time: a user that a request names twice is refused.
        change = ScramCredentialDeletion(name=name, mechanism=_NUMBERS[mechanism])
        _alter(client, AlterUserScramCredentialsRequest(deletions=[change]))


def _alter(client: Client, request: AlterUserScramCredentialsRequest) -> None:
    for result in client.call(request, AlterUserScramCredentialsResponse).results:
        check(result.error_code, f"user {result.user}", result.error_message)
