"""The seam to a shared store: what a node writes in one commit, and how logs are read back.

A store keeps, for each node, its incarnation and the number of its last commit. A commit has effect
only if the incarnation is still the writer's, and the last commit the one that it names: all of it
then, or nothing. So the commits of one incarnation are a gapless prefix, and none follows the
take-over of the node's partitions, which raises the incarnation.

- `OutcomeUnknown`: the commit may have had effect, may have it later, or never. Ask `last_commit`.
- A commit may rest on commits of other nodes (`Basis`): it has no effect where one of them is not
  there. All that a store keeps has one order, so a fail-over that takes a basis back takes what
  rests on it back too, and no server ever has the one without the other.
- A commit that has returned has had its effect, and so has each before it. Until the commit is
  *proven*, a fail-over to a standby may take the effect back, also after reads have shown it. A
  commit is proven when `prove` has returned for it or for a later one. Proofs wait for the
  standby's answer; commits need not.

Implementations: `PostgresStore`, and for tests `SimulatedStore`; one contract test serves both. All
calls come from the event loop's thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from logstore.disk.files import StorageFailure

#: A node's lease ends so long after its last commit, by the store's clock. The functions
#: `lease_end` and `is_leased` of PostgreSQL's tables have the same number.
LEASE_MS = 6_000
#: How many proofs may be under way.
PROOFS_MAX = 4
#: How many logs one request to the store loads. Most bring one segment at most.
LOADED_TOGETHER = 16


class Fenced(Exception):
    """This incarnation may write no more: the node was taken over, or has started again."""


class NodeFenced(StorageFailure):
    """Other nodes have taken over what this node led, or one has its id: this process must end."""


class Forgotten(Exception):
    """The store does not know this incarnation: it has lost a start that it had acknowledged."""


class CommitsLost(StorageFailure):
    """The store has lost commits that it had acknowledged: a standby that was behind took over."""


class BasisLost(Exception):
    """A commit rests on one that may be lost for good: the incarnation of that one was replaced."""


class OutcomeUnknown(Exception):
    """Whether a commit has taken effect is not known."""


class NoRoom(OutcomeUnknown):
    """A commit was refused because the store has no room."""


class StoreUnavailable(Exception):
    """The store does not answer. Nothing has changed; try again."""


class LogKey(NamedTuple):
    """A partition's log. Topic ids are never given out again, so a key means one log for ever."""

    topic_id: UUID
    partition: int


class Span(NamedTuple):
    """The offsets of a log from `base_offset` on and below `end_offset`; by default all of them."""

    key: LogKey
    base_offset: int = 0
    end_offset: int = (1 << 63) - 1


class Chunk(NamedTuple):
    """Whole batches of one log, next to one another."""

    key: LogKey
    base_offset: int
    end_offset: int
    data: bytes


class StoredSegment(NamedTuple):
    """A segment below the active one. `max_timestamp_ms` is -1 where no record has one."""

    key: LogKey
    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp_ms: int


class LogStart(NamedTuple):
    """Where a log begins. Segments and chunks that lie wholly below `kept_from` are removed.

    Nothing that is stored begins below `stored_from`. So a removal need not go through what those
    before it have removed, which stays in an index for a while.
    """

    key: LogKey
    start_offset: int
    kept_from: int = 0
    stored_from: int = 0


class AttachmentChange(NamedTuple):
    """One small file: replaced by `data`, or appended to. `data` None: deleted."""

    key: LogKey
    name: str
    data: bytes | None
    is_append: bool = False


class Swap(NamedTuple):
    """One segment that takes the place of all segments and chunks in its bounds."""

    segment: StoredSegment
    chunks: Sequence[Chunk]


class Move(NamedTuple):
    """Chunks that take the place of those in these bounds, and stand for the same batches."""

    key: LogKey
    base_offset: int
    end_offset: int
    chunks: Sequence[Chunk]


class Changes(NamedTuple):
    """What one commit writes, in this order: swaps and moves, what the starts remove, the rest.

    Each attachment, and each log's start, appears once at most. A log has a swap or a move, or
    neither.
    """

    chunks: Sequence[Chunk] = ()
    segments: Sequence[StoredSegment] = ()
    starts: Sequence[LogStart] = ()
    attachments: Sequence[AttachmentChange] = ()
    swaps: Sequence[Swap] = ()
    moves: Sequence[Move] = ()


NOTHING = Changes()


class Basis(NamedTuple):
    """A commit of another node that has had its effect, and may not be proven yet."""

    node_id: int
    incarnation: int
    number: int


class Bases(Protocol):
    """What this node's commits rest on, and what others may rest on: this node's last commit."""

    def basis(self) -> Basis | None:
        """Return this node's last commit that has had its effect, if it is not proven yet.

        Whatever is told of this node's logs rests on that commit. None: all of it is durable.
        """

    def rest_on(self, basis: Basis) -> None:
        """Let no later append of this node have an effect without `basis`."""


class Commit(NamedTuple):
    """A node's commit. It has effect only behind the commit `previous`, 0 for the first one.

    Numbers ascend, and one number stands for the same changes always, however often it is sent.
    """

    number: int
    previous: int
    changes: Changes = NOTHING
    #: The commit has no effect unless all of these have had theirs.
    rests_on: Sequence[Basis] = ()


class Wanted(NamedTuple):
    """A log to be loaded, with its chunks from the last one that begins before `from_offset` on.

    None: from the last one that begins before its active segment.
    """

    key: LogKey
    from_offset: int | None = None


class StoredLog(NamedTuple):
    """A log as the store has it, and the chunks that were asked for, ascending."""

    start_offset: int = 0
    segments: Sequence[StoredSegment] = ()
    attachments: Mapping[str, bytes] = {}
    chunks: Sequence[Chunk] = ()
    #: Where the log's first stored chunk begins; None: none is stored.
    first_offset: int | None = None
    #: Why the chunks could not be read: they lie in objects that are out of reach. All other fields
    #: have no meaning then. Empty: the log is here.
    away: str = ""


def all_are_there(bases: Sequence[Basis], last: Mapping[int, tuple[int, int]]) -> bool:
    """Return whether each basis is there. Raises BasisLost.

    `last`: of each node the incarnation, and the number of its last commit.
    """
    for basis in bases:
        incarnation, number = last.get(basis.node_id, (-1, 0))
        if incarnation > basis.incarnation:
            # Its commit may be there. But nothing tells any more: the row counts the new
            # incarnation's commits.
            raise BasisLost(
                f"commit {basis.number} of incarnation {basis.incarnation} of node {basis.node_id}"
            )
        if incarnation < basis.incarnation or number < basis.number:
            return False
    return True


class StoredLogs(Protocol):
    """The logs of a store, as they are read back. `BulkStore` follows their references to objects;
    a `CommitStore` returns the rows as they are."""

    async def load(self, wanted: Sequence[Wanted]) -> list[StoredLog]:
        """Return logs, in the order of `wanted`; empty ones where nothing is stored.

        One may be `away`: look at that field before any other. Raises StoreUnavailable.
        """

    async def read(
        self, key: LogKey, offset: int, max_bytes: int, end_offset: int
    ) -> Sequence[Chunk]:
        """Return chunks from the one that holds `offset` on, or from the next after a gap.

        The first one whole, the next ones up to `max_bytes` in all, none that begins at
        `end_offset` or after. Raises StoreUnavailable.
        """


class CommitStore(StoredLogs, Protocol):
    """The store, as one incarnation of one node uses it."""

    @property
    def proven(self) -> int:
        """The number of the last commit that is known to be proven; 0: none is."""

    def begin_as(self, node_id: int, incarnation: int) -> None:
        """Commit as this incarnation from here on. Call it before `connect`."""

    async def connect(self) -> None:
        """Connect, or connect anew. Raises StoreUnavailable."""

    async def commit(self, commit: Commit) -> None:
        """Let a commit have its effect, and renew the lease. Raises Fenced, OutcomeUnknown.

        One at a time. Without a standby the commit is proven when this returns. `Fenced` says only
        that the incarnation, the last commit, or a basis is not as expected: `last_commit` and
        `has` tell which.
        """

    async def prove(self, number: int) -> None:
        """Return when the commit `number`, and all before it, are proven.

        `PROOFS_MAX` at a time, also beside a commit. Raises OutcomeUnknown: the store may have
        failed over, and may lack this commit.
        """

    async def renew(self) -> None:
        """Renew the lease as a commit does, without one. Raises Fenced, StoreUnavailable.

        Not beside a commit.
        """

    async def has(self, bases: Sequence[Basis]) -> bool:
        """Return whether all of these have had their effect. Raises BasisLost, StoreUnavailable."""

    async def last_commit(self) -> int:
        """Return the number of this incarnation's last commit, 0 if there is none.

        Raises Fenced, Forgotten, StoreUnavailable.
        """

    async def delete(self, keys: Sequence[LogKey]) -> None:
        """Delete everything of these logs, whose topics are gone. Raises StoreUnavailable."""

    async def reclaim(self, bytes_min: int) -> None:
        """Make the room of removed chunks free for new ones, if it is `bytes_min` at least.

        Raises StoreUnavailable.
        """

    async def incarnations(self) -> Collection[int]:
        """Return the incarnation of each node. No earlier one can commit any more.

        Raises StoreUnavailable.
        """

    async def remains(self, topic_ids: Collection[UUID]) -> Sequence[LogKey]:
        """Return the logs of these topics of which anything is stored. Raises StoreUnavailable."""

    def references(self, spans: Collection[Span]) -> AsyncIterator[Sequence[bytes]]:
        """Yield the data of each chunk that is a reference to an object and begins in one of these
        spans, some at a time. There is one span for each log. Raises StoreUnavailable.
        """
        ...

    async def close(self) -> None:
        """Let go of all connections."""
