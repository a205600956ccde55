"""Adds the first user to the data directory of a stopped broker.

Later users are added by AlterUserScramCredentials. The first one cannot be: the client of that
request would have to log in.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from pathlib import Path

from logstore.directory.data_directory import LOCK
from logstore.disk.files import lock_file
from magnetar.security.scram import credential, salted_password
from magnetar.storage.catalog import Catalog
from magnetar.storage.placing import refusal_of_part
from magnetar.storage.scram_credentials import ScramCredentials

_SALT_BYTES = 20


class InUse(Exception):
    """The directory is in use, or belongs to one of several nodes. Says what to do."""


def set_password(
    directory: Path, user: str, mechanisms: Iterable[str], password: str, iterations: int
) -> None:
    """Let a user log in by these mechanisms once the broker starts.

    Makes the directory if it is missing. Raises InUse, CatalogFailure, and KafkaError if there are
    too many users.
    """
    if (refusal := refusal_of_part(directory)) is not None:
        raise InUse(refusal)
    directory.mkdir(parents=True, exist_ok=True)
    try:
        release = lock_file(str(directory / LOCK), create=True)
    except BlockingIOError:
        raise InUse(
            f"{directory} is in use by another process. `magnetar users add` without --data-dir"
            " adds users to a running broker."
        ) from None
    try:
        catalog = Catalog(directory)
        try:
            users = ScramCredentials(catalog)
            kept = dict(users.of(user))
            for mechanism in mechanisms:
                salt = secrets.token_bytes(_SALT_BYTES)
                salted = salted_password(mechanism, password, salt, iterations)
                kept[mechanism] = credential(mechanism, salt, iterations, salted)
            users.check_room(user, beside=())
            users.replace({user: kept})
        finally:
            catalog.close()
    finally:
        release()
