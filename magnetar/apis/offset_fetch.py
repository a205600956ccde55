"""OffsetFetch (API key 9): how far groups have read.

Versions 1-10.  2: null topics ask for all of them; an error of the whole group.  5: the leader
epoch.  6: flexible.  7: `require_stable`.  8: many groups in one request.  9: member id and epoch,
which consumer groups check.  10: topic ids instead of names.

A partition that is named twice for a group is answered once, unlike in Kafka: an answer may bring
4 KB of metadata, so a request of half a megabyte could ask for half a gigabyte.

What is asked of a group is looked up in one step, so a commit of several topics is seen whole or
not at all. Offset -1 where nothing is committed. With `require_stable` a partition that an open
transaction may change is UNSTABLE_OFFSET_COMMIT: ask again.  KIP-447.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from coordinator.groups.offsets.committed import NO_TOPIC_ID
from coordinator.groups.offsets.store import FetchedOffset
from magnetar.apis.authorization import may, require
from magnetar.apis.mirror import mirror
from magnetar.apis.partitions_named import groups_in
from magnetar.apis.registry import handles
from magnetar.runtime.group_offsets import OffsetQuery
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

PartitionT = TypeVar("PartitionT", OffsetFetchResponsePartition, OffsetFetchResponsePartitions)

#: Makes the answers for one topic.
_Offsets: TypeAlias = Callable[[], list[FetchedOffset]]

_GROUPS_SINCE = 8
_TOPIC_IDS_SINCE = 10


def _group_ids(request: OffsetFetchRequest) -> list[str]:
    return [group.group_id for group in request.groups] or [request.group_id]


@handles(
    OffsetFetchRequest,
    versions="1-10",
    refuse=mirror(OffsetFetchResponse, committed_offset=-1),
    is_for=groups_in(_group_ids),
)
async def offset_fetch(
    services: Services, request: OffsetFetchRequest, context: RequestContext
) -> OffsetFetchResponse:
    try:
        return await _fetched(services, request, context)
    except KafkaError as refusal:
        if (code := _told(context, refusal.code)) is refusal.code:
            raise
        raise KafkaError(code, refusal.detail) from refusal


def _told(context: RequestContext, code: ErrorCode) -> ErrorCode:
    """Return the error as a client understands it. librdkafka may lose its connection.

    After NOT_COORDINATOR librdkafka never asks for the offsets again (its issue 5586), and its
    admin client crashes. After COORDINATOR_LOAD_IN_PROGRESS it asks the same node again, for ever:
    only the heartbeats of a member find another coordinator. A consumer without a coordinator's
    connection looks for the coordinator first. An admin client has other requests on its
    connection: those behind this one would be lost. A consumer that asks again is alone.

    The version of librdkafka's Python client names "rdkafka".
    """
    connection = context.connection
    is_affected = any("rdkafka" in word for word in connection.session.software)
    if code is ErrorCode.NOT_COORDINATOR and is_affected:
        if not connection.is_partial:
            connection.close()
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return code


async def _fetched(
    services: Services, request: OffsetFetchRequest, context: RequestContext
) -> OffsetFetchResponse:
    if context.version >= _GROUPS_SINCE:
        by_id = context.version >= _TOPIC_IDS_SINCE
        stable = request.require_stable
        once = _Once()
        groups: list[OffsetFetchResponseGroup] = []
        everything_of: set[str] = set()
        # Other connections have their turn between two groups.
        async for group in services.turns.each(request.groups):
            if group.topics is None:
                # Once, unlike in Kafka: a small request could ask for all offsets of a group a
                # hundred thousand times.
                if group.group_id in everything_of:
                    continue
                everything_of.add(group.group_id)
            groups.append(await _group(services, context, group, stable, by_id, once))
        return OffsetFetchResponse(groups=groups)
    require(services, context, Operation.DESCRIBE, Resource.GROUP, request.group_id)
    found: Iterable[tuple[str, _Offsets]]
    if request.topics is None:
        everything = await services.groups.offsets.fetch_all(
            request.group_id, require_stable=request.require_stable
        )
        found = [
            (name, looked_up.fetched)
            for name, looked_up in everything.items()
            if may(services, context, Operation.DESCRIBE, Resource.TOPIC, name)
        ]
    else:
        once = _Once()
        named = [
            _named(
                services,
                context,
                OffsetQuery(asked.name, once.new("", asked.name, asked.partition_indexes)),
            )
            async for asked in services.turns.each(request.topics)
        ]
        offsets_of = await _offsets(services, request.group_id, named, request.require_stable)
        names = (asked.name for asked in request.topics)
        found = zip(names, offsets_of, strict=True)
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name=name,
                partitions=await _partitions(services, OffsetFetchResponsePartition, offsets()),
            )
            async for name, offsets in services.turns.each(found)
        ]
    )


class _Once:
    """Which partitions a request has named before."""

    def __init__(self) -> None:
        self._named: dict[tuple[str, str | UUID], dict[int, None]] = {}

    def new(self, group_id: str, topic: str | UUID, partitions: Sequence[int]) -> list[int]:
        """Return those of `partitions` that are named for the first time, each once."""
        unique = dict.fromkeys(partitions)
        before = self._named.setdefault((group_id, topic), unique)
        if before is unique:
            return [*unique]
        found = [partition for partition in unique if partition not in before]
        before.update(dict.fromkeys(found))
        return found


class _Named(NamedTuple):
    """Partitions of a topic, as named by the client. Unless NONE, `code` refuses all of them."""

    asked: OffsetQuery
    code: ErrorCode = ErrorCode.NONE

    def refused(self) -> list[FetchedOffset]:
        """Return the answers to a topic that is refused."""
        return [FetchedOffset(index, error_code=self.code) for index in self.asked.partitions]


def _named(services: Services, context: RequestContext, asked: OffsetQuery) -> _Named:
    """Refuse a topic that the client may not know of."""
    try:
        require(services, context, Operation.DESCRIBE, Resource.TOPIC, asked.topic)
    except KafkaError as refusal:
        return _Named(asked, refusal.code)
    return _Named(asked)


def _named_by_id(
    services: Services, context: RequestContext, topic_id: UUID, partitions: Sequence[int]
) -> _Named:
    topic = services.topics.by_id(topic_id)
    if topic is None:
        return _Named(OffsetQuery("", partitions, topic_id), ErrorCode.UNKNOWN_TOPIC_ID)
    # Offsets are stored by name; the id is passed on, so that those of an earlier topic are left
    # out.
    return _named(services, context, OffsetQuery(topic.name, partitions, topic_id))


async def _offsets(
    services: Services, group_id: str, named: Sequence[_Named], require_stable: bool
) -> Iterator[_Offsets]:
    """Return the answers for each topic, yet to be made, of what was committed at one moment."""
    allowed = [each.asked for each in named if not each.code]
    found = iter(
        await services.groups.offsets.fetch(group_id, allowed, require_stable=require_stable)
    )
    return (each.refused if each.code else next(found).fetched for each in named)


async def _group(
    services: Services,
    context: RequestContext,
    group: OffsetFetchRequestGroup,
    require_stable: bool,
    by_id: bool,
    once: _Once,
) -> OffsetFetchResponseGroup:
    try:
        require(services, context, Operation.DESCRIBE, Resource.GROUP, group.group_id)
        services.groups.offsets.check_fetch(group.group_id, group.member_id, group.member_epoch)
    except KafkaError as refusal:
        # Each group stands alone: a member that is fenced in one may read the offsets of another.
        return OffsetFetchResponseGroup(
            group_id=group.group_id, error_code=_told(context, refusal.code)
        )
    if group.topics is None:
        topics = await _all_topics(services, context, group.group_id, require_stable, by_id)
    else:
        topics = await _topics(
            services, context, group.group_id, group.topics, require_stable, by_id, once
        )
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)


async def _all_topics(
    services: Services,
    context: RequestContext,
    group_id: str,
    require_stable: bool,
    by_id: bool,
) -> list[OffsetFetchResponseTopics]:
    """Return everything committed; where topics go by id, what is left of deleted ones is not."""
    everything = await services.groups.offsets.fetch_all(group_id, require_stable=require_stable)
    topics = []
    for name, looked_up in everything.items():
        # As at that moment: the name may be another topic's since. A client of version 10 knows
        # topics by id alone, and a topic without one was deleted.
        if by_id and looked_up.topic_id == NO_TOPIC_ID:
            continue
        if not may(services, context, Operation.DESCRIBE, Resource.TOPIC, name):
            continue
        topics.append(
            OffsetFetchResponseTopics(
                # The encoder refuses a name in version 10, which has no field for it.
                name="" if by_id else name,
                topic_id=looked_up.topic_id if by_id else NO_TOPIC_ID,
                partitions=await _partitions(
                    services, OffsetFetchResponsePartitions, looked_up.fetched()
                ),
            )
        )
    return topics


async def _topics(
    services: Services,
    context: RequestContext,
    group_id: str,
    topics: Sequence[OffsetFetchRequestTopics],
    require_stable: bool,
    by_id: bool,
    once: _Once,
) -> list[OffsetFetchResponseTopics]:
    named = []
    async for asked in services.turns.each(topics):
        new = once.new(group_id, asked.topic_id if by_id else asked.name, asked.partition_indexes)
        if by_id:
            named.append(_named_by_id(services, context, asked.topic_id, new))
        else:
            named.append(_named(services, context, OffsetQuery(asked.name, new)))
    found = await _offsets(services, group_id, named, require_stable)
    return [
        OffsetFetchResponseTopics(
            name=asked.name,
            topic_id=asked.topic_id,
            partitions=await _partitions(services, OffsetFetchResponsePartitions, offsets()),
        )
        async for asked, offsets in services.turns.each(zip(topics, found, strict=True))
    ]


async def _partitions(
    services: Services, kind: type[PartitionT], offsets: Sequence[FetchedOffset]
) -> list[PartitionT]:
    """Return the offsets as partitions of the response: one `kind` before version 8, one since."""
    found: list[PartitionT] = []
    async for piece in services.turns.pieces(offsets):
        # One loop without calls of ours: a request may ask for tens of thousands of partitions.
        found += [
            kind(
                partition_index=partition,
                committed_offset=offset,
                committed_leader_epoch=leader_epoch,
                metadata=metadata,
                error_code=error_code,
            )
            for partition, offset, leader_epoch, metadata, error_code in piece
        ]
    return found
