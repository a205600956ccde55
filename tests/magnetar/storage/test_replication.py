"""Which servers a fail-over can lose something of."""

from __future__ import annotations

import pytest

from magnetar.storage.postgres_database import PostgresDatabase
from magnetar.storage.replication import Replication, read_replication


@pytest.mark.parametrize(
    ("replication", "may_lose"),
    [
        (Replication(0, 0, ""), False),
        # Commits wait until the standby is there.
        (Replication(0, 0, "*"), False),
        (Replication(2, 0, ""), True),
        (Replication(2, 1, "ANY 1 (*)"), False),
        # Named is another one than those that are connected.
        (Replication(1, 0, "elsewhere"), True),
        # A role that may not see states: the setting has to be believed.
        (Replication(1, 1, ""), True),
    ],
)
def test_only_standbys_that_nothing_waits_for_may_be_behind(
    replication: Replication, may_lose: bool
) -> None:
    assert replication.may_lose is may_lose


def test_a_server_without_standbys_is_as_durable_as_its_disk(postgres_url: str) -> None:
    database = PostgresDatabase(postgres_url)
    database.open("some cluster")
    assert read_replication(database) == Replication(0, 0, "")
    database.close()
