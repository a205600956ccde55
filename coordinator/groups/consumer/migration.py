"""A group changes its kind: classic to consumer and back. Source: KIP-848, the part on migration.

Upgrade: the first member of the consumer protocol has come. The classic members stay, in their
generation and with their assignments; their next heartbeat tells them of a new assignment.

Downgrade: the last member of the consumer protocol is gone. The classic members stay, with what
they have as the last generation, which is the group's epoch; they join again at once. Not with
their targets: if the group is upgraded before they join, no member may seem to have less than it
has.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from coordinator.groups.classic.group import ClassicGroup, GroupLimits
from coordinator.groups.classic.group import Member as ClassicMember
from coordinator.groups.classic.rebalance import refuse_parked
from coordinator.groups.classic.records import stable_value
from coordinator.groups.classic.requests import Outcome
from coordinator.groups.consumer.consumer_protocol import (
    CONSUMER,
    CustomAssignor,
    Subscription,
    read_assignments,
    read_subscriptions,
    write_assignment,
)
from coordinator.groups.consumer.group import FIRST_EPOCH, ConsumerGroup, Draft
from coordinator.groups.consumer.member import (
    Assigned,
    ClassicProtocols,
    Member,
    Target,
    as_target,
    merged,
    with_epoch,
)
from coordinator.groups.consumer.records import (
    ConsumerGroupRecord,
    assignment_record,
    epoch_record,
    group_tombstones,
    member_tombstones,
    regex_record,
    subscription_record,
    target_epoch_record,
    target_record,
)
from coordinator.groups.consumer.requests import ConsumerLimits
from coordinator.groups.consumer.subscription import TopicImage
from wire.error_code import ErrorCode
from wire.errors import KafkaError, WireError
from wire.internal.group_metadata import GroupMetadataValue

#: The topics may have grown since the classic leader assigned them. No hash matches this one, so
#: the next join assigns them anew.
_UNKNOWN_TOPICS = 0


def decide_upgrade(classic: ClassicGroup, topics: TopicImage, limits: ConsumerLimits) -> Draft:
    """Return a draft of the consumer group with the classic group's members.

    Its records follow the classic group's deletion. Refuses with GROUP_ID_NOT_FOUND and the reason:
    the migration policy, members that are no consumers, too many of them, or an assignor of their
    own, whose data would be lost.
    """
    _check(classic, limits)
    draft = Draft(ConsumerGroup(classic.group_id), is_new=True)
    taken: set[tuple[UUID, int]] = set()
    members = list(classic.members.values())
    subscriptions = read_subscriptions((_metadata(classic, each) for each in members), topics)
    assignments = read_assignments((each.assignment for each in members), topics)
    try:
        upgraded = [
            (_member(member, said), _without(given, taken))
            for member, said, given in zip(members, subscriptions, assignments, strict=True)
        ]
    except WireError:
        raise _refusal(classic, "the embedded consumer protocol is malformed.") from None
    except CustomAssignor:
        raise _refusal(
            classic,
            "an unsupported custom assignor is in use. Please refer to the documentation or switch"
            " to a default assignor before re-attempting the upgrade.",
        ) from None
    # A group without a generation is put at the first: no member has heard of any.
    generation_id = max(classic.generation_id, FIRST_EPOCH)
    _add_records(draft, generation_id, upgraded)
    return draft


def _add_records(
    draft: Draft,
    generation_id: int,
    upgraded: list[tuple[Member, Target]],
) -> None:
    group_id = draft.group.group_id
    draft.add(subscription_record(group_id, member) for member, _ in upgraded)
    draft.add([epoch_record(group_id, generation_id, _UNKNOWN_TOPICS)])
    draft.add(target_record(group_id, member.member_id, target) for member, target in upgraded)
    # The coordinator's first assignment does not wait for `consumer.assignment.interval.ms`: this
    # one is the classic leader's. As in Kafka.
    draft.add([target_epoch_record(group_id, generation_id, 0)])
    draft.add(
        assignment_record(group_id, _at(member, generation_id, target))
        for member, target in upgraded
    )


def _check(classic: ClassicGroup, limits: ConsumerLimits) -> None:
    if not limits.may_upgrade:
        raise _refusal(classic, "online upgrade is disabled.")
    if classic.protocol_type != CONSUMER:
        raise _refusal(classic, "the group does not use the consumer embedded protocol.")
    if len(classic.members) > limits.size_max:
        raise _refusal(classic, "the group size exceeds the consumer group maximum size.")


def _refusal(classic: ClassicGroup, reason: str) -> KafkaError:
    return KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Cannot upgrade classic group {classic.group_id} to consumer group because {reason}",
    )


def _metadata(classic: ClassicGroup, member: ClassicMember) -> bytes:
    # A group that has never had a generation has chosen no protocol yet.
    return member.metadata(classic.protocol_name) or member.protocols[0][1]


def _member(member: ClassicMember, said: Subscription) -> Member:
    return Member(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        rack_id=said.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topic_names=said.topic_names,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicProtocols(member.session_timeout_ms, member.protocols),
    )


def _without(given: Target, taken: set[tuple[UUID, int]]) -> Target:
    """Return what a member was assigned, without what is `taken`: assigned to another too."""
    mine: dict[UUID, frozenset[int]] = {}
    for topic_id, partitions in given.items():
        # A custom assignor may have given one partition to two members: it has one owner here.
        free = frozenset(each for each in partitions if (topic_id, each) not in taken)
        taken.update((topic_id, each) for each in free)
        if free:
            mine[topic_id] = free
    return mine


def _at(member: Member, epoch: int, target: Target) -> Member:
    return Member(
        member_id=member.member_id,
        epoch=epoch,
        previous_epoch=epoch,
        assigned=with_epoch(target, epoch),
    )


def refuse_all_parked(
    classic: ClassicGroup, code: ErrorCode = ErrorCode.REBALANCE_IN_PROGRESS
) -> Outcome:
    """Refuse the requests parked in the classic group, each with `code`.

    The members join again: the group has become a consumer group, or another node coordinates it.
    """
    outcome = Outcome()
    for member in classic.members.values():
        refuse_parked(classic, member, member.member_id, outcome, code)
    return outcome


def is_downgrade_due(
    group: ConsumerGroup, leaving: Collection[str], limits: ConsumerLimits
) -> bool:
    """Return whether classic members alone are left when these leave: at least one."""
    # Counts alone: this is asked whenever a member goes.
    left = len(group.members) - len(leaving)
    if not limits.may_downgrade or not 0 < left <= limits.classic_size_max:
        return False
    if left > group.classic_count:
        return False
    leaving_classic = sum(group.members[member_id].classic is not None for member_id in leaving)
    return left == group.classic_count - leaving_classic


def downgraded(
    group: ConsumerGroup,
    leaving: Collection[str],
    topics: TopicImage,
    limits: GroupLimits,
    now_ms: int,
) -> tuple[ClassicGroup, GroupMetadataValue]:
    """Return the classic group of the members that stay, and its record.

    The group is stable once the record is applied. Mostly the caller then begins a rebalance, so
    that all members join again.
    """
    classic = ClassicGroup(group.group_id, limits, now_ms)
    classic.generation_id = group.epoch
    for member in group.members.values():
        if member.member_id in leaving:
            continue
        assert member.classic is not None, "is_downgrade_due comes first"
        kept = ClassicMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            session_timeout_ms=member.classic.session_timeout_ms,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            protocols=member.classic.protocols,
        )
        classic.add(kept, CONSUMER)
    classic.protocol_name = classic.select_protocol()
    assignments = {
        member_id: write_assignment(
            as_target(_held(group.members[member_id])), kept.metadata(classic.protocol_name), topics
        )
        for member_id, kept in classic.members.items()
    }
    return classic, stable_value(classic, assignments, now_ms)


def _held(member: Member) -> Assigned:
    """Return what the member reads, also what it has yet to give back."""
    return merged(member.assigned, member.revoking)


def deletion(group: ConsumerGroup) -> list[ConsumerGroupRecord]:
    """Return the records that delete a consumer group with its members."""
    group_id = group.group_id
    records = [
        record for member_id in group.members for record in member_tombstones(group_id, member_id)
    ]
    records += [regex_record(group_id, regex, None) for regex in group.regexes]
    return records + group_tombstones(group_id)
