"""Users of SCRAM: kept in the catalog, held in memory, by name and mechanism (KIP-554).

A user that does not exist gets a decoy, which looks like the credential of one that does. Which one
follows from the stored users and the broker's secret alone: all nodes, and a broker before and
after a restart, show a stranger the same decoy. One user that comes or goes changes few decoys.
"""

from __future__ import annotations

import hmac
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping

from magnetar.security.scram import HASHES, USUAL_SHAPE, ScramCredential, decoy, shape_of
from magnetar.storage.catalog import Catalog
from magnetar.storage.differences import difference
from magnetar.storage.kept_names import check_length
from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: Most users with credentials: all of them are held in memory.
USERS_MAX = 100_000

#: A user's credentials by the mechanism's name.
Credentials = Mapping[str, ScramCredential]


class ScramCredentials:
    """The credentials of every user."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._secret = catalog.secret()
        self._users = self._read()
        #: By mechanism, its users in an order that no client can tell.
        self._order = {
            mechanism: sorted(
                self._place(user, mechanism)
                for user, credentials in self._users.items()
                if mechanism in credentials
            )
            for mechanism in HASHES
        }

    def reload(self, *users: str) -> None:
        """Read these users' credentials again: another node may have changed them."""
        # The catalog may not answer: then the users stay as they are known.
        stored = self._read(*users)
        for user in users:
            self._take(user, stored.get(user, {}))

    def _read(self, *users: str) -> dict[str, dict[str, ScramCredential]]:
        found: dict[str, dict[str, ScramCredential]] = {}
        for row in self._catalog.scram_credentials(*users):
            name, mechanism, salt, iterations, stored_key, server_key = row
            found.setdefault(name, {})[mechanism] = ScramCredential(
                salt, iterations, stored_key, server_key
            )
        return found

    def find(self, user: str, mechanism: str) -> ScramCredential | None:
        """Return a user's credential for a mechanism, where there is one."""
        return self._users.get(user, {}).get(mechanism)

    def decoy(self, user: str, mechanism: str) -> ScramCredential:
        """Return the credential of a user that does not exist: it looks like that of the user who
        comes next in the order."""
        order = self._order[mechanism]
        shape = USUAL_SHAPE
        if order:
            after = bisect_left(order, self._place(user, mechanism))
            _, next_one = order[after % len(order)]
            shape = shape_of(self._users[next_one][mechanism])
        return decoy(mechanism, user, self._secret, shape)

    def _place(self, user: str, mechanism: str) -> tuple[bytes, str]:
        return hmac.digest(self._secret, f"{mechanism} {user}".encode(), "sha256"), user

    def _take(self, user: str, credentials: Credentials) -> None:
        """Let a user have these credentials; without any it is forgotten."""
        if credentials:
            self._users[user] = dict(credentials)
        else:
            self._users.pop(user, None)
        for mechanism, order in self._order.items():
            place = self._place(user, mechanism)
            at = bisect_left(order, place)
            if order[at : at + 1] == [place]:
                del order[at]
            if mechanism in self.of(user):
                order.insert(at, place)

    def of(self, user: str) -> Credentials:
        """Return all credentials of a user; none for an unknown one."""
        return self._users.get(user, {})

    def users(self) -> Iterable[str]:
        """Return the names of all users, sorted."""
        return sorted(self._users)

    def check_room(self, user: str, beside: Collection[str]) -> None:
        """Raise POLICY_VIOLATION for one user too many, `beside` others that get credentials, and
        for a new one whose name is too long."""
        if user in self._users:
            return
        check_length(user)
        if len(self._users) + len(beside) < USERS_MAX:
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
            self._take(user, each)
