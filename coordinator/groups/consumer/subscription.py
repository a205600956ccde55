"""What members subscribe to, and what follows for the group: its epoch.

Both protocols end here. What a member is given is decided in `assignment`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol
from uuid import UUID

from coordinator.groups.consumer.group import ConsumerGroup, Draft
from coordinator.groups.consumer.member import Member
from coordinator.groups.consumer.records import (
    ConsumerGroupRecord,
    ResolvedRegex,
    epoch_record,
    regex_record,
    subscription_record,
)

#: To look so many topics up by their names takes less than a millisecond.
_MANY = 1_000


class TopicInfo(NamedTuple):
    """A topic as it is now."""

    topic_id: UUID
    name: str
    partition_count: int


class TopicImage(Protocol):
    """All topics. `version` changes with every topic that is made, grown or deleted."""

    @property
    def version(self) -> int: ...

    def by_name(self, name: str) -> TopicInfo | None: ...

    def by_id(self, topic_id: UUID) -> TopicInfo | None: ...

    def names(self) -> Iterable[str]: ...


def topics_read(group: ConsumerGroup, topics: TopicImage) -> dict[UUID, TopicInfo]:
    """Return the topics that exist of those that some member reads, in the order of their names."""
    names: Iterable[str]
    # Members may name far more topics than there are.
    if len(group.name_members) > _MANY:
        names = [name for name in topics.names() if group.reads(name)]
    else:
        names = group.subscribed_names()
    found = (topics.by_name(name) for name in sorted(names))
    return {topic.topic_id: topic for topic in found if topic is not None}


def metadata_hash(group: ConsumerGroup, topics: TopicImage) -> int:
    """Return an int64 that differs after a topic that is read came, went, grew or was made anew.

    0 where no topic is read.

    The hash is magnetar's own: Apache Kafka, given this log, rebalances its groups once.
    """
    found = topics_read(group, topics)
    if not found:
        return 0
    digest = hashlib.blake2b(digest_size=8)
    for topic in found.values():
        digest.update(topic.topic_id.bytes)
        digest.update(topic.partition_count.to_bytes(4, "big"))
        # No topic name has a zero byte, so no two lists of topics look the same.
        digest.update(topic.name.encode() + b"\0")
    return int.from_bytes(digest.digest(), "big", signed=True)


def subscribe(
    draft: Draft,
    before: Member,
    said: Member,
    topics: TopicImage,
    topics_seen: int | None,
) -> bool:
    """Put the member's subscription on record; return whether it reads other topics than before.

    The group's epoch rises with that, or where topics that it reads have changed since
    `topics_seen`. A regular expression that the group does not know yet adds no topics: its time
    comes with `resolve`.
    """
    if not said.said_the_same(before):
        draft.add([subscription_record(draft.group.group_id, said)])
    names_changed = said.topic_names != before.topic_names
    regex_changed = said.topic_regex != before.topic_regex
    changed = names_changed or regex_changed
    # Before the expression is forgotten that the member alone had: it has read by that.
    had_read = bool(changed and draft.group.names_of(before))
    if regex_changed:
        draft.add(unused_regexes(draft.group))
    # The hash costs O(topics read): only where it may have changed.
    if changed or topics_seen != topics.version:
        # As in Kafka: a pattern that matches nothing yet changes nothing for the group.
        reads = had_read or bool(draft.group.names_of(said))
        draft.add(next_epoch(draft.group, topics, changed=changed and reads))
    return changed


def resolve(draft: Draft, regex: str, resolved: ResolvedRegex, topics: TopicImage) -> bool:
    """Put on record what a new regular expression matches; return whether the epoch rises.

    As in Kafka, a member that subscribes with it is answered first, without these topics.
    """
    # Matching took a while: another member may have subscribed with it.
    if regex in draft.group.regexes:
        return False
    draft.add([regex_record(draft.group.group_id, regex, resolved)])
    raised = next_epoch(draft.group, topics, changed=bool(resolved.topics))
    draft.add(raised)
    return bool(raised)


def unused_regexes(group: ConsumerGroup) -> list[ConsumerGroupRecord]:
    """Return the records that forget the regular expressions without a subscriber."""
    return [
        regex_record(group.group_id, regex, None)
        for regex in group.regexes
        if regex not in group.regex_members
    ]


def next_epoch(
    group: ConsumerGroup, topics: TopicImage, *, changed: bool
) -> list[ConsumerGroupRecord]:
    """Return the record of the group's next epoch, if the group reads other topics than before.

    `changed`: its members have changed. Else its topics may have: `metadata_hash` tells.
    """
    known = metadata_hash(group, topics)
    if not changed and known == group.metadata_hash:
        return []
    return [epoch_record(group.group_id, group.epoch + 1, known)]


def decide_regexes(
    group: ConsumerGroup, found: Mapping[str, ResolvedRegex], topics: TopicImage
) -> list[ConsumerGroupRecord]:
    """Return the records of regular expressions that match other topics by now.

    The epoch rises with them, as in Kafka, also where the group reads these topics already: other
    members read them. An expression may be unresolved: the broker ended before it was resolved, or
    its records were too large.
    """
    draft = Draft(group)
    changed = False
    for regex, resolved in found.items():
        known = group.regexes.get(regex)
        # Matching took a while: the regular expression may be gone.
        if regex in group.regex_members and (known is None or known.topics != resolved.topics):
            draft.add([regex_record(group.group_id, regex, resolved)])
            changed |= known is not None or bool(resolved.topics)
    if draft.records:
        draft.add(next_epoch(draft.group, topics, changed=changed))
    return draft.records
