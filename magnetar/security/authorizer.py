"""Decides what a principal may do, as Kafka's StandardAuthorizer decides it (KIP-801).

A request is denied if any rule denies it. Otherwise it is allowed if any rule allows it. If no rule
is about the resource at all, `allow.everyone.if.no.acl.found` decides. Otherwise it is denied.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from magnetar.config.addresses import networks_around, parse_network, plain_address
from magnetar.security.acls import (
    CLUSTER_NAME,
    EVERYONE,
    NETWORK_SIGN,
    WILDCARD,
    Acl,
    Operation,
    Pattern,
    Permission,
    Resource,
)
from magnetar.security.principal import Principal

#: Decisions that are remembered. When there are more, all are forgotten: clients choose the names.
_REMEMBERED_MAX = 100_000
#: A decision about a longer name is made each time. Topics have shorter ones.
_REMEMBERED_NAME_MAX = 256
_RESOURCES = max(Resource) + 1


class Decision(NamedTuple):
    """Whether a request is allowed, and the rule that decided; None: no rule decided."""

    is_allowed: bool
    rule: Acl | None


#: The rules of one name, by principal and by host. Those of both keep the order of their creation.
_ByPrincipal = dict[str, dict[str, dict[Acl, None]]]


class _Hosts:
    """The hosts of rules, each by one text: what a client's address is looked for by.

    A rule is about all addresses, one, or a network. One principal may have rules for thousands.
    """

    def __init__(self) -> None:
        #: The prefix lengths of networks. Those of rules that are gone stay.
        self._prefix_lengths: set[int] = set()
        self._around: dict[str, Sequence[str]] = {}

    def of(self, acl: Acl) -> str:
        """Return the one text of the rule's host."""
        if acl.host == WILDCARD:
            return WILDCARD
        if NETWORK_SIGN not in acl.host:
            return plain_address(acl.host)
        try:
            network = parse_network(acl.host)
        except ValueError:
            return acl.host  # No client has an address like this.
        if network.prefixlen not in self._prefix_lengths:
            self._prefix_lengths.add(network.prefixlen)
            self._around.clear()
        return str(network)

    def around(self, host: str) -> Sequence[str]:
        """Return the texts of the hosts that include `host`, which is in its one text itself."""
        found = self._around.get(host)
        if found is None:
            found = (WILDCARD, host, *networks_around(host, self._prefix_lengths))
            if len(self._around) >= _REMEMBERED_MAX:
                self._around.clear()
            self._around[host] = found
        return found


class _Rules:
    """The rules about one kind of resource, by the names of resources and by principals."""

    def __init__(self, hosts: _Hosts) -> None:
        self._hosts = hosts
        self.literal: dict[str, _ByPrincipal] = {}
        self.prefixed: dict[str, _ByPrincipal] = {}
        #: The prefixes, sorted: the prefixes of a name come before the name.
        self.prefixes: list[str] = []
        #: By principal, all of its rules.
        self.of: _ByPrincipal = {}

    def add(self, acl: Acl) -> None:
        by_name = self._by_name(acl)
        if acl.pattern is Pattern.PREFIXED and acl.name not in by_name:
            insort(self.prefixes, acl.name)
        host = self._hosts.of(acl)
        for by_principal in (by_name.setdefault(acl.name, {}), self.of):
            by_principal.setdefault(acl.principal, {}).setdefault(host, {})[acl] = None

    def remove(self, acl: Acl) -> None:
        by_name, host = self._by_name(acl), self._hosts.of(acl)
        _remove(self.of, acl, host)
        if not _remove(by_name[acl.name], acl, host):
            return
        del by_name[acl.name]
        if acl.pattern is Pattern.PREFIXED:
            del self.prefixes[bisect_left(self.prefixes, acl.name)]

    def _by_name(self, acl: Acl) -> dict[str, _ByPrincipal]:
        return self.prefixed if acl.pattern is Pattern.PREFIXED else self.literal

    def about(self, name: str) -> Iterator[_ByPrincipal]:
        """Return the rules about the resource of this name, for each name that they have."""
        if name in self.literal:
            yield self.literal[name]
        if name != WILDCARD and WILDCARD in self.literal:
            yield self.literal[WILDCARD]
        end = bisect_right(self.prefixes, name)
        while end:
            prefix = self.prefixes[end - 1]
            if name.startswith(prefix):
                yield self.prefixed[prefix]
                end -= 1
                continue
            # No prefix that is longer than the common beginning of the two can fit the name.
            common = _common_length(prefix, name)
            end = bisect_right(self.prefixes, name[:common], 0, end - 1)


def _remove(rules: _ByPrincipal, acl: Acl, host: str) -> bool:
    """Remove a rule; return whether none is left."""
    of_principal = rules[acl.principal]
    of_host = of_principal[host]
    del of_host[acl]
    if not of_host:
        del of_principal[host]
    if not of_principal:
        del rules[acl.principal]
    return not rules


class Authorizer:
    """The rules of a cluster, and the decisions that follow from them."""

    def __init__(
        self, acls: Iterable[Acl], super_users: Iterable[str], *, allow_everyone: bool
    ) -> None:
        """`allow_everyone`: whether everything is allowed on resources without any rule."""
        self._super_users = frozenset(super_users)
        self._allow_everyone = allow_everyone
        self._hosts = _Hosts()
        self._rules = {resource: _Rules(self._hosts) for resource in Resource}
        self._remembered: dict[tuple[Principal, str, int, str], bool] = {}
        self._some: dict[tuple[Principal, str, Operation, Resource], bool] = {}
        for acl in acls:
            self._rules[acl.resource].add(acl)

    def add(self, acls: Iterable[Acl]) -> None:
        """Add these rules, which must be new."""
        for acl in acls:
            self._rules[acl.resource].add(acl)
        self._forget()

    def remove(self, acls: Iterable[Acl]) -> None:
        """Remove these rules, which must exist."""
        for acl in acls:
            self._rules[acl.resource].remove(acl)
        self._forget()

    def _forget(self) -> None:
        self._remembered.clear()
        self._some.clear()

    def is_super_user(self, principal: Principal) -> bool:
        """Return whether `super.users` names the principal: no rule is asked."""
        return str(principal) in self._super_users

    def allows(
        self,
        principal: Principal,
        host: str,
        operation: Operation,
        resource: Resource,
        name: str = CLUSTER_NAME,
    ) -> bool:
        """Return whether `principal` may do this from the address `host`."""
        # A number for both: an Enum's hash is a call of Python's.
        key = (principal, host, operation * _RESOURCES + resource, name)
        allowed = self._remembered.get(key)
        if allowed is None:
            allowed = self.decide(principal, host, operation, resource, name).is_allowed
            if len(self._remembered) >= _REMEMBERED_MAX:
                self._remembered.clear()
            # A client could fill the memory with long names of things that need not exist.
            if len(name) <= _REMEMBERED_NAME_MAX:
                self._remembered[key] = allowed
        return allowed

    def decide(
        self, principal: Principal, host: str, operation: Operation, resource: Resource, name: str
    ) -> Decision:
        """Return the decision and the rule behind it, without remembering it."""
        who = str(principal)
        if who in self._super_users:
            return Decision(True, None)
        allowing: Acl | None = None
        is_any = False
        hosts = self._hosts.around(host)
        for by_principal in self._rules[resource].about(name):
            is_any = True
            for acl in _for(by_principal, who, hosts):
                if not acl.decides(operation):
                    continue
                if acl.permission is Permission.DENY:
                    return Decision(False, acl)
                allowing = allowing or acl
        if allowing is not None:
            return Decision(True, allowing)
        return Decision(self._allow_everyone and not is_any, None)

    def allows_some(
        self, principal: Principal, host: str, operation: Operation, resource: Resource
    ) -> bool:
        """Return whether `principal` may do this on at least one resource of a kind.

        Source: Authorizer.authorizeByResourceType. A rule that denies all denies; one that denies
        a name or a prefix takes away what lies within it.
        """
        key = (principal, host, operation, resource)
        allowed = self._some.get(key)
        if allowed is None:
            allowed = self._decide_some(str(principal), host, operation, resource)
            if len(self._some) >= _REMEMBERED_MAX:
                self._some.clear()
            self._some[key] = allowed
        return allowed

    def _decide_some(self, who: str, host: str, operation: Operation, resource: Resource) -> bool:
        if who in self._super_users:
            return True
        rules = [
            acl
            for acl in _for(self._rules[resource].of, who, self._hosts.around(host))
            if acl.decides(operation)
        ]
        denied = [acl for acl in rules if acl.permission is Permission.DENY]
        denied_prefixes = _shortest(acl.name for acl in denied if acl.pattern is Pattern.PREFIXED)
        denied_names = {acl.name for acl in denied if acl.pattern is Pattern.LITERAL}
        if WILDCARD in denied_names:
            return False
        if self._allow_everyone and WILDCARD not in self._rules[resource].literal:
            # Some name has no rule. With one for all names, none is without.
            return True
        return any(
            acl.name == WILDCARD
            or not (
                _has_prefix(acl.name, denied_prefixes)
                or (acl.pattern is Pattern.LITERAL and acl.name in denied_names)
            )
            for acl in rules
            if acl.permission is Permission.ALLOW
        )


def _for(rules: _ByPrincipal, who: str, hosts: Sequence[str]) -> Iterator[Acl]:
    """Return the rules for one principal, and for everyone, from one of these hosts."""
    for principal in (who, EVERYONE):
        if by_host := rules.get(principal):
            for host in hosts:
                yield from by_host.get(host, ())


def _shortest(prefixes: Iterable[str]) -> list[str]:
    """Return the prefixes, sorted, without those that begin with another one."""
    kept: list[str] = []
    for prefix in sorted(prefixes):
        # What begins with a prefix follows it at once.
        if not (kept and prefix.startswith(kept[-1])):
            kept.append(prefix)
    return kept


def _has_prefix(name: str, prefixes: Sequence[str]) -> bool:
    """Return whether the name begins with one of the prefixes, as `_shortest` returns them."""
    # No other one stands between a name and its prefix.
    before = bisect_right(prefixes, name)
    return before > 0 and name.startswith(prefixes[before - 1])


def _common_length(one: str, other: str) -> int:
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length
