"""The range assignor: of each topic, contiguous partitions to each of its readers, in order.

Static members come in the order of their instance ids, so that a restart changes nothing. Topics
with as many partitions are split alike: partition n of one goes with partition n of the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from coordinator.groups.consumer.assignors import Reader, frozen
from coordinator.groups.consumer.partitions import Target


def assign_ranges(readers: list[Reader], counts: Mapping[UUID, int]) -> dict[str, Target]:
    """Return each member's target; the first ones of a topic's readers get one partition more."""
    ordered = sorted(
        readers,
        key=lambda reader: (
            reader.instance_id is None,
            reader.instance_id or reader.member_id,
        ),
    )
    assigned: dict[str, dict[UUID, set[int]]] = {reader.member_id: {} for reader in readers}
    for topic_id, count in counts.items():
        members = [reader.member_id for reader in ordered if topic_id in reader.topics]
        if not members:
            continue
        quota, more = divmod(count, len(members))
        start = 0
        for position, member_id in enumerate(members):
            end = start + quota + (position < more)
            assigned[member_id][topic_id] = set(range(start, end))
            start = end
    return frozen(assigned)
