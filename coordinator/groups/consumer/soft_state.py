"""What the broker knows of a consumer group beside its records: in memory alone, lost at a restart.

The name is etcd raft's, where the soft state is what needs no log. Losing it is harmless: members
have a whole session again, topics and patterns are compared anew, and every member is told its
assignment once more.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.groups.consumer.group import ConsumerGroup
from coordinator.groups.consumer.member import Member, as_target
from coordinator.groups.consumer.requests import (
    HeartbeatAnswer,
    HeartbeatDecision,
    HeartbeatRequest,
)
from coordinator.groups.consumer.timers import Timers

#: A client reads the answer of one heartbeat, and says what it owns with the next.
HEARTBEATS_UNTIL_AGAIN = 3
#: However often topics or rights change, a group's patterns rest between two matchings: for some
#: times as long as the last one took with its waits, within these bounds. A change concerns all
#: groups, and 300 groups with 10,000 topics take nine seconds of CPU. Kafka rests ten seconds.
_REGEX_REST_FACTOR = 4
_REGEX_REST_MS_MIN, _REGEX_REST_MS_MAX = 1_000, 10_000


class SoftState:
    """Beside one `ConsumerGroup`; the shard makes the two together and drops them together."""

    __slots__ = (
        "_at_rest",
        "_matching_since_ms",
        "_regexes_next_ms",
        "_regexes_seen",
        "_unacknowledged",
        "rests_on",
        "timers",
        "topics_seen",
    )

    def __init__(self) -> None:
        self.timers = Timers()
        #: The version of the topics that the group's metadata hash was last compared with.
        self.topics_seen: int | None = None
        #: The log's end after the group's last record: what answers about the group rest on.
        self.rests_on = 0
        #: member id -> the group's revision at which the member had nothing to give back or take
        self._at_rest: dict[str, int] = {}
        #: member id -> when it was told of partitions that it has not said it owns
        self._unacknowledged: dict[str, int] = {}
        #: The versions of topics and rights that the group's patterns were last matched against.
        self._regexes_seen: tuple[int, int] | None = None
        self._regexes_next_ms = 0
        #: None: they are not being matched.
        self._matching_since_ms: int | None = None

    def forget(self, member_id: str) -> None:
        """The member is gone."""
        self.timers.forget(member_id)
        self._at_rest.pop(member_id, None)
        self._unacknowledged.pop(member_id, None)

    # --- steps

    def restart_timers(
        self,
        group: ConsumerGroup,
        speaker: str | None,
        before: Member | None,
        session_timeout_ms: int,
        now_ms: int,
    ) -> None:
        """Restart the timers of the member `speaker`, which was `before`; None: of all members.

        All members: of a group that is new here, by an upgrade or a restart.
        """
        speakers = group.members if speaker is None else {speaker} & group.members.keys()
        for member_id in speakers:
            member = group.members[member_id]
            self.timers.on_heartbeat(before, member, session_timeout_ms, now_ms)

    def is_at_rest(self, group: ConsumerGroup, member_id: str) -> bool:
        """Return whether no record has changed the group since the member had nothing to do."""
        return self._at_rest.get(member_id) == group.revision

    def on_heartbeat(
        self,
        group: ConsumerGroup,
        request: HeartbeatRequest,
        decision: HeartbeatDecision,
        now_ms: int,
    ) -> HeartbeatAnswer:
        """Account for a heartbeat whose records are applied; return what to answer."""
        member = group.members[decision.answer.member_id]
        # Only a decision without records proves that nothing is left to do for the member.
        if not decision.records:
            self._at_rest[member.member_id] = group.revision
        found = request.resolved
        if found is not None and group.regexes == {request.topic_regex: found}:
            # The group's only pattern was matched for this request.
            self._regexes_seen = (found.version, request.rights_version)
        return self._until_acknowledged(request, decision.answer, member, now_ms)

    def _until_acknowledged(
        self, request: HeartbeatRequest, answer: HeartbeatAnswer, member: Member, now_ms: int
    ) -> HeartbeatAnswer:
        """Return the answer, with the assignment if it is time to tell that again.

        An answer carries the assignment only where it has changed, and that one answer may be lost:
        librdkafka gives up a heartbeat that takes long, and asks again without saying what it owns,
        as in KIP-848. In Apache Kafka no member then reads the new partitions. Here the member is
        told again until a heartbeat names exactly what it has. Hearing the same twice changes
        nothing for a client, so a member that takes partitions over slowly may hear it too often.
        """
        member_id = member.member_id
        if request.owned is not None and request.owned == as_target(member.assigned):
            self._unacknowledged.pop(member_id, None)
            return answer
        if answer.assignment is None:
            told_at_ms = self._unacknowledged.get(member_id)
            wait_ms = HEARTBEATS_UNTIL_AGAIN * answer.heartbeat_interval_ms
            if told_at_ms is None or now_ms - told_at_ms < wait_ms:
                return answer
            answer = replace(answer, assignment=member.assigned)
        self._unacknowledged[member_id] = now_ms
        return answer

    # --- patterns

    def begin_matching(
        self, group: ConsumerGroup, topics_version: int, rights_version: int, now_ms: int
    ) -> bool:
        """Return whether to match the group's patterns again now: topics or rights have changed.

        Where True, the caller matches them, and calls `end_matching` in any case.
        """
        versions = (topics_version, rights_version)
        if (
            not group.regex_members
            or self._regexes_seen == versions
            or now_ms < self._regexes_next_ms
            # Slow, or behind slow ones: later changes are looked at with a later heartbeat.
            or self._matching_since_ms is not None
        ):
            return False
        self._matching_since_ms = now_ms
        self._regexes_seen = versions
        return True

    def end_matching(self, now_ms: int, *, is_left: bool = False) -> None:
        """The patterns are matched, or could not be: `is_left` to a later heartbeat."""
        assert self._matching_since_ms is not None, "they were not being matched"
        rest_ms = _REGEX_REST_FACTOR * (now_ms - self._matching_since_ms)
        self._regexes_next_ms = now_ms + min(max(rest_ms, _REGEX_REST_MS_MIN), _REGEX_REST_MS_MAX)
        self._matching_since_ms = None
        if is_left:
            self._regexes_seen = None
