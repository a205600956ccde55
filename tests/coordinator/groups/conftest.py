"""A group to drive with values: `Driver` numbers the requests and keeps what each was answered."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.groups.classic.group import ClassicGroup, GroupLimits, GroupState
from coordinator.groups.classic.heartbeats import heartbeat
from coordinator.groups.classic.joining import join
from coordinator.groups.classic.leaving import expire, leave
from coordinator.groups.classic.rebalance import sync
from coordinator.groups.classic.records import apply, current_value, resume
from coordinator.groups.classic.requests import (
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    Outcome,
    SyncAnswer,
    SyncRequest,
)
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.internal.group_metadata import GroupMetadataValue

RANGE = (("range", b"topics"),)


class Driver:
    """One group under test. Tokens are ints; `answers` by token, each written once."""

    def __init__(self, **limits: int) -> None:
        self.gone: set[object] = set()
        self.limits = GroupLimits(**limits, is_abandoned=self.gone.__contains__)
        self.group = ClassicGroup("group", self.limits)
        self.now_ms = 1_000
        self.tokens = 0
        self.answers: dict[int, JoinAnswer | SyncAnswer] = {}
        self.records: list[GroupMetadataValue] = []

    def take(self, outcome: Outcome) -> None:
        for token, answer in outcome.answers:
            assert isinstance(token, int)
            assert token not in self.answers, f"token {token} answered twice"
            assert token not in self.gone or answer.error_code or isinstance(answer, SyncAnswer)
            self.answers[token] = answer
        if outcome.value is not None:
            self.records.append(outcome.value)
            apply(self.group, outcome.value)

    def join(self, member_id: str = "", **fields: Any) -> int:
        """Send a JoinGroup; return its token. A refusal is kept as an answer."""
        self.tokens += 1
        token = self.tokens
        request = JoinRequest(
            **{
                "member_id": member_id,
                "new_member_id": f"m{token}",
                "session_timeout_ms": 10_000,
                "rebalance_timeout_ms": 60_000,
                "protocol_type": "consumer",
                "protocols": RANGE,
                **fields,
            }
        )
        try:
            self.take(join(self.group, request, self.now_ms, token))
        except KafkaError as refusal:
            self.answers[token] = JoinAnswer(member_id=member_id, error_code=refusal.code)
        return token

    def sync(self, member_id: str, generation_id: int | None = None, **fields: Any) -> int:
        """Send a SyncGroup for the current generation; return its token."""
        self.tokens += 1
        token = self.tokens
        generation = self.group.generation_id if generation_id is None else generation_id
        request = SyncRequest(member_id=member_id, generation_id=generation, **fields)
        try:
            self.take(sync(self.group, request, self.now_ms, token))
        except KafkaError as refusal:
            self.answers[token] = SyncAnswer(error_code=refusal.code)
        return token

    def heartbeat(
        self, member_id: str, generation_id: int | None = None, instance: str | None = None
    ) -> ErrorCode:
        generation = self.group.generation_id if generation_id is None else generation_id
        try:
            heartbeat(self.group, member_id, generation, instance, self.now_ms)
        except KafkaError as refusal:
            return refusal.code
        return ErrorCode.NONE

    def leave(self, *member_ids: str, instance: str | None = None) -> list[ErrorCode]:
        leaving = [LeavingMember(member_id, instance) for member_id in member_ids]
        codes, outcome = leave(self.group, leaving, self.now_ms)
        self.take(outcome)
        return codes

    def hang_up(self, token: int) -> None:
        self.gone.add(token)

    def advance(self, milliseconds: int) -> None:
        """Let time pass, doing what is due at each deadline on the way."""
        end_ms = self.now_ms + milliseconds
        for _ in range(10_000):
            deadline = self.group.deadline_ms
            if deadline is None or deadline > end_ms:
                break
            self.now_ms = max(self.now_ms, deadline)
            self.take(expire(self.group, self.now_ms))
        else:
            raise AssertionError("time stands still")
        self.now_ms = end_ms

    def reload(self) -> None:
        """Restart: the group is what its last record says, or new."""
        self.group = ClassicGroup("group", self.limits)
        if self.records:
            apply(self.group, self.records[-1])
        resume(self.group, self.now_ms)

    def joined(self, token: int) -> JoinAnswer:
        answer = self.answers[token]
        assert isinstance(answer, JoinAnswer)
        return answer

    def synced(self, token: int) -> SyncAnswer:
        answer = self.answers[token]
        assert isinstance(answer, SyncAnswer)
        return answer

    def formed(self, count: int, **fields: Any) -> list[str]:
        """Bring `count` members into a generation that waits for its assignment; return their ids,
        the leader's first."""
        for _ in range(count):
            known = list(self.group.members)
            tokens = [self.join("", **fields)]
            tokens += [self.join(member_id, **fields) for member_id in known]
            assert all(token in self.answers for token in tokens)
        return sorted(self.group.members, key=lambda member_id: member_id != self.group.leader)

    def stable(self, count: int, **fields: Any) -> list[str]:
        """Bring `count` members to a stable generation; return their ids, the leader's first."""
        members = self.formed(count, **fields)
        assigned = {member_id: member_id.encode() for member_id in self.group.members}
        self.sync(members[0], assignments=assigned)
        for member_id in self.group.members:
            self.sync(member_id)
        return members

    # --- what always holds

    @property
    def waiting(self) -> set[object]:
        """The tokens that are parked."""
        members = self.group.members.values()
        return {token for m in members for token in (m.joining, m.syncing) if token is not None}

    def check(self) -> None:
        """Assert the invariants of a group, after any step."""
        group = self.group
        members = group.members.values()
        joins = sum(member.joining is not None for member in members)
        assert not self.waiting & set(self.answers)
        assert group.joins_waiting == joins
        assert (group.leader is None) == (not members)
        assert group.leader is None or group.leader in group.members
        static = {m.group_instance_id: m.member_id for m in members if m.is_static}
        assert group.static_members == static
        assert group.pending_syncs <= set(group.members)
        assert group.sync_deadline_ms is not None or not group.pending_syncs
        preparing = group.state is GroupState.PREPARING_REBALANCE
        assert (group.join_deadline_ms is not None) == preparing
        assert preparing or joins == 0
        assert not members or group.select_protocol()
        if group.state is GroupState.EMPTY:
            assert not members
        if group.state in (GroupState.EMPTY, GroupState.STABLE):
            assert self.waiting <= self.gone
            self._check_record()
        for member in members:
            if member.session_counts:
                assert group.deadline_ms is not None
                assert group.deadline_ms <= member.session_deadline_ms

    def _check_record(self) -> None:
        """What is on disk is what is live, and comes back as it is."""
        group = self.group
        if group.generation_id == 0:
            return
        assert self.records[-1] == current_value(group)
        replayed = ClassicGroup("group", group.limits)
        # Whatever the log held before, the last record decides.
        for record in self.records[-2:]:
            apply(replayed, record)
        assert current_value(replayed) == current_value(group)
        assert replayed.state is group.state


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture(scope="session")
def make_driver() -> type[Driver]:
    return Driver
