"""A classic group: its states, its members, their votes, its generation and its deadlines.

Owns the bookkeeping and its invariants, not the protocol: `joining` and its neighbours decide, and
call what is here. Everything but a scan over the members is O(1): support for each protocol and the
number of waiting joins are counted as they change.

Deadlines: a member's session moves with every heartbeat, so the group does not keep them in order.
It keeps `_wake_ms`, a lower bound of all of them; a heartbeat leaves the bound alone, and an
`expire` that comes too early finds nothing and puts the bound where it belongs. Source: KIP-62.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from coordinator.groups.classic.requests import JoinedMember, Token
from coordinator.groups.member_room import (
    MEMBER_BYTES,
    PENDING_BYTES,
    MemberAccount,
    protocols_bytes,
    texts_bytes,
)
from wire.error_code import ErrorCode
from wire.errors import KafkaError


class GroupState(Enum):
    """The value is the name that DescribeGroups and ListGroups show."""

    EMPTY = "Empty"  # no members; perhaps offsets
    PREPARING_REBALANCE = "PreparingRebalance"  # waits for the members to (re)join
    COMPLETING_REBALANCE = "CompletingRebalance"  # a generation is formed, its leader assigns
    STABLE = "Stable"  # every member has its assignment, or may fetch it
    DEAD = "Dead"  # deleted; nothing follows


#: state -> the states from which it may be entered.
LEGAL_PREDECESSORS: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE}
    ),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(GroupState),
}


#: (protocol name, metadata) in the member's order of preference.
Protocols = tuple[tuple[str, bytes], ...]


def said_bytes(names: Iterable[str | None], protocols: Protocols) -> int:
    """Return what a member takes in memory with all that it says of itself.

    `names`: its id, its instance's and its client's, each of up to 32 KiB.
    """
    return MEMBER_BYTES + texts_bytes(names) + protocols_bytes(protocols)


def _pending_bytes(member_id: str) -> int:
    """Return the bytes that an id takes in memory until a client joins with it."""
    return PENDING_BYTES + texts_bytes((member_id,))


@dataclass(slots=True, kw_only=True)
class Member:
    """One member of a classic group; mutable, and changed by its group alone.

    `joining` and `syncing` are the tokens of the member's parked requests. `is_new` holds until its
    first generation is formed: only then does the client know its member id and can send
    heartbeats.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    joining: Token | None = None
    syncing: Token | None = None
    is_new: bool = False
    session_deadline_ms: int = 0

    @property
    def size_bytes(self) -> int:
        """The memory that the member takes, as `said_bytes` has it, with its assignment."""
        names = (self.member_id, self.group_instance_id, self.client_id)
        return said_bytes(names, self.protocols) + len(self.assignment)

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def session_counts(self) -> bool:
        """Whether missing heartbeats expire the member: not while the group makes it wait.

        A new member's wait is bounded all the same: its client cannot be told from a dead one.
        """
        return self.is_new or (self.joining is None and self.syncing is None)

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return what the member said for this protocol; empty for a protocol it does not speak."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """What the configuration allows. `new_member_join_timeout_ms` is Kafka's constant."""

    size_max: int = 2**31 - 1
    initial_rebalance_delay_ms: int = 0
    new_member_join_timeout_ms: int = 300_000
    pending_members_max: int = 1_000
    #: Whether the client of a token is gone; asked when a generation is formed.
    is_abandoned: Callable[[Token], bool] = lambda token: False


class ClassicGroup:
    """One group. Fields are read freely; they change through methods here and `records.apply`.

    An EMPTY or STABLE group is what its record says: `records.apply` alone enters these states, and
    sets generation, protocol, leader and the members' assignments. From PREPARING_REBALANCE on the
    next generation forms in memory alone, and a restart goes back to the record. In memory alone
    are also, in every state: parked joins and syncs, sessions, ids that were given and not used.
    """

    def __init__(self, group_id: str, limits: GroupLimits, now_ms: int = -1) -> None:
        self.group_id = group_id
        self.limits = limits
        self.state = GroupState.EMPTY
        self.state_changed_ms = now_ms
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        #: group instance id -> member id
        self.static_members: dict[str, str] = {}
        #: member id -> deadline of its first join with that id (KIP-394)
        self.pending_members: dict[str, int] = {}
        #: members of this generation that have not yet asked for their assignment
        self.pending_syncs: set[str] = set()
        self.join_deadline_ms: int | None = None
        self.sync_deadline_ms: int | None = None
        #: an initial rebalance: how much longer it may be put off while members keep coming
        self.initial_rebalance_left_ms: int | None = None
        self.member_joined_meanwhile = False
        #: What the members and the pending ids take; the same is in `_account`.
        self.member_bytes = 0
        self._account = MemberAccount()
        self._supporters: Counter[str] = Counter()
        self.joins_waiting = 0
        self._wake_ms: int | None = None

    # --- state and generation

    def transition(self, state: GroupState, now_ms: int) -> None:
        assert self.state in LEGAL_PREDECESSORS[state], f"{self.group_id}: {self.state} -> {state}"
        self.state = state
        self.state_changed_ms = now_ms

    def check_alive(self) -> None:
        """Raise COORDINATOR_NOT_AVAILABLE if the group is deleted: the client tries again."""
        if self.state is GroupState.DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.group_id} is deleted")

    def check_generation(self, generation_id: int) -> None:
        """Raise ILLEGAL_GENERATION unless it is the current generation."""
        if generation_id != self.generation_id:
            raise KafkaError(
                ErrorCode.ILLEGAL_GENERATION,
                f"{self.group_id} is at generation {self.generation_id}, not {generation_id}",
            )

    def account_in(self, account: MemberAccount) -> None:
        """Let what the members take count in `account`, and no longer where it did."""
        size_bytes = self.member_bytes
        self._take(-size_bytes)
        self._account = account
        self._take(size_bytes)

    def _take(self, size_bytes: int) -> None:
        self.member_bytes += size_bytes
        self._account.size_bytes += size_bytes

    def rest(
        self, members: Iterable[Member], protocol_type: str, leader: str | None, changed_ms: int
    ) -> None:
        """Become STABLE with these members, EMPTY without any. For `records.apply` alone."""
        self.members, self.static_members = {}, {}
        self._supporters, self.joins_waiting = Counter(), 0
        self._take(sum(map(_pending_bytes, self.pending_members)) - self.member_bytes)
        for member in members:
            self.add(member, protocol_type)
        self.protocol_type = protocol_type or None
        self.leader = leader
        self.state = GroupState.STABLE if self.members else GroupState.EMPTY
        self.state_changed_ms = changed_ms

    @property
    def is_forgettable(self) -> bool:
        """Whether neither memory nor the log would lose anything with the group."""
        return self.generation_id == 0 and not self.members and not self.pending_members

    @property
    def has_yet_to_join(self) -> bool:
        """Whether a replay has found the generation of a group that was a consumer group until its
        last consumer left: no leader has assigned it, and the members are to join again.

        Records of Apache Kafka before 2.1 have no time either; such a group rebalances once more.
        """
        return self.state is GroupState.STABLE and self.state_changed_ms < 0

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long a rebalance waits for members: the longest timeout that one of them asks for."""
        return max([0, *(member.rebalance_timeout_ms for member in self.members.values())])

    # --- protocols

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Return whether a member with these protocols could be in a generation with the others."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.protocol_type:
            return False
        member_count = len(self.members)
        return any(self._supporters[name] == member_count for name, _ in protocols)

    def select_protocol(self) -> str:
        """Return the protocol with most votes among those that every member supports.

        Each member votes for the first of its own that qualifies; between equals the leader's
        order decides.
        """
        member_count = len(self.members)
        candidates = {name for name, count in self._supporters.items() if count == member_count}
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes[next(name for name, _ in member.protocols if name in candidates)] += 1
        assert self.leader is not None
        preferred = [name for name, _ in self.members[self.leader].protocols]
        return max(votes, key=lambda name: (votes[name], -preferred.index(name)))

    # --- members

    def add(self, member: Member, protocol_type: str) -> None:
        assert member.member_id not in self.members
        # The first member decides what the group is for: consumers, Connect workers, ...
        if not self.members:
            self.protocol_type = protocol_type
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self.static_members
            self.static_members[member.group_instance_id] = member.member_id
        # As in Kafka the first member leads.
        if self.leader is None:
            self.leader = member.member_id
        # A set: a client may name a protocol twice, and must not count twice.
        self._supporters.update({name for name, _ in member.protocols})
        self._take(member.size_bytes)
        self.joins_waiting += member.joining is not None
        self.drop_pending(member.member_id)

    def remove(self, member_id: str) -> Member:
        """Forget a member; the caller answers its parked requests."""
        member = self.members.pop(member_id)
        if member.group_instance_id is not None:
            del self.static_members[member.group_instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self._forget_protocols(member)
        self._take(-member.size_bytes)
        self.joins_waiting -= member.joining is not None
        self.pending_syncs.discard(member_id)
        return member

    def update(self, member: Member, protocols: Protocols, session: int, rebalance: int) -> None:
        """Take over what a rejoining member says of itself; both timeouts in milliseconds."""
        self._forget_protocols(member)
        self._take(-member.size_bytes)
        member.protocols = protocols
        self._take(member.size_bytes)
        member.session_timeout_ms = session
        member.rebalance_timeout_ms = rebalance
        self._supporters.update({name for name, _ in protocols})

    def rename(self, member: Member, member_id: str, client_id: str, client_host: str) -> None:
        """Give a static member the id and the client of its new incarnation (KIP-345)."""
        assert member.group_instance_id is not None
        old = member.member_id
        del self.members[old]
        self.members[member_id] = member
        self._take(-member.size_bytes)
        member.member_id, member.client_id, member.client_host = member_id, client_id, client_host
        self._take(member.size_bytes)
        self.static_members[member.group_instance_id] = member_id
        if self.leader == old:
            self.leader = member_id
        # The new incarnation inherits what the old one owed.
        if old in self.pending_syncs:
            self.pending_syncs.remove(old)
            self.pending_syncs.add(member_id)

    def assign(self, member: Member, assignment: bytes) -> None:
        """Keep what the leader has assigned to a member."""
        self._take(len(assignment) - len(member.assignment))
        member.assignment = assignment

    def bytes_of(self, member_id: str) -> int:
        """Return what a member takes in memory, or a pending id; 0 for a stranger."""
        member = self.members.get(member_id)
        if member is not None:
            return member.size_bytes
        return _pending_bytes(member_id) if member_id in self.pending_members else 0

    def code_of(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Return NONE for a member, else UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
        if group_instance_id is not None:
            holder = self.static_members.get(group_instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def known(self, member_id: str, group_instance_id: str | None) -> Member:
        """Return the member, or raise what `code_of` says."""
        member = self.members.get(member_id)
        holder = None if group_instance_id is None else self.static_members.get(group_instance_id)
        if member is not None and (group_instance_id is None or holder == member_id):
            return member
        code = self.code_of(member_id, group_instance_id)
        if code is ErrorCode.FENCED_INSTANCE_ID:
            detail = f"{self.group_id}: {group_instance_id} is {holder} now, not {member_id}"
        elif group_instance_id is not None and holder is None:
            detail = f"{self.group_id} has no member with group.instance.id {group_instance_id}"
        else:
            detail = f"{self.group_id} has no member {member_id!r}"
        raise KafkaError(code, detail)

    def joined_members(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(
                member.member_id, member.group_instance_id, member.metadata(self.protocol_name)
            )
            for member in self.members.values()
        )

    def _forget_protocols(self, member: Member) -> None:
        for name in {name for name, _ in member.protocols}:
            self._supporters[name] -= 1
            if not self._supporters[name]:
                del self._supporters[name]

    # --- parked requests

    def park_join(self, member: Member, token: Token) -> Token | None:
        """Hold `token` until the rebalance ends; return the older token that it supersedes."""
        superseded, member.joining = member.joining, token
        self.joins_waiting += superseded is None
        return superseded

    def take_join(self, member: Member) -> Token | None:
        """Return the token of the member's parked join, and forget it."""
        token, member.joining = member.joining, None
        self.joins_waiting -= token is not None
        return token

    @property
    def all_joined(self) -> bool:
        return len(self.members) == self.joins_waiting and not self.pending_members

    # --- deadlines

    @property
    def deadline_ms(self) -> int | None:
        """When to call `expire`: at the earliest deadline, or before. None: there is none."""
        deadlines = (self.join_deadline_ms, self.sync_deadline_ms, self._wake_ms)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def restart_session(self, member: Member, now_ms: int, timeout_ms: int | None = None) -> None:
        """Give the member its session timeout, or `timeout_ms`, from now on. O(1)."""
        timeout = member.session_timeout_ms if timeout_ms is None else timeout_ms
        member.session_deadline_ms = now_ms + timeout
        self._wake_by(member.session_deadline_ms)

    def add_pending(self, member_id: str, deadline_ms: int) -> None:
        """Expect a join with this id until the deadline; beyond the limit drop the oldest id."""
        # Ids cost the client nothing: without a limit they would exhaust the broker's memory.
        if len(self.pending_members) >= self.limits.pending_members_max:
            self.drop_pending(next(iter(self.pending_members)))
        self.pending_members[member_id] = deadline_ms
        self._take(_pending_bytes(member_id))
        self._wake_by(deadline_ms)

    def drop_pending(self, member_id: str) -> bool:
        """Expect no join with this id any more; return whether one was expected."""
        if self.pending_members.pop(member_id, None) is None:
            return False
        self._take(-_pending_bytes(member_id))
        return True

    def reckon_wake(self) -> None:
        """Move the lower bound to the earliest session or pending deadline. O(members)."""
        deadlines = [
            member.session_deadline_ms for member in self.members.values() if member.session_counts
        ]
        # An id that was given and never used holds a rebalance up, so it expires too.
        deadlines.extend(self.pending_members.values())
        self._wake_ms = min(deadlines, default=None)

    def _wake_by(self, deadline_ms: int) -> None:
        if self._wake_ms is None or deadline_ms < self._wake_ms:
            self._wake_ms = deadline_ms
