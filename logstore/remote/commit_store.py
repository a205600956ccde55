"""The seam to a shared store: what a node writes in one commit, and how logs are read back.

A store keeps, for each node, its incarnation and the number of its last commit. A commit has effect
only if the incarnation is still the writer's, and the last commit the one that it names: all of it
then, or nothing. So the commits of one incarnation are a gapless prefix, and none follows the
take-over of the node's partitions, which raises the incarnation.

- `OutcomeUnknown`: the commit may have had effect, may have it later, or never. Ask `last_commit`.
- A commit may rest on commits of other nodes (`Basis`): it has no effect where one of them is not
  there. All that a store keeps has one order, so a fail-over that takes a basis back takes what
  rests on it back too, and no server ever has the one without the other.
- A commit that has returned has had its effect, and so has each before it. A fail-over to a standby
  may take that back, as it may what a read shows, until it is *proven*: `prove` has returned for
  this commit or a later one. Proofs wait for the standby's distance; commits need not.

Implementations: `PostgresStore`, and for tests `SimulatedStore`; one contract test serves both. All
calls come from the event loop's thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from logstore.disk.files import StorageFailure

#: A node's lease ends so long after its last commit, by the store's clock.
LEASE_MS = 6_000
#: How many proofs may be under way.
PROOFS_MAX = 4


class Fenced(Exception):
    """This incarnation may write no more: another one of the node has begun, or a take-over."""


class NodeFenced(StorageFailure):
    """Others have taken over what this node led, or have its id: its process must end."""


class Forgotten(Exception):
    """The store knows this incarnation no more: it has lost a start that it had acknowledged."""


class CommitsLost(StorageFailure):
    """The store has forgotten what it had acknowledged: a standby took over that was behind."""


class BasisLost(Exception):
    """A commit rests on one that will never be there: its node has begun anew since."""


class OutcomeUnknown(Exception):
    """Whether a commit has taken effect is not known."""


class StoreUnavailable(Exception):
    """The store does not answer. Nothing has changed; try again."""


class LogKey(NamedTuple):
    """A partition's log. Topic ids are never given out again, so a key means one log for ever."""

    topic_id: UUID
    partition: int


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
    """Where a log begins. Segments and chunks below `kept_from`, if it is above 0, go."""

    key: LogKey
    start_offset: int
    kept_from: int = 0


class AttachmentChange(NamedTuple):
    """One small file: replaced by `data`, or appended to. `data` None: deleted."""

    key: LogKey
    name: str
    data: bytes | None
    is_append: bool = False


class Swap(NamedTuple):
    """One segment that takes the place of all that lies in its bounds."""

    segment: StoredSegment
    chunks: Sequence[Chunk]


class Move(NamedTuple):
    """Chunks that take the place of those in these bounds, and stand for the same batches."""

    key: LogKey
    base_offset: int
    end_offset: int
    chunks: Sequence[Chunk]


class Changes(NamedTuple):
    """What one commit writes. An attachment and a log's start appear once in it, a log in one of
    `swaps` and `moves` at most.

    The swaps and moves come first, then what the starts remove, then the rest.
    """

    chunks: Sequence[Chunk] = ()
    segments: Sequence[StoredSegment] = ()
    starts: Sequence[LogStart] = ()
    attachments: Sequence[AttachmentChange] = ()
    swaps: Sequence[Swap] = ()
    moves: Sequence[Move] = ()


NOTHING = Changes()


class Basis(NamedTuple):
    """A commit of another node, which has had its effect, and perhaps is not proven."""

    node_id: int
    incarnation: int
    number: int


class Bases(Protocol):
    """A node's commits, as others rest on them, and they on those of others."""

    def basis(self) -> Basis | None:
        """Return on what everything rests that is ordered here now: a commit that may be taken
        back yet. None: all of it is durable."""

    def rest_on(self, basis: Basis) -> None:
        """Let nothing that is appended from now on be there without that."""


class Commit(NamedTuple):
    """A node's commit. It has effect only behind the commit `previous`, 0 for the first one.

    Numbers ascend, and one number stands for the same changes always, however often it is sent.
    """

    number: int
    previous: int
    changes: Changes = NOTHING
    #: Without these it has no effect.
    rests_on: Sequence[Basis] = ()


class Wanted(NamedTuple):
    """A log to be loaded, with its batches from the last one before `from_offset` on.

    None: before its active segment.
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
    #: Why its chunks are not here: they lie in objects that cannot be read now. Then nothing else
    #: here is the log's. Empty: all is.
    away: str = ""


def all_are_there(bases: Sequence[Basis], last: Mapping[int, tuple[int, int]]) -> bool:
    """Return whether each basis is there. Raises BasisLost.

    `last`: of each node the incarnation, and the number of its last commit.
    """
    for basis in bases:
        incarnation, number = last.get(basis.node_id, (-1, 0))
        if incarnation > basis.incarnation:
            # It may have been there. That incarnation can say so no more.
            raise BasisLost(
                f"commit {basis.number} of incarnation {basis.incarnation} of node {basis.node_id}"
            )
        if incarnation < basis.incarnation or number < basis.number:
            return False
    return True


class CommitStore(Protocol):
    """The store as one incarnation of one node has it."""

    @property
    def proven(self) -> int:
        """The commits up to this number are there for good, as far as this store was told."""

    def begin_as(self, node_id: int, incarnation: int) -> None:
        """Commit as this incarnation from here on. Call it before `connect`."""

    async def connect(self) -> None:
        """Connect, or connect anew. Raises StoreUnavailable."""

    async def commit(self, commit: Commit) -> None:
        """Let a commit have its effect, and renew the lease. Raises Fenced, OutcomeUnknown.

        One at a time. It may be proven at once, where nothing is waited for but the disk.
        `Fenced` says only that the incarnation, the last commit, or what the commit rests on, is
        not what was expected: `last_commit` and `has` tell which.
        """

    async def prove(self, number: int) -> None:
        """Return when the commit `number`, and all before it, are there for good.

        `PROOFS_MAX` at a time, also beside a commit. Raises OutcomeUnknown: the store may have
        failed over, and may lack this commit.
        """

    async def renew(self) -> None:
        """Renew the lease as a commit does, without one. Raises Fenced, StoreUnavailable.

        Not beside a commit.
        """

    async def has(self, bases: Sequence[Basis]) -> bool:
        """Return whether all of these are there. Raises BasisLost, StoreUnavailable."""

    async def last_commit(self) -> int:
        """Return the number of this incarnation's last commit, 0 if there is none.

        Raises Fenced, Forgotten, StoreUnavailable.
        """

    async def load(self, wanted: Sequence[Wanted]) -> list[StoredLog]:
        """Return logs, in the order of `wanted`; empty ones where nothing is stored.

        One may be `away`: look at that before anything else. Raises StoreUnavailable.
        """

    async def read(
        self, key: LogKey, offset: int, max_bytes: int, end_offset: int
    ) -> Sequence[Chunk]:
        """Return chunks from the one that holds `offset` on, or from the next after a gap.

        The first one whole, the next ones up to `max_bytes` in all, none that begins at
        `end_offset` or after. Raises StoreUnavailable.
        """

    async def delete(self, keys: Sequence[LogKey]) -> None:
        """Delete everything of these logs, whose topics are gone. Raises StoreUnavailable."""

    async def reclaim(self, bytes_min: int) -> None:
        """Let the room of removed chunks be used again, once it is so much.

        Raises StoreUnavailable.
        """

    async def incarnations(self) -> Collection[int]:
        """Return the incarnation of each node: no earlier one of any node can commit any more.

        Raises StoreUnavailable.
        """

    async def remains(self, topic_ids: Collection[UUID]) -> Sequence[LogKey]:
        """Return the logs of these topics of which anything is stored. Raises StoreUnavailable."""

    def references(self, logs: Collection[LogKey]) -> AsyncIterator[Sequence[bytes]]:
        """Yield the data of each chunk of these logs that is a reference to an object, some at a
        time. Raises StoreUnavailable.
        """
        ...

    async def close(self) -> None:
        """Let go of all connections."""
