"""The assignors of the consumer protocol: pure functions that say who reads which partition."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from uuid import UUID

from coordinator.groups.consumer.member import Target


@dataclass(frozen=True, slots=True)
class Reader:
    """A member as an assignor sees it: the topics it reads, and the target it had."""

    member_id: str
    instance_id: str | None
    topics: frozenset[UUID]
    target: Target


#: (readers in the order in which they joined, partition count by topic id) -> target by member id.
#: Each partition of a topic that anyone reads goes to exactly one reader of that topic. Equal
#: arguments give equal targets.
Assignor = Callable[[list[Reader], Mapping[UUID, int]], dict[str, Target]]


def frozen(assigned: Mapping[str, Mapping[UUID, set[int]]]) -> dict[str, Target]:
    """Return the assignments as targets, without the topics of which a member got nothing."""
    return {
        member_id: {
            topic_id: frozenset(partitions) for topic_id, partitions in topics.items() if partitions
        }
        for member_id, topics in assigned.items()
    }


def assign_ranges(readers: list[Reader], counts: Mapping[UUID, int]) -> dict[str, Target]:
    """Return each member's target: of each topic, one contiguous range of partitions.

    Where a topic does not divide evenly, its first readers get one partition more. Topics with the
    same readers and partition counts are split alike: one member reads partition n of all of them.
    """
    # Static members come first, by instance id. A restarted one has a new member id and must not
    # move.
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


Partition = tuple[UUID, int]


def assign_uniformly(readers: list[Reader], counts: Mapping[UUID, int]) -> dict[str, Target]:
    """Return each member's target: even shares, in which members keep what they can.

    Where all members read the same topics, shares differ by one partition at most, and no partition
    moves needlessly. Otherwise each unassigned partition goes to the reader of its topic that has
    the fewest partitions. Then partitions move from fuller to emptier readers of their topic, as
    long as a move makes the two more even.
    """
    if not readers:
        return {}
    kept, unassigned = _keep(readers, counts)
    if all(reader.topics == readers[0].topics for reader in readers):
        _share_equally(kept, unassigned)
    else:
        _share_by_topic(readers, kept, unassigned)
    assigned: dict[str, dict[UUID, set[int]]] = {}
    for member_id, partitions in kept.items():
        topics = assigned[member_id] = {}
        for topic_id, partition in partitions:
            topics.setdefault(topic_id, set()).add(partition)
    return frozen(assigned)


def _keep(
    readers: list[Reader], counts: Mapping[UUID, int]
) -> tuple[dict[str, list[Partition]], list[Partition]]:
    """Return the partitions that each member keeps, and those for new readers, in order."""
    kept: dict[str, list[Partition]] = {}
    taken: dict[UUID, set[int]] = {}
    for reader in readers:
        mine = kept[reader.member_id] = []
        for topic_id, partitions in reader.target.items():
            if topic_id not in reader.topics or topic_id not in counts:
                continue
            taken_here = taken.setdefault(topic_id, set())
            # A partition that two targets name stays with the first of the two readers.
            for partition in sorted(partitions - taken_here):
                if partition < counts[topic_id]:
                    mine.append((topic_id, partition))
                    taken_here.add(partition)
    read = {topic_id for reader in readers for topic_id in reader.topics}
    nothing: set[int] = set()
    unassigned = [
        (topic_id, partition)
        for topic_id, count in counts.items()
        if topic_id in read
        for partition in range(count)
        if partition not in taken.get(topic_id, nothing)
    ]
    return kept, unassigned


def _share_equally(kept: dict[str, list[Partition]], unassigned: list[Partition]) -> None:
    """Share among members that read the same topics, in place: cut to the quota, then fill up.

    O(partitions).
    """
    total = len(unassigned) + sum(map(len, kept.values()))
    quota, more = divmod(total, len(kept))
    spare = list(unassigned)
    for partitions in kept.values():
        limit = quota
        if len(partitions) > quota and more:
            limit, more = quota + 1, more - 1
        spare += partitions[limit:]
        del partitions[limit:]
    left = iter(spare)
    for partitions in kept.values():
        if len(partitions) < quota:
            partitions += islice(left, quota - len(partitions))
    for partitions in kept.values():
        if len(partitions) == quota and more:
            partitions += islice(left, 1)
            more -= 1


def _share_by_topic(
    readers: list[Reader], kept: dict[str, list[Partition]], unassigned: list[Partition]
) -> None:
    """Give each partition to its least loaded reader, then even out topic by topic."""
    by_topic: dict[UUID, list[str]] = {}
    for reader in readers:
        for topic_id in sorted(reader.topics):
            by_topic.setdefault(topic_id, []).append(reader.member_id)
    waiting: dict[UUID, list[int]] = {}
    for topic_id, partition in unassigned:
        waiting.setdefault(topic_id, []).append(partition)
    # Topics with the fewest readers come first: topics with many readers find room later too.
    for topic_id in sorted(waiting, key=lambda topic_id: len(by_topic[topic_id])):
        loads = _heap(by_topic[topic_id], kept)
        for partition in waiting[topic_id]:
            load, order, member_id = loads[0]
            kept[member_id].append((topic_id, partition))
            heapq.heapreplace(loads, (load + 1, order, member_id))
    # A list, because `any` would stop a generator at the first topic that moved a partition.
    while any([_even_out(topic_id, members, kept) for topic_id, members in by_topic.items()]):
        pass


def _heap(members: list[str], kept: dict[str, list[Partition]]) -> list[tuple[int, int, str]]:
    """Return a heap of (load, position in `members`, member id), the least loaded at the top."""
    heap = [(len(kept[member_id]), order, member_id) for order, member_id in enumerate(members)]
    heapq.heapify(heap)
    return heap


def _even_out(topic_id: UUID, members: list[str], kept: dict[str, list[Partition]]) -> bool:
    """Move a topic's partitions from the fullest to the emptiest reader while that evens them out.

    Returns whether any moved. The rounds end, because each move lessens the sum of the squares of
    all loads.
    """
    mine: dict[str, list[Partition]] = {}
    for member_id in members:
        found = [each for each in kept[member_id] if each[0] == topic_id]
        if found:
            mine[member_id] = found
    least = _heap(members, kept)
    most = [(-load, order, member_id) for load, order, member_id in least if member_id in mine]
    heapq.heapify(most)
    moved = False
    while most:
        load, order, member_id = most[0]
        fewest, position, other = least[0]
        if -load != len(kept[member_id]):
            # The load has changed since this entry was made: correct the entry, and look again.
            heapq.heapreplace(most, (-len(kept[member_id]), order, member_id))
            continue
        if fewest != len(kept[other]):
            heapq.heapreplace(least, (len(kept[other]), position, other))
            continue
        if -load - fewest < 2:
            break
        partition = mine[member_id].pop()
        kept[member_id].remove(partition)
        kept[other].append(partition)
        if other not in mine:
            heapq.heappush(most, (-fewest - 1, position, other))
        mine.setdefault(other, []).append(partition)
        heapq.heapreplace(least, (fewest + 1, position, other))
        if mine[member_id]:
            heapq.heapreplace(most, (load + 1, order, member_id))
        else:
            heapq.heappop(most)
            del mine[member_id]
        moved = True
    return moved
