"""The twin of the shared store for tests and simulations: in memory, with everything that goes
wrong between a node and its database.

`SimulatedDatabase` outlives the nodes; its methods are what happens in the database itself, at
once. `SimulatedStore` is one incarnation's way to it, on which requests and replies get lost.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from random import Random
from uuid import UUID

from logstore.remote.commit_store import (
    LEASE_MS,
    AttachmentChange,
    Basis,
    Changes,
    Chunk,
    Commit,
    Fenced,
    Forgotten,
    LogKey,
    LogStart,
    Move,
    OutcomeUnknown,
    Span,
    StoredLog,
    StoredSegment,
    StoreUnavailable,
    Swap,
    Wanted,
    all_are_there,
)
from logstore.remote.references import is_reference

#: How long a request takes, seconds; and a commit of a connection that is cut already.
_DELAYS_S = (0.0001, 0.0005, 0.002, 0.02)
_LATE_S = (0.001, 0.05, 1.0)


class Mishap(Enum):
    """What happens to one request."""

    NONE = 0
    #: It never reaches the database.
    REQUEST_LOST = 1
    #: It has its effect, and the node hears nothing.
    REPLY_LOST = 2
    #: The connection is cut, and the request has its effect a while later.
    LATE = 3


@dataclass
class StoredNode:
    """A node's row, as far as commits go."""

    incarnation: int
    number: int = 0
    lease_until_ms: int = 0


@dataclass
class _Log:
    start_offset: int = 0
    chunks: list[Chunk] = field(default_factory=list)
    segments: list[StoredSegment] = field(default_factory=list)
    attachments: dict[str, bytes] = field(default_factory=dict)

    def copied(self) -> _Log:
        return _Log(self.start_offset, [*self.chunks], [*self.segments], dict(self.attachments))


class SimulatedDatabase:
    """What is stored, and which incarnation of each node may write."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        self._now_ms = now_ms
        self.nodes: dict[int, StoredNode] = {}
        self._logs: dict[LogKey, _Log] = {}
        #: How often the room of what was removed was made free.
        self.reclaimed = 0
        self._removed_bytes = 0
        #: Is told of each basis in the moment before a commit that rests on it.
        self.on_basis: Callable[[Basis], None] = _ignore
        # How to take back what no standby has yet, the newest last.
        self._undo: list[Callable[[], None]] = []
        #: How often a standby has taken over.
        self.fail_overs = 0

    def start_node(self, node_id: int, incarnation: int) -> None:
        """Let this incarnation write, and no other one of that node."""
        self.confirm()
        self.nodes[node_id] = StoredNode(incarnation, 0, self._now_ms() + LEASE_MS)

    def set_nodes(self, rows: Iterable[tuple[int, int, int, int]]) -> None:
        """Replace everything known of nodes by rows: id, incarnation, last commit, lease's end."""
        self.nodes = {node_id: StoredNode(*columns) for node_id, *columns in rows}

    def copied_nodes(self) -> dict[int, StoredNode]:
        """Return what is known of nodes, for `undone_by`."""
        return {node_id: replace(node) for node_id, node in self.nodes.items()}

    def undone_by(self, undo: Callable[[], None]) -> None:
        """Take a change back by `undo` if a standby takes over that does not have it."""
        self._undo.append(undo)

    def is_live(self, node_id: int) -> bool:
        """Whether the node's lease holds."""
        return self.nodes[node_id].lease_until_ms >= self._now_ms()

    def renew(self, node_id: int, incarnation: int) -> bool:
        """Renew the node's lease, if this incarnation has it; return whether it has."""
        node = self.nodes.get(node_id)
        if node is None or node.incarnation != incarnation:
            return False
        node.lease_until_ms = self._now_ms() + LEASE_MS
        return True

    def confirm(self) -> None:
        """Let a standby have everything: what was acknowledged is never taken back."""
        self._undo.clear()

    def fail_over(self) -> None:
        """Let a standby take over, which has all that was acknowledged, and nothing else."""
        self.fail_overs += 1
        while self._undo:
            self._undo.pop()()

    def prove(self, node_id: int, incarnation: int, number: int) -> bool:
        """Let a standby have everything, if that commit is there; return whether it is."""
        node = self.nodes.get(node_id)
        if node is None or node.incarnation != incarnation or node.number < number:
            return False
        self.confirm()
        return True

    def commit(self, node_id: int, incarnation: int, commit: Commit) -> bool:
        """Do what the fenced statement does; return whether it had effect."""
        for basis in commit.rests_on:
            self.on_basis(basis)
        node = self.nodes.get(node_id)
        if node is None or (node.incarnation, node.number) != (incarnation, commit.previous):
            return False
        if not all(self._is_there(basis) for basis in commit.rests_on):
            return False
        changes = commit.changes
        keys = {change.key for changed in changes[:4] for change in changed}
        keys |= {swap.segment.key for swap in changes.swaps}
        keys |= {move.key for move in changes.moves}
        self._undo.append(
            partial(
                self._restore,
                node_id,
                replace(node),
                {key: self._logs[key].copied() if key in self._logs else None for key in keys},
            )
        )
        node.number = commit.number
        node.lease_until_ms = self._now_ms() + LEASE_MS
        self._apply(changes)
        return True

    def _is_there(self, basis: Basis) -> bool:
        node = self.nodes.get(basis.node_id)
        return (
            node is not None
            and node.incarnation == basis.incarnation
            and node.number >= basis.number
        )

    def _restore(self, node_id: int, node: StoredNode, logs: dict[LogKey, _Log | None]) -> None:
        self.nodes[node_id] = node
        for key, log in logs.items():
            if log is None:
                self._logs.pop(key, None)
            else:
                self._logs[key] = log

    def _apply(self, changes: Changes) -> None:
        for swap in changes.swaps:
            self._swap(swap)
        for move in changes.moves:
            self._move(move)
        for start in changes.starts:
            self._begin(start)
        for segment in changes.segments:
            self._log(segment.key).segments.append(segment)
        for chunk in changes.chunks:
            chunks = self._log(chunk.key).chunks
            assert not chunks or chunks[-1].end_offset <= chunk.base_offset, "two writers"
            chunks.append(chunk)
        for change in changes.attachments:
            self._attach(change)

    def _log(self, key: LogKey) -> _Log:
        return self._logs.setdefault(key, _Log())

    def _swap(self, swap: Swap) -> None:
        segment = swap.segment
        self._move(Move(segment.key, segment.base_offset, segment.end_offset, swap.chunks))
        log = self._log(segment.key)
        kept = [one for one in log.segments if _lies_outside(one, segment)]
        log.segments = sorted([*kept, segment], key=lambda each: each.base_offset)

    def _move(self, move: Move) -> None:
        log = self._log(move.key)
        kept = [one for one in log.chunks if _lies_outside(one, move)]
        assert all(
            move.base_offset <= one.base_offset and one.end_offset <= move.end_offset
            for one in log.chunks
            if one not in kept
        ), "a chunk reaches beyond what is replaced"
        self._removed_bytes += _size(log.chunks) - _size(kept)
        log.chunks = sorted([*kept, *move.chunks], key=lambda chunk: chunk.base_offset)

    def _begin(self, start: LogStart) -> None:
        log = self._log(start.key)
        log.start_offset = max(log.start_offset, start.start_offset)
        begins = [one.base_offset for one in log.chunks]
        begins += [one.base_offset for one in log.segments]
        assert start.stored_from <= min(begins, default=start.stored_from), "that would stay"
        kept = [one for one in log.chunks if one.end_offset > start.kept_from]
        self._removed_bytes += _size(log.chunks) - _size(kept)
        log.chunks = kept
        log.segments = [one for one in log.segments if one.end_offset > start.kept_from]

    def _attach(self, change: AttachmentChange) -> None:
        attachments = self._log(change.key).attachments
        if change.data is None:
            attachments.pop(change.name, None)
        elif change.is_append:
            attachments[change.name] = attachments.get(change.name, b"") + change.data
        else:
            attachments[change.name] = change.data

    def load(self, wanted: Wanted) -> StoredLog:
        """Return a log as it is stored."""
        log = self._logs.get(wanted.key)
        if log is None:
            return StoredLog()
        from_offset = wanted.from_offset
        if from_offset is None:
            from_offset = log.segments[-1].end_offset if log.segments else 0
        bases = [chunk.base_offset for chunk in log.chunks]
        first = max(bisect_left(bases, from_offset) - 1, 0)
        return StoredLog(
            log.start_offset,
            [*log.segments],
            dict(log.attachments),
            log.chunks[first:],
            bases[0] if bases else None,
        )

    def read(self, key: LogKey, offset: int, max_bytes: int, end_offset: int) -> list[Chunk]:
        """Return chunks as `StoredLogs.read` does."""
        log = self._logs.get(key)
        if log is None:
            return []
        first = bisect_right([chunk.base_offset for chunk in log.chunks], offset) - 1
        if first < 0 or log.chunks[first].end_offset <= offset:
            first += 1
        found: list[Chunk] = []
        for chunk in log.chunks[first:]:
            max_bytes -= len(chunk.data)
            if chunk.base_offset >= end_offset or (found and max_bytes < 0):
                break
            found.append(chunk)
        return found

    def references(self, spans: Collection[Span] | None = None) -> list[bytes]:
        """Return the references in some spans; None: all."""
        of_logs = None if spans is None else {span.key: span for span in spans}
        found: list[bytes] = []
        for key, log in self._logs.items():
            span = Span(key) if of_logs is None else of_logs.get(key)
            found += [
                chunk.data
                for chunk in log.chunks
                if is_reference(chunk.data)
                and span is not None
                and span.base_offset <= chunk.base_offset < span.end_offset
            ]
        return found

    def reclaim(self, bytes_min: int) -> None:
        """Make room that was removed free, if it is so much."""
        if self._removed_bytes >= bytes_min:
            self._removed_bytes = 0
            self.reclaimed += 1

    def delete(self, keys: Iterable[LogKey]) -> None:
        """Delete everything of these logs."""
        for key in keys:
            self._removed_bytes += _size(self._logs.pop(key, _Log()).chunks)

    def keys(self) -> set[LogKey]:
        """Return the logs of which anything is stored."""
        return set(self._logs)


def _ignore(_: Basis) -> None:
    """Nothing happens."""


def _size(chunks: Iterable[Chunk]) -> int:
    return sum(len(chunk.data) for chunk in chunks)


def _lies_outside(each: Chunk | StoredSegment, bounds: StoredSegment | Move) -> bool:
    return each.end_offset <= bounds.base_offset or each.base_offset >= bounds.end_offset


class SimulatedStore:
    """One incarnation's way to a `SimulatedDatabase`."""

    def __init__(
        self,
        database: SimulatedDatabase,
        node_id: int = 0,
        incarnation: int = 0,
        *,
        random: Random | None = None,
        mishap_probability: float = 0.0,
    ) -> None:
        """Without `random` nothing takes time and nothing goes wrong but what `mishaps` says."""
        self._database = database
        self._node_id = node_id
        self._incarnation = incarnation
        self._random = random
        self._mishap_probability = mishap_probability
        #: What happens to the next requests, the first one first.
        self.mishaps: deque[Mishap] = deque()
        #: How many references were returned.
        self.references_read = 0
        #: How much longer each commit takes before it has its effect.
        self.slow_s = 0.0
        #: How much longer a proof takes: the synchronous standby is slow.
        self.slow_proof_s = 0.0
        #: What happens to the next proofs, which have connections of their own.
        self.proof_mishaps: deque[Mishap] = deque()
        self.proven = 0
        #: Whether a commit that has returned has to be proven yet.
        self.has_standby = True
        self._session = 1  # of the connection for commits
        self._committing = 0  # the session in which a commit is under way
        #: Whether the network lets nothing through.
        self.is_cut = False
        self._is_connected = False

    def begin_as(self, node_id: int, incarnation: int) -> None:
        self._node_id, self._incarnation = node_id, incarnation
        self.proven = 0

    async def connect(self) -> None:
        await self._delay()
        if self.is_cut:
            raise StoreUnavailable("the network is cut")
        self._is_connected = True
        self._session += 1

    async def commit(self, commit: Commit) -> None:
        session = self._session
        assert self._committing != session, "one at a time on a connection"
        self._committing = session
        try:
            await self._commit(commit)
        finally:
            if self._committing == session:
                self._committing = 0

    async def _commit(self, commit: Commit) -> None:
        await self._delay()
        if self.slow_s:
            await asyncio.sleep(self.slow_s)
        apply = partial(self._database.commit, self._node_id, self._incarnation, commit)
        mishap = self._mishap()
        if mishap is Mishap.REPLY_LOST:
            apply()
        elif mishap is Mishap.LATE:
            late_s = _LATE_S[0] if self._random is None else self._random.choice(_LATE_S)
            asyncio.get_running_loop().call_later(late_s, apply)
        if mishap is not Mishap.NONE:
            raise OutcomeUnknown(f"commit {commit.number}: {mishap.name}")
        if not apply():
            raise Fenced(f"commit {commit.number} of incarnation {self._incarnation}")
        if not self.has_standby:
            self._database.confirm()
        await self._delay()
        if not self.has_standby:
            self.proven = max(self.proven, commit.number)

    async def prove(self, number: int) -> None:
        await self._delay()
        if self.slow_proof_s:
            await asyncio.sleep(self.slow_proof_s)
        mishap = self._chance(self.proof_mishaps)
        if mishap in (Mishap.REQUEST_LOST, Mishap.LATE):
            raise OutcomeUnknown(f"a proof of commit {number}: {mishap.name}")
        if not self._database.prove(self._node_id, self._incarnation, number):
            raise OutcomeUnknown(f"commit {number} is not there")
        await self._delay()
        if mishap is Mishap.REPLY_LOST:
            raise OutcomeUnknown(f"a proof of commit {number}: {mishap.name}")
        self.proven = max(self.proven, number)

    async def renew(self) -> None:
        await self._ask()
        if not self._database.renew(self._node_id, self._incarnation):
            raise Fenced(f"incarnation {self._incarnation} of node {self._node_id}")

    async def has(self, bases: Sequence[Basis]) -> bool:
        await self._ask()
        nodes = self._database.nodes.items()
        return all_are_there(
            bases, {node_id: (node.incarnation, node.number) for node_id, node in nodes}
        )

    async def last_commit(self) -> int:
        await self._ask()
        node = self._database.nodes.get(self._node_id)
        own = f"incarnation {self._incarnation} of node {self._node_id}"
        if node is None or node.incarnation < self._incarnation:
            raise Forgotten(own)
        if node.incarnation > self._incarnation:
            raise Fenced(own)
        return node.number

    async def load(self, wanted: Sequence[Wanted]) -> list[StoredLog]:
        await self._ask()
        return [self._database.load(one) for one in wanted]

    async def read(
        self, key: LogKey, offset: int, max_bytes: int, end_offset: int
    ) -> Sequence[Chunk]:
        await self._ask()
        return self._database.read(key, offset, max_bytes, end_offset)

    async def delete(self, keys: Sequence[LogKey]) -> None:
        await self._ask()
        self._database.delete(keys)

    async def reclaim(self, bytes_min: int) -> None:
        await self._ask()
        self._database.reclaim(bytes_min)

    async def incarnations(self) -> Collection[int]:
        await self._ask()
        return [node.incarnation for node in self._database.nodes.values()]

    async def remains(self, topic_ids: Collection[UUID]) -> Sequence[LogKey]:
        await self._ask()
        return [key for key in sorted(self._database.keys()) if key.topic_id in topic_ids]

    async def references(self, spans: Collection[Span]) -> AsyncIterator[Sequence[bytes]]:
        await self._ask()
        for data in self._database.references(spans):
            self.references_read += 1
            yield [data]

    async def close(self) -> None:
        self._is_connected = False

    async def _ask(self) -> None:
        """Let a request that commits nothing take its time, or fail."""
        await self._delay()
        if self._mishap() is not Mishap.NONE:
            raise StoreUnavailable("the connection is gone")

    def _mishap(self) -> Mishap:
        """Return what happens to this request. A mishap costs the connection."""
        mishap = self._chance(self.mishaps) if self._is_connected else Mishap.REQUEST_LOST
        if mishap is not Mishap.NONE:
            self._is_connected = False
        return mishap

    def _chance(self, planned: deque[Mishap]) -> Mishap:
        if self.is_cut:
            return Mishap.REQUEST_LOST
        if planned:
            return planned.popleft()
        if self._random is not None and self._random.random() < self._mishap_probability:
            chosen: Mishap = self._random.choice([*Mishap][1:])
            return chosen
        return Mishap.NONE

    async def _delay(self) -> None:
        if self._random is not None:
            await asyncio.sleep(self._random.choice(_DELAYS_S))
