"""Users of SCRAM: kept in the catalog, held in memory, by name and mechanism (KIP-554)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from magnetar.security.scram import USUAL_SHAPE, SaltShape, ScramCredential, decoy, shape_of
from magnetar.storage.catalog import Catalog
from magnetar.storage.differences import difference
from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: Most users with credentials: all of them are held in memory.
USERS_MAX = 100_000
_SHAPES_MAX = 64

#: A user's credentials by the mechanism's name.
Credentials = Mapping[str, ScramCredential]


class ScramCredentials:
    """The credentials of every user."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._users: dict[str, dict[str, ScramCredential]] = {}
        self._secret = catalog.secret()
        #: By mechanism, what the credentials of some users look like: so do those of none.
        self._shapes: dict[str, list[SaltShape]] = {}
        self._read(None)
        for credentials in self._users.values():
            self._note_shapes(credentials)

    def reload(self, user: str) -> None:
        """Read a user's credentials again: another node may have changed them."""
        self._users.pop(user, None)
        self._read(user)

    def _read(self, user: str | None) -> None:
        for row in self._catalog.scram_credentials(user):
            name, mechanism, salt, iterations, stored_key, server_key = row
            self._users.setdefault(name, {})[mechanism] = ScramCredential(
                salt, iterations, stored_key, server_key
            )

    def find(self, user: str, mechanism: str) -> ScramCredential | None:
        """Return a user's credential for a mechanism, where there is one."""
        return self._users.get(user, {}).get(mechanism)

    def decoy(self, user: str, mechanism: str) -> ScramCredential:
        """Return the credential of a user that does not exist, which looks like that of one."""
        shapes = self._shapes.get(mechanism) or [USUAL_SHAPE]
        return decoy(mechanism, user, self._secret, shapes)

    def _note_shapes(self, credentials: Credentials) -> None:
        for mechanism, kept in credentials.items():
            shapes = self._shapes.setdefault(mechanism, [])
            # Not all: a decoy must stay what it was while more users come.
            if len(shapes) < _SHAPES_MAX:
                shapes.append(shape_of(kept))

    def of(self, user: str) -> Credentials:
        """Return all credentials of a user; none for an unknown one."""
        return self._users.get(user, {})

    def users(self) -> Iterable[str]:
        """Return the names of all users, sorted."""
        return sorted(self._users)

    def check_room(self, user: str, beside: Collection[str]) -> None:
        """Raise POLICY_VIOLATION for one user too many, `beside` others that get credentials."""
        if user in self._users or len(self._users) + len(beside) < USERS_MAX:
            return
        if len(self._users) + sum(each not in self._users for each in beside) >= USERS_MAX:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION, f"{USERS_MAX} users have credentials, no more can."
            )

    def replace(self, credentials: Mapping[str, Credentials]) -> None:
        """Replace the credentials of these users, durably, for all of them or none.

        A user without any is forgotten. `check_room` is asked before, for each of the others.
        """
        # The catalog first: memory never says what the disk might not have.
        self._catalog.set_scram_credentials(
            {user: difference(self.of(user), each) for user, each in credentials.items()}
        )
        for user, each in credentials.items():
            if each:
                self._users[user] = dict(each)
                self._note_shapes(each)
            else:
                self._users.pop(user, None)
