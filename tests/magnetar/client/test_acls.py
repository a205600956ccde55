"""What the client refuses of rules before it asks a broker."""

from __future__ import annotations

from unittest.mock import create_autospec

import pytest

from magnetar.client.acls import Acl, Operation, Pattern, Permission, Resource, create_acls
from magnetar.client.cluster import Client
from magnetar.client.errors import ClientError


def test_an_operation_that_its_resource_does_not_have_is_taken_for_a_slip() -> None:
    rule = Acl(
        Resource.GROUP,
        "billing",
        Pattern.LITERAL,
        "User:ada",
        "*",
        Operation.WRITE,
        Permission.ALLOW,
    )
    client = create_autospec(Client)
    with pytest.raises(ClientError, match="GROUP has no operation WRITE"):
        create_acls(client, [rule])
    assert not client.mock_calls
