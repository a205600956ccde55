"""Access control lists: one rule, filters over rules, and how rules match (KIP-11, KIP-290).

Codes are those of Kafka's ResourceType, PatternType, AclOperation and AclPermissionType.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from magnetar.config.addresses import parse_network
from magnetar.security.principal import parse_principal

WILDCARD = "*"
#: What makes the host of a rule a network: 10.0.0.0/8. Apache Kafka has these since 4.4.
NETWORK_SIGN = "/"
CLUSTER_NAME = "kafka-cluster"
#: The principal of rules that are for all.
EVERYONE = "User:*"


class Resource(IntEnum):
    """What an ACL is about."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Pattern(IntEnum):
    """How the name of an ACL is read; ANY and MATCH are for filters."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """What an ACL allows or denies."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """Whether an ACL denies or allows."""

    ANY = 1
    DENY = 2
    ALLOW = 3


#: What each operation follows from, where an ACL *allows* it. Denying implies nothing.
_IMPLIED_BY = {
    Operation.DESCRIBE: frozenset(
        {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}
_CONFIGS = frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS})
#: The operations that a kind of resource knows, ALL beside them.
#: Source: AclEntry.supportedOperations.
OPERATIONS_OF = {
    Resource.TOPIC: _CONFIGS
    | {
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.ALTER,
    },
    Resource.GROUP: _CONFIGS | {Operation.READ, Operation.DESCRIBE, Operation.DELETE},
    Resource.CLUSTER: _CONFIGS
    | {
        Operation.CREATE,
        Operation.CLUSTER_ACTION,
        Operation.IDEMPOTENT_WRITE,
        Operation.ALTER,
        Operation.DESCRIBE,
    },
    Resource.TRANSACTIONAL_ID: frozenset(
        {Operation.DESCRIBE, Operation.WRITE, Operation.TWO_PHASE_COMMIT}
    ),
    Resource.DELEGATION_TOKEN: frozenset({Operation.DESCRIBE}),
    Resource.USER: frozenset({Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS}),
}


class Acl(NamedTuple):
    """One rule: `principal` from `host` is allowed or denied an operation on named resources."""

    resource: Resource
    name: str
    pattern: Pattern
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def covers(self, name: str) -> bool:
        """Return whether the rule is about the resource of this name."""
        if self.pattern is Pattern.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, WILDCARD)

    def decides(self, operation: Operation) -> bool:
        """Return whether the rule is about the operation; an allowed one may imply it."""
        if self.operation in (operation, Operation.ALL):
            return True
        implied_by = _IMPLIED_BY.get(operation, frozenset())
        return self.permission is Permission.ALLOW and self.operation in implied_by

    def __str__(self) -> str:
        return (
            f"{self.permission.name} {self.principal} from {self.host}: {self.operation.name} on"
            f" {self.resource.name}:{self.pattern.name}:{self.name}"
        )


def acl_of(
    resource: int,
    name: str,
    pattern: int,
    principal: str,
    host: str,
    operation: int,
    permission: int,
) -> Acl:
    """Return a rule of these codes. Raises ValueError for a code that does not exist."""
    return Acl(
        Resource(resource),
        name,
        Pattern(pattern),
        principal,
        host,
        Operation(operation),
        Permission(permission),
    )


def check_acl(acl: Acl) -> None:
    """Raise ValueError for a rule that cannot be created; its text says why."""
    if acl.resource is Resource.ANY or acl.pattern in (Pattern.ANY, Pattern.MATCH):
        raise ValueError("ANY and MATCH are for filters, an ACL names one kind of resource")
    if acl.operation is Operation.ANY or acl.permission is Permission.ANY:
        raise ValueError("ANY is for filters, an ACL names one operation and one permission")
    if not acl.name:
        raise ValueError("Resource name should not be empty")
    if not acl.host:
        raise ValueError("Host should not be empty")
    if NETWORK_SIGN in acl.host:
        parse_network(acl.host)
    if acl.resource is Resource.CLUSTER and acl.name != CLUSTER_NAME:
        raise ValueError(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    parse_principal(acl.principal)


class AclFilter(NamedTuple):
    """Which rules to describe or delete; None and ANY match all (KIP-140, KIP-290)."""

    resource: int
    name: str | None
    pattern: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def matches(self, acl: Acl) -> bool:
        """Return whether a rule is one of those asked for."""
        return (
            self.resource in (Resource.ANY, acl.resource)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
            and self._matches_name(acl)
        )

    def _matches_name(self, acl: Acl) -> bool:
        # MATCH: every rule that is about the resource of that name.
        if self.pattern == Pattern.MATCH:
            return self.name is None or acl.covers(self.name)
        is_pattern = self.pattern in (Pattern.ANY, acl.pattern)
        return is_pattern and self.name in (None, acl.name)
