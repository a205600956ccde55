"""The rules in memory are those of the catalog, and their version tells what they are about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from magnetar.config.load import Given, load
from magnetar.security.acls import Acl, Operation, Pattern, Permission, Resource
from magnetar.security.principal import Principal
from magnetar.storage.acls import Acls
from magnetar.storage.catalog import Catalog

ADA = Principal("User", "ada")


@pytest.fixture
def catalog() -> Iterator[Catalog]:
    with closing(Catalog(None)) as catalog:
        yield catalog


@pytest.fixture
def acls(catalog: Catalog) -> Acls:
    return Acls(load([Given("log.dirs", "none", "test")]).config, catalog)


def may_read(name: str, resource: Resource = Resource.TOPIC) -> Acl:
    ada = ("User:ada", "*", Operation.READ, Permission.ALLOW)
    return Acl(resource, name, Pattern.LITERAL, *ada)


def test_only_a_change_of_rules_about_topics_has_patterns_matched_again(
    catalog: Catalog, acls: Acls
) -> None:
    topic, group = may_read("orders"), may_read("readers", Resource.GROUP)
    version = acls.topics_version
    acls.add([group])
    acls.reload()
    acls.remove([group])
    catalog.add_acls([group])
    acls.reload(group)
    assert acls.topics_version == version
    acls.add([topic])
    assert acls.topics_version == version + 1
    # It is there already.
    acls.add([topic])
    acls.reload()
    acls.reload(topic)
    assert acls.topics_version == version + 1
    acls.remove([topic])
    assert acls.topics_version == version + 2


def test_the_rules_of_another_node_are_taken_over(catalog: Catalog, acls: Acls) -> None:
    kept, gone, new = map(may_read, ("kept", "gone", "new"))
    acls.add([kept, gone])
    catalog.remove_acls([gone])
    catalog.add_acls([new])
    acls.reload()
    assert acls.all() == (kept, new)
    assert all(type(acl) is Acl for acl in acls.all())
    allows = acls.authorizer.allows
    allowed = [
        allows(ADA, "127.0.0.1", Operation.READ, Resource.TOPIC, acl.name)
        for acl in (kept, gone, new)
    ]
    assert allowed == [True, False, True]
