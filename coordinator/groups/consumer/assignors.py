"""The assignors of the consumer protocol: pure functions from members to their partitions."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from uuid import UUID

from coordinator.groups.consumer.member import Target


@dataclass(frozen=True, slots=True)
class Reader:
    """What an assignor knows of a member: the topics that it reads, and its last target."""

    member_id: str
    instance_id: str | None
    topics: frozenset[UUID]
    target: Target


#: (readers in the order in which they joined, partition count by topic id) -> target by member id.
#: Each partition of a topic that is read goes to exactly one reader of that topic. Equal
#: arguments give equal targets.
Assignor = Callable[[list[Reader], Mapping[UUID, int]], dict[str, Target]]


def assign_ranges(readers: list[Reader], counts: Mapping[UUID, int]) -> dict[str, Target]:
    """Return each member's target: one contiguous range of each topic's partitions.

    Where a topic does not divide evenly, its first readers get one partition more. Topics with the
    same readers and the same partition count are split alike: the member that reads partition n of
    one of them reads partition n of all.
    """
    # Static members come first, ordered by instance id. A restarted static member has a new member
    # id, but has to keep its place.
    ordered = sorted(
        readers,
        key=lambda reader: (
            reader.instance_id is None,
            reader.instance_id or reader.member_id,
        ),
    )
    assigned: dict[str, dict[UUID, frozenset[int]]] = {reader.member_id: {} for reader in readers}
    by_topic = _by_topic(ordered, counts)
    for topic_id, count in counts.items():
        members = by_topic[topic_id]
        if not members:
            continue
        quota, more = divmod(count, len(members))
        start = 0
        # Of more readers than partitions, the last have none: a thousand may read each topic.
        for position, member_id in enumerate(members[:count]):
            end = start + quota + (position < more)
            assigned[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(assigned)


def _by_topic(readers: list[Reader], topic_ids: Iterable[UUID]) -> dict[UUID, list[str]]:
    """Return the members that read each topic, in their order. Do not change the lists.

    Topics with the same readers share a list: a thousand members may read a thousand topics, and
    mostly the same ones.
    """
    places: dict[frozenset[UUID], list[int]] = {}
    for place, reader in enumerate(readers):
        places.setdefault(reader.topics, []).append(place)
    numbers: dict[UUID, list[int]] = {}
    for number, topics in enumerate(places):
        for topic_id in topics:
            numbers.setdefault(topic_id, []).append(number)
    places_of = [*places.values()]
    #: By the numbers of the subscriptions to a topic.
    members: dict[tuple[int, ...], list[str]] = {}
    found = {}
    for topic_id in topic_ids:
        subscriptions = (*numbers.get(topic_id, ()),)
        if subscriptions not in members:
            order = sorted(place for number in subscriptions for place in places_of[number])
            members[subscriptions] = [readers[place].member_id for place in order]
        found[topic_id] = members[subscriptions]
    return found


#: member id -> topic id -> the partitions that the member keeps or gets
Shares = dict[str, dict[UUID, list[int]]]
Unassigned = dict[UUID, list[int]]


def assign_uniformly(readers: list[Reader], counts: Mapping[UUID, int]) -> dict[str, Target]:
    """Return each member's target: even shares. Members keep as many partitions as evenness allows.

    Where all members read the same topics, two shares differ by one partition at most, and no
    partition moves without need. Otherwise each unassigned partition goes to the reader of its
    topic that has the fewest partitions. Then a partition moves from one reader of its topic to
    another, as long as such a move makes the loads of the two more even.
    """
    if not readers:
        return {}
    shares, unassigned = _keep(readers, counts)
    # A set finds that two are the same object before it compares their elements.
    if len({reader.topics for reader in readers}) == 1:
        _share_equally(shares, unassigned)
    else:
        _share_by_topic(readers, shares, unassigned)
    return {
        reader.member_id: _target(shares[reader.member_id], reader.target) for reader in readers
    }


def _target(share: dict[UUID, list[int]], before: Target) -> Target:
    """Return the share as a target: the object `before` itself if it is equal."""
    target = {topic_id: frozenset(mine) for topic_id, mine in share.items() if mine}
    return before if target == before else target


def _keep(readers: list[Reader], counts: Mapping[UUID, int]) -> tuple[Shares, Unassigned]:
    """Return the partitions that each member keeps, and all other partitions of read topics."""
    shares: Shares = {}
    taken: dict[UUID, set[int]] = {}
    for reader in readers:
        mine = shares[reader.member_id] = {}
        for topic_id, partitions in reader.target.items():
            if topic_id not in reader.topics or topic_id not in counts:
                continue
            taken_here = taken.setdefault(topic_id, set())
            count = counts[topic_id]
            # If two members' targets name the same partition, the first member keeps it.
            kept = sorted(each for each in partitions - taken_here if each < count)
            if kept:
                mine[topic_id] = kept
                taken_here.update(kept)
    read = _read(readers)
    unassigned: Unassigned = {}
    for topic_id, count in counts.items():
        taken_here = taken.get(topic_id, set())
        if topic_id in read and len(taken_here) < count:
            unassigned[topic_id] = [each for each in range(count) if each not in taken_here]
    return shares, unassigned


def _read(readers: list[Reader]) -> frozenset[UUID]:
    """Return the topics that some member reads."""
    return frozenset[UUID]().union(*{reader.topics for reader in readers})


def _load(share: dict[UUID, list[int]]) -> int:
    return sum(map(len, share.values()))


def _share_equally(shares: Shares, unassigned: Unassigned) -> None:
    """Even out `shares` in place, for members that all read the same topics.

    Cuts the shares above the quota, then fills the others up. O(partitions).
    """
    loads = {member_id: _load(share) for member_id, share in shares.items()}
    spare = [(topic_id, each) for topic_id, waiting in unassigned.items() for each in waiting]
    quota, more = divmod(len(spare) + sum(loads.values()), len(shares))
    for member_id, load in loads.items():
        limit = quota
        if load > quota and more:
            limit, more = quota + 1, more - 1
        if load > limit:
            spare += _cut(shares[member_id], load - limit)
            loads[member_id] = limit
    left = iter(spare)
    for member_id, load in loads.items():
        wanted = max(quota - load, 0)
        if load <= quota and more:
            wanted, more = wanted + 1, more - 1
        share = shares[member_id]
        for topic_id, partition in islice(left, wanted):
            share.setdefault(topic_id, []).append(partition)


def _cut(share: dict[UUID, list[int]], count: int) -> list[tuple[UUID, int]]:
    """Remove the last `count` partitions from the share; return them in their order."""
    cut: list[tuple[UUID, int]] = []
    while len(cut) < count:
        topic_id, mine = share.popitem()
        given = mine[-(count - len(cut)) :]
        if len(given) < len(mine):
            share[topic_id] = mine[: -len(given)]
        cut[:0] = [(topic_id, partition) for partition in given]
    return cut


def _share_by_topic(readers: list[Reader], shares: Shares, unassigned: Unassigned) -> None:
    """Give each unassigned partition to its topic's least loaded reader, then even out loads."""
    by_topic = _by_topic(readers, sorted(_read(readers)))
    loads = {member_id: _load(share) for member_id, share in shares.items()}
    # Topics with the fewest readers come first: a topic with many readers can still even out later.
    for topic_id in sorted(unassigned, key=lambda topic_id: len(by_topic[topic_id])):
        least = [(loads[each], order, each) for order, each in enumerate(by_topic[topic_id])]
        heapq.heapify(least)
        for partition in unassigned[topic_id]:
            load, order, member_id = least[0]
            shares[member_id].setdefault(topic_id, []).append(partition)
            loads[member_id] = load + 1
            heapq.heapreplace(least, (load + 1, order, member_id))
    # Mostly no load differs by 2 from another. A look at each reader of each topic takes longer.
    while max(loads.values()) - min(loads.values()) > 1:
        # A list, because `any` would stop a generator at the first topic that moved a partition.
        if not any([_even_out(each, by_topic[each], shares, loads) for each in by_topic]):
            break


def _even_out(topic_id: UUID, members: list[str], shares: Shares, loads: dict[str, int]) -> bool:
    """Move a topic's partitions from its fullest to its emptiest reader while loads differ by 2.

    Returns whether a partition moved. The caller's rounds end, because each move makes the sum of
    the squares of all loads smaller.
    """
    load_of = loads.__getitem__
    givers = [each for each in members if shares[each].get(topic_id)]
    # Most topics are even from the first round on, and need no heap.
    if not givers or max(map(load_of, givers)) - min(map(load_of, members)) < 2:
        return False
    least = [(loads[each], order, each) for order, each in enumerate(members)]
    most = [(-load, order, each) for load, order, each in least if shares[each].get(topic_id)]
    heapq.heapify(least)
    heapq.heapify(most)
    moved = False
    while most:
        load, order, member_id = most[0]
        fewest, position, other = least[0]
        if -load != loads[member_id]:
            # The load has changed since this entry was made: correct the entry, and look again.
            heapq.heapreplace(most, (-loads[member_id], order, member_id))
            continue
        if fewest != loads[other]:
            heapq.heapreplace(least, (loads[other], position, other))
            continue
        if -load - fewest < 2:
            break
        given, taken = shares[member_id][topic_id], shares[other].setdefault(topic_id, [])
        if not taken:
            heapq.heappush(most, (-fewest - 1, position, other))
        taken.append(given.pop())
        loads[member_id], loads[other] = -load - 1, fewest + 1
        heapq.heapreplace(least, (fewest + 1, position, other))
        # The member's entry is still on top: the entry that was pushed above has a smaller load.
        if given:
            heapq.heapreplace(most, (load + 1, order, member_id))
        else:
            heapq.heappop(most)
        moved = True
    return moved
