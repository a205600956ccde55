"""Decisions about access: rules, prefixes, implications, super users; against a plain search."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.security.acls import (
    Acl,
    AclFilter,
    Operation,
    Pattern,
    Permission,
    Resource,
    acl_of,
    check_acl,
)
from magnetar.security.authorizer import Authorizer
from magnetar.security.principal import user

ADA, BOB = user("ada"), user("bob")
HOST = "10.0.0.1"


def acl(
    name: str,
    operation: Operation = Operation.READ,
    permission: Permission = Permission.ALLOW,
    *,
    pattern: Pattern = Pattern.LITERAL,
    principal: str = "User:ada",
    host: str = "*",
    resource: Resource = Resource.TOPIC,
) -> Acl:
    return Acl(resource, name, pattern, principal, host, operation, permission)


def allowed(
    acls: list[Acl], operation: Operation = Operation.READ, name: str = "orders", **flags: bool
) -> bool:
    authorizer = Authorizer(acls, ["User:root"], allow_everyone=flags.get("allow_everyone", False))
    return authorizer.allows(ADA, HOST, operation, Resource.TOPIC, name)


def test_what_no_rule_allows_is_denied_but_to_super_users() -> None:
    assert not allowed([])
    authorizer = Authorizer(
        [acl("orders", permission=Permission.DENY)], ["User:root"], allow_everyone=False
    )
    assert authorizer.allows(user("root"), HOST, Operation.READ, Resource.TOPIC, "orders")


@pytest.mark.parametrize(
    ("rule", "is_allowed"),
    [
        (acl("orders"), True),
        (acl("*"), True),
        (acl("ord", pattern=Pattern.PREFIXED), True),
        (acl("ord"), False),
        (acl("orders", principal="User:*"), True),
        (acl("orders", principal="User:bob"), False),
        (acl("orders", host=HOST), True),
        (acl("orders", host="10.0.0.2"), False),
        (acl("orders", Operation.ALL), True),
        (acl("orders", Operation.WRITE), False),
        (acl("orders", resource=Resource.GROUP), False),
    ],
)
def test_a_rule_allows_what_it_names(rule: Acl, is_allowed: bool) -> None:
    assert allowed([rule]) is is_allowed


@pytest.mark.parametrize(
    ("written", "host"),
    [
        # As Java writes it, so Kafka's own ACLs have it.
        ("0:0:0:0:0:0:0:1", "::1"),
        ("::0001", "::1"),
        ("FE80::1", "fe80::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
    ],
)
def test_a_rule_is_about_an_address_in_whichever_text_it_has_it(written: str, host: str) -> None:
    rules = [acl("orders"), acl("orders", permission=Permission.DENY, host=written)]
    authorizer = Authorizer(rules, [], allow_everyone=False)
    for asked, is_allowed in ((host, False), ("10.0.0.2", True)):
        found = authorizer.allows(ADA, asked, Operation.READ, Resource.TOPIC, "orders")
        assert found is is_allowed


@pytest.mark.parametrize(
    ("network", "host", "is_in"),
    [
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.0.0.0", False),
        ("10.0.0.9/28", "10.0.0.1", True),  # The bits behind the prefix do not count.
        ("0.0.0.0/0", "10.0.0.1", True),
        ("10.0.0.1/32", "10.0.0.1", True),
        ("::/0", "10.0.0.1", False),
        ("0.0.0.0/0", "::1", False),
        ("0:0:0:0:0:0:0:0/127", "::1", True),
        ("fe80::/10", "::1", False),
        # No client has these, but a catalog, or a socket without an address, may.
        ("no network/8", "10.0.0.1", False),
        ("10.0.0.0/8", "", False),
    ],
)
def test_a_rule_may_be_about_a_network(network: str, host: str, is_in: bool) -> None:
    """Apache Kafka has such rules since 4.4."""
    rules = [acl("orders"), acl("orders", permission=Permission.DENY, host=network)]
    authorizer = Authorizer(rules, [], allow_everyone=False)
    assert authorizer.allows(ADA, host, Operation.READ, Resource.TOPIC, "orders") is not is_in
    some = authorizer.allows_some(ADA, host, Operation.READ, Resource.TOPIC)
    assert some is not is_in


@pytest.mark.parametrize(
    "host",
    [
        *("10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/+8", "10.0.0.0/8 ", " 10.0.0.0/8", "10.0.0/8"),
        *("10.0.0.0/", "/8", "/", "a.name/24", "10.0.0.0/255.0.0.0", "10.0.0.256/8", "*/8"),
        *("::1/129", "::zz/8", "::ffff:10.0.0.0/104", "10.0.0.0/8/8", "10.0.0.0/\u0668", ""),
    ],
)
def test_what_is_no_network_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="network|Host"):
        check_acl(acl("orders", host=host))


def test_denying_wins_over_allowing() -> None:
    denying = acl("ord", permission=Permission.DENY, pattern=Pattern.PREFIXED)
    assert not allowed([acl("orders"), denying])


@pytest.mark.parametrize(
    ("operation", "implied"),
    [
        (Operation.READ, Operation.DESCRIBE),
        (Operation.WRITE, Operation.DESCRIBE),
        (Operation.DELETE, Operation.DESCRIBE),
        (Operation.ALTER, Operation.DESCRIBE),
        (Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS),
    ],
)
def test_allowing_implies_describing_and_denying_does_not(
    operation: Operation, implied: Operation
) -> None:
    assert allowed([acl("orders", operation)], implied)
    denying = acl("orders", operation, Permission.DENY)
    assert allowed([acl("orders", implied), denying], implied)


def test_everyone_is_allowed_only_where_no_rule_is_about_the_resource() -> None:
    assert allowed([], allow_everyone=True)
    assert not allowed([acl("orders", principal="User:bob")], allow_everyone=True)


@pytest.mark.parametrize(
    ("acls", "is_allowed"),
    [
        ([], False),
        ([acl("orders")], True),
        ([acl("*"), acl("orders", permission=Permission.DENY)], True),
        ([acl("orders"), acl("orders", permission=Permission.DENY)], False),
        (
            [acl("orders"), acl("ord", permission=Permission.DENY, pattern=Pattern.PREFIXED)],
            False,
        ),
        (
            [
                acl("o", pattern=Pattern.PREFIXED),
                acl("ord", permission=Permission.DENY, pattern=Pattern.PREFIXED),
            ],
            True,
        ),
        ([acl("*"), acl("*", permission=Permission.DENY)], False),
    ],
)
def test_some_resource_is_allowed_unless_a_denial_takes_it_away(
    acls: list[Acl], is_allowed: bool
) -> None:
    authorizer = Authorizer(acls, [], allow_everyone=False)
    assert authorizer.allows_some(ADA, HOST, Operation.READ, Resource.TOPIC) is is_allowed


def test_some_resource_without_a_rule_is_allowed_unless_a_rule_is_about_all() -> None:
    of_bob = acl("orders", principal="User:bob")
    of_all = acl("*", principal="User:bob")
    for acls, is_allowed in (([], True), ([of_bob], True), ([of_all], False)):
        authorizer = Authorizer(acls, [], allow_everyone=True)
        assert authorizer.allows_some(ADA, HOST, Operation.READ, Resource.TOPIC) is is_allowed


NAMES = st.text("ab*", min_size=1, max_size=4)
RULES = st.builds(
    Acl,
    st.just(Resource.TOPIC),
    NAMES,
    st.sampled_from([Pattern.LITERAL, Pattern.PREFIXED]),
    st.sampled_from(["User:ada", "User:bob", "User:*"]),
    st.sampled_from([HOST, "*", "other", "10.0.0.0/24", "10.9.9.9/8", "10.0.1.0/24"]),
    st.sampled_from([Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL]),
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)


def is_for_ada(rule: Acl) -> bool:
    hosts = (HOST, "*", "10.0.0.0/24", "10.9.9.9/8")
    return rule.principal in ("User:ada", "User:*") and rule.host in hosts


@given(st.sets(RULES, max_size=12), st.sets(RULES, max_size=6), NAMES)
def test_decisions_are_those_of_a_search_through_all_rules(
    acls: set[Acl], added: set[Acl], name: str
) -> None:
    authorizer = Authorizer(acls, [], allow_everyone=False)
    for operation in (Operation.READ, Operation.DESCRIBE):
        # Asked first, so that the change below must forget the answer.
        authorizer.allows(ADA, HOST, operation, Resource.TOPIC, name)
    new, gone = added - acls, {rule for rule in acls if rule.name < "b"}
    authorizer.add(new)
    authorizer.remove(gone)
    rules = [rule for rule in (acls | new) - gone if rule.covers(name)]
    for operation in (Operation.READ, Operation.DESCRIBE):
        fitting = {
            rule.permission for rule in rules if is_for_ada(rule) and rule.decides(operation)
        }
        expected = Permission.DENY not in fitting and Permission.ALLOW in fitting
        assert authorizer.allows(ADA, HOST, operation, Resource.TOPIC, name) is expected


@given(st.sets(RULES, max_size=12))
def test_some_is_allowed_as_by_a_search_through_all_denials(acls: set[Acl]) -> None:
    authorizer = Authorizer(acls, [], allow_everyone=False)
    for operation in (Operation.READ, Operation.DESCRIBE):
        rules = [each for each in acls if is_for_ada(each) and each.decides(operation)]
        denials = [each for each in rules if each.permission is Permission.DENY]
        expected = ("*", Pattern.LITERAL) not in {
            (each.name, each.pattern) for each in denials
        } and any(
            each.permission is Permission.ALLOW
            and ((each.name == "*") or not any(_takes_away(denial, each) for denial in denials))
            for each in rules
        )
        assert authorizer.allows_some(ADA, HOST, operation, Resource.TOPIC) is expected


def _takes_away(denial: Acl, rule: Acl) -> bool:
    if denial.pattern is Pattern.PREFIXED:
        return rule.name.startswith(denial.name)
    return rule.pattern is Pattern.LITERAL and rule.name == denial.name


def test_some_among_many_denials_takes_no_longer_than_to_read_them() -> None:
    # Each denial takes away one of the rules that allow: none is left.
    denials = [
        acl(f"{number:06d}", permission=Permission.DENY, pattern=Pattern.PREFIXED)
        for number in range(10_000)
    ]
    rules = [acl(f"{number:06d}-orders") for number in range(10_000)]
    authorizer = Authorizer(denials + rules, [], allow_everyone=False)
    began_s = time.thread_time()
    assert not authorizer.allows_some(ADA, HOST, Operation.READ, Resource.TOPIC)
    assert time.thread_time() - began_s < 0.25


class Counted(Acl):
    """A rule that counts how often it is looked at."""

    looked_at = 0

    def decides(self, operation: Operation) -> bool:
        Counted.looked_at += 1
        return super().decides(operation)


def looked_at(authorizer: Authorizer, name: str) -> int:
    Counted.looked_at = 0
    authorizer.allows(ADA, HOST, Operation.WRITE, Resource.TOPIC, name)
    authorizer.allows_some(ADA, HOST, Operation.ALTER, Resource.TOPIC)
    return Counted.looked_at


def test_a_decision_among_the_rules_of_many_hosts_looks_at_those_of_one() -> None:
    """50,000 rules of one user for networks took a second at each new name."""
    rules = [
        Counted(*acl("*", host=f"10.{number >> 8}.{number & 255}.0/24")) for number in range(10_000)
    ]
    rules += [Counted(*acl("*", host=f"10.77.0.{number}")) for number in range(200)]
    rules += [Counted(*acl("*", host="10.0.0.77/25")), Counted(*acl("*", host=HOST))]
    assert looked_at(Authorizer(rules, [], allow_everyone=False), "orders") == 6


def test_a_decision_among_many_rules_looks_at_the_few_that_are_about_it() -> None:
    others = [
        Counted(*acl(name, pattern=pattern, principal=f"User:{number}"))
        for number in range(10_000)
        for name, pattern in (
            # What all have rules for, and what each has of its own.
            ("*", Pattern.LITERAL),
            ("a", Pattern.PREFIXED),
            (f"a{number}", Pattern.LITERAL),
            (f"a{number}", Pattern.PREFIXED),
        )
    ]
    own = [
        Counted(*acl("*", principal="User:*")),
        Counted(*acl("a77")),
        Counted(*acl("a", pattern=Pattern.PREFIXED)),
    ]
    authorizer = Authorizer(others + own, [], allow_everyone=False)
    # Three are about the topic, and for some topic the same three are asked.
    assert looked_at(authorizer, "a7777") <= 6
    assert looked_at(authorizer, "b") <= 1
    assert looked_at(authorizer, "a7777") == 0
    # A name that is too long to be remembered costs no more.
    assert looked_at(authorizer, "a" * 30_000) <= 3
    assert looked_at(authorizer, "a" * 30_000) <= 3
    authorizer.remove(others)
    assert looked_at(authorizer, "a7777") <= 6
    authorizer.remove(own)
    assert looked_at(authorizer, "a7777") == 0


def test_what_is_remembered_is_bounded() -> None:
    authorizer = Authorizer([acl("a")], [], allow_everyone=False)
    for number in range(200):
        authorizer.allows(ADA, HOST, Operation.READ, Resource.GROUP, f"{number}" + "x" * 300)
    assert not authorizer._remembered
    authorizer.allows(ADA, HOST, Operation.READ, Resource.GROUP, "group")
    assert len(authorizer._remembered) == 1


@pytest.mark.parametrize(
    "codes",
    [
        (1, "orders", 3, "User:ada", "*", 3, 3),
        (9, "orders", 3, "User:ada", "*", 3, 3),
        (2, "", 3, "User:ada", "*", 3, 3),
        (2, "orders", 2, "User:ada", "*", 3, 3),
        (2, "orders", 3, "ada", "*", 3, 3),
        (2, "orders", 3, "User:ada", "", 3, 3),
        (2, "orders", 3, "User:ada", "*", 1, 3),
        (2, "orders", 3, "User:ada", "*", 3, 1),
    ],
)
def test_a_rule_that_cannot_be_is_refused(
    codes: tuple[int, str, int, str, str, int, int],
) -> None:
    with pytest.raises(ValueError):
        check_acl(acl_of(*codes))


@pytest.mark.parametrize(
    ("name", "pattern", "matching"),
    [
        (None, Pattern.ANY, {"orders", "ord", "*"}),
        ("orders", Pattern.MATCH, {"orders", "ord", "*"}),
        ("ord", Pattern.ANY, {"ord"}),
        ("ord", Pattern.LITERAL, set()),
        ("ord", Pattern.PREFIXED, {"ord"}),
        ("*", Pattern.LITERAL, {"*"}),
    ],
)
def test_a_filter_finds_rules_by_the_name_or_by_what_they_are_about(
    name: str | None, pattern: Pattern, matching: set[str]
) -> None:
    rules = [acl("orders"), acl("ord", pattern=Pattern.PREFIXED), acl("*")]
    asked = AclFilter(Resource.ANY, name, pattern, None, None, Operation.ANY, Permission.ANY)
    assert {rule.name for rule in rules if asked.matches(rule)} == matching
