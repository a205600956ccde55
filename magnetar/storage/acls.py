"""The access control lists: kept in the catalog, held in memory by the authorizer."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import starmap

from magnetar.config.broker import BrokerConfig
from magnetar.config.load import ConfigError
from magnetar.config.security import AuthorizationConfig
from magnetar.security.acls import Acl, Resource, acl_of
from magnetar.security.authorizer import Authorizer
from magnetar.security.principal import parse_principal
from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_rows import AclRow
from magnetar.storage.kept_names import check_length
from wire.error_code import ErrorCode
from wire.errors import KafkaError

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
#: Most rules: all of them are held in memory.
ACLS_MAX = 200_000


class Acls:
    """The rules of a cluster with an authorizer."""

    def __init__(self, config: BrokerConfig, catalog: Catalog) -> None:
        """Raises ConfigError for `super.users` that are none."""
        settings = config.view(AuthorizationConfig)
        #: Rises with every change of rules about topics.
        self.topics_version = 0
        self._catalog = catalog
        # A dict in place of a set: rules are described in the order in which they were made.
        self._acls = dict.fromkeys(starmap(acl_of, catalog.acls()))
        self.authorizer = Authorizer(
            self._acls,
            _super_users(settings.super_users),
            allow_everyone=settings.allow_everyone_if_no_acl_found,
        )

    def check_room(self, acls: Collection[Acl]) -> None:
        """Raise POLICY_VIOLATION where the rules would be too many with these."""
        # The new ones are counted only where it matters: that takes long for many.
        if len(self._acls) + len(acls) <= ACLS_MAX:
            return
        if len(self._acls) + sum(acl not in self._acls for acl in set(acls)) > ACLS_MAX:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"there are {ACLS_MAX} ACLs, no more can.")

    def check_texts(self, acl: Acl) -> None:
        """Raise POLICY_VIOLATION for a new rule with a name, principal or host that is too long."""
        if acl not in self._acls:
            for text in (acl.name, acl.principal, acl.host):
                check_length(text)

    def add(self, acls: Collection[Acl]) -> None:
        """Add rules, durably and all at once. Raises as `check_room`."""
        self.check_room(acls)
        new = [acl for acl in dict.fromkeys(acls) if acl not in self._acls]
        # The catalog first: memory never says what the disk might not have.
        self._catalog.add_acls(new)
        self._change(new, ())

    def remove(self, acls: Iterable[Acl]) -> None:
        """Remove rules, durably and all at once."""
        gone = [acl for acl in dict.fromkeys(acls) if acl in self._acls]
        self._catalog.remove_acls(gone)
        self._change((), gone)

    def reload(self, *rows: AclRow) -> None:
        """Read these rules again, or all of them: another node may have changed them."""
        # Not in a thread: this node might change its rules meanwhile, and lose the change to what
        # was read before.
        stored = dict.fromkeys(self._catalog.acls(*rows))
        # A rule is equal to its row. Only rows that are new are made rules: there may be many.
        asked = dict.fromkeys(rows) or stored
        new = [acl_of(*row) for row in asked if row in stored and row not in self._acls]
        known = [acl_of(*row) for row in asked if row in self._acls] if rows else self._acls
        self._change(new, [acl for acl in known if acl not in stored])

    def all(self) -> tuple[Acl, ...]:
        """Return every rule, in the order in which they were made."""
        return tuple(self._acls)

    def _change(self, new: Collection[Acl], gone: Collection[Acl]) -> None:
        """Follow the catalog, which has these new rules, and these no more."""
        for acl in gone:
            del self._acls[acl]
        self._acls.update(dict.fromkeys(new))
        self.authorizer.remove(gone)
        self.authorizer.add(new)
        if any(acl.resource is Resource.TOPIC for acl in (*new, *gone)):
            self.topics_version += 1


def load_acls(config: BrokerConfig, catalog: Catalog) -> Acls | None:
    """Return the rules, where an authorizer is configured. Raises ConfigError."""
    name = config.view(AuthorizationConfig).authorizer_class_name
    if not name:
        return None
    if name != STANDARD_AUTHORIZER:
        raise ConfigError(
            f"authorizer.class.name={name} cannot be loaded; the one served is"
            f" {STANDARD_AUTHORIZER}."
        )
    return Acls(config, catalog)


def _super_users(text: str) -> list[str]:
    users = [user for part in text.split(";") if (user := part.strip())]
    for user in users:
        try:
            parse_principal(user)
        except ValueError as mistake:
            raise ConfigError(f"super.users: {mistake}") from None
    return users
