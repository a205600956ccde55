"""What a directory says of a store that does not answer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from logstore.remote import remote_directory
from logstore.remote.commit_store import StoredLog, StoreUnavailable, Wanted
from tests.logstore.remote.simulated_store import SimulatedDatabase, SimulatedStore
from tests.logstore.remote.test_remote_directory import Node


class _AwayForLoads(SimulatedStore):
    """A store that does not answer the next `left` loads."""

    left = 0

    async def load(self, wanted: Sequence[Wanted]) -> list[StoredLog]:
        if self.left:
            self.left -= 1
            raise StoreUnavailable("too many connections")
        return await super().load(wanted)


async def test_logs_that_wait_for_the_store_say_so_once_each_time_it_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_directory, "_RETRY_S", 0)
    node = Node(SimulatedDatabase(), 1, make_store=_AwayForLoads)
    assert isinstance(node.store, _AwayForLoads)
    # A single failure is no trouble yet: a connection may break.
    for partition, (unanswered, told) in enumerate([(1, 0), (3, 1), (0, 1), (2, 2)]):
        node.store.left = unanswered
        await node.open(partition=partition)
        assert node.told == ["too many connections"] * told
    await node.directory.close()
    node.group_commit.close()
