"""`World` with the real group coordinator in it: what it commits crashes with the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from coordinator.groups.committing import Committer
from coordinator.groups.offsets.committed import CommittedOffset
from coordinator.groups.offsets.store import FetchedOffset
from coordinator.partitioning import partition_for
from coordinator.transactions.metadata import ProducerIdentity, TopicPartition
from magnetar.config.broker import BrokerConfig
from magnetar.runtime.group_offsets import OffsetQuery
from magnetar.runtime.groups import Groups
from magnetar.runtime.participants import PendingAcks
from magnetar.runtime.turns import Turns
from magnetar.storage.stored_configs import StoredConfigs
from magnetar.storage.topic_names import CONSUMER_OFFSETS
from magnetar.storage.topics import Topics
from tests.magnetar.committing import durably
from tests.magnetar.transaction_world import World, WorldClock

GROUP = "group"
PARTITIONS = (0, 1)


class _NoConfigs:
    """No group has configs of its own."""

    def texts(self, resource_type: int, name: str) -> dict[str, str]:
        return {}


class GroupsWorld(World):
    """One group that reads topic a, and commits in transactions."""

    groups: Groups

    def pending_acks(self) -> PendingAcks:
        """The groups are new: they replay when first asked."""
        if hasattr(self, "groups"):
            self.groups.stop()
        config = BrokerConfig({"group.initial.rebalance.delay.ms": 0, "max.groups": 0})
        topics = cast("Topics", self)
        stored_configs = cast("StoredConfigs", _NoConfigs())
        self.groups = Groups(
            topics, stored_configs, WorldClock(self), config, self.failures.append, Turns()
        )
        return self.groups.shards

    @property
    def offsets_partition(self) -> TopicPartition:
        """Where the group's offsets are."""
        count = len(self.ensure_internal(CONSUMER_OFFSETS).partitions)
        return TopicPartition(CONSUMER_OFFSETS, partition_for(GROUP, count))

    async def commit(self, offset: int) -> None:
        """Commit `offset` for both partitions, outside any transaction."""
        await durably(
            self.groups.offsets.commit(
                Committer(group_id=GROUP), _commits(offset), knows_group_not_found=True
            )
        )

    async def stage(self, identity: ProducerIdentity, offset: int) -> None:
        """What TxnOffsetCommit does for both partitions."""
        log, end_offset = self.coordinator.holds.check_offsets(
            "tx", *identity, GROUP, is_abortable_known=True
        )
        await durably(
            self.groups.offsets.commit_in_transaction(
                Committer(group_id=GROUP),
                *identity,
                _commits(offset),
                knows_group_not_found=True,
            )
        )
        await log.durable(end_offset)

    async def begin_with_offsets(self, offset: int) -> ProducerIdentity:
        """Begin a transaction that holds the group, with `offset` pending durably."""
        identity = await self.init()
        await self.until(self.coordinator.holds.add_offsets("tx", identity, GROUP))
        await self.until(self.stage(identity, offset))
        return identity

    async def fetched(self, *, require_stable: bool = True) -> Sequence[FetchedOffset]:
        asked = [OffsetQuery("a", PARTITIONS)]
        (found,) = await self.until(
            self.groups.offsets.fetch(GROUP, asked, require_stable=require_stable)
        )
        return found.fetched()

    async def offset(self) -> int:
        """The committed offset, which is the same in both partitions, and stable."""
        found = await self.fetched()
        assert {fetched.error_code for fetched in found} == {0}
        (offset,) = {fetched.offset for fetched in found}
        return offset


def _commits(offset: int) -> list[tuple[str, int, CommittedOffset]]:
    return [("a", index, CommittedOffset(offset)) for index in PARTITIONS]
