"""Fetch sessions: what each consumer fetches, remembered, so that a fetch names only what changed.

Pure: decides which partitions a fetch reads and which of them its response carries; reads nothing
and asks no clock. Bounded by slots (sessions), and by the partitions that all sessions remember
together. A missing session costs its consumer one full fetch, whatever the reason. Source: KIP-227,
KIP-516 (topic ids).

    session id 0, epoch 0      a full fetch that would like a session: opened when it is answered,
                               if there is room
    session id n, epoch 0      the same, closing session n
    session id n, epoch -1     a full fetch without a session, closing session n (0: none)
    session id n, epoch e > 0  incremental: adds, changes, forgets partitions; e must be the epoch
                               that is due
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.fetch import FetchRequest

#: `max.incremental.fetch.session.cache.slots`.
SLOTS_DEFAULT = 1000
#: A session unused for longer may be evicted; one that exists for longer, by a larger one.
EVICTION_MS_DEFAULT = 120_000
#: Partitions in all sessions together, at some 300 bytes each.
PARTITIONS_MAX_DEFAULT = 200_000

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_EPOCH_MAX = 2**31 - 1
_TOPIC_IDS_SINCE = 13
_UNKNOWN_OFFSET = -1

#: A topic's id, or its name before version 13, and the partition.
PartitionKey = tuple[UUID | str, int]


class FetchPartitionRequest(NamedTuple):
    """One partition that a fetch reads: `topic` up to version 12, `topic_id` since version 13."""

    topic: str
    topic_id: UUID
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int


class FetchedPartition(NamedTuple):
    """The outcome of reading one partition, as far as the session needs it.

    `is_diverging`: the answer names a diverging epoch, of which the consumer must learn.
    """

    error_code: ErrorCode
    high_watermark: int
    log_start_offset: int
    size_bytes: int
    is_diverging: bool = False


class FetchAnswer(NamedTuple):
    """The session part of a response. Send the context's partitions at `positions`."""

    error_code: ErrorCode
    session_id: int
    positions: Sequence[int]


class _CachedPartition:
    """One partition's last request by the session's consumer, and the last answer to it."""

    __slots__ = ("high_watermark", "log_start_offset", "request")

    def __init__(self, request: FetchPartitionRequest) -> None:
        self.request = request
        self.high_watermark = _UNKNOWN_OFFSET
        self.log_start_offset = _UNKNOWN_OFFSET

    def on_answer(self, fetched: FetchedPartition) -> bool:
        """Remember an answer; return whether the response must carry it."""
        must_respond = (
            fetched.size_bytes > 0
            or fetched.error_code is not ErrorCode.NONE
            or fetched.is_diverging
            or fetched.high_watermark != self.high_watermark
            or fetched.log_start_offset != self.log_start_offset
        )
        self.log_start_offset = fetched.log_start_offset
        # After an error the partition is sent again, even if nothing else has changed since.
        failed = fetched.error_code is not ErrorCode.NONE
        self.high_watermark = _UNKNOWN_OFFSET if failed else fetched.high_watermark
        return must_respond


@dataclass(slots=True, eq=False)
class _Session:
    """One session. `partitions` are in the order of reading: those with data go to the end."""

    session_id: int
    uses_topic_ids: bool
    created_ms: int
    last_used_ms: int
    epoch: int = 1
    partitions: dict[PartitionKey, _CachedPartition] = field(default_factory=dict)


class FetchContext:
    """A fetch without a session: reads what it names, and its response carries all of that."""

    def __init__(self, requests: dict[PartitionKey, FetchPartitionRequest]) -> None:
        self.keys = list(requests)
        #: In the order of reading, each partition once.
        self.partitions = list(requests.values())

    def respond(self, results: Sequence[FetchedPartition], now_ms: int) -> FetchAnswer:
        """Return what to send, given the outcome for each of `partitions`. Call it once."""
        assert len(results) == len(self.partitions)
        return FetchAnswer(ErrorCode.NONE, NO_SESSION, range(len(results)))


class _FullContext(FetchContext):
    """A full fetch that would like a session."""

    def __init__(
        self,
        sessions: FetchSessions,
        requests: dict[PartitionKey, FetchPartitionRequest],
        uses_topic_ids: bool,
    ) -> None:
        super().__init__(requests)
        self._sessions = sessions
        self._uses_topic_ids = uses_topic_ids

    def respond(self, results: Sequence[FetchedPartition], now_ms: int) -> FetchAnswer:
        everything = super().respond(results, now_ms)
        session = self._sessions.create(len(results), self._uses_topic_ids, now_ms)
        if session is None:
            return everything
        for key, request, fetched in zip(self.keys, self.partitions, results, strict=True):
            cached = session.partitions[key] = _CachedPartition(request)
            cached.on_answer(fetched)
        return everything._replace(session_id=session.session_id)


class _IncrementalContext(FetchContext):
    """A fetch of everything in its session; the response carries what is new to the consumer."""

    def __init__(self, session: _Session) -> None:
        super().__init__({key: cached.request for key, cached in session.partitions.items()})
        self._session = session
        self._epoch = session.epoch

    def respond(self, results: Sequence[FetchedPartition], now_ms: int) -> FetchAnswer:
        assert len(results) == len(self.partitions)
        session = self._session
        if session.epoch != self._epoch:
            # Another request has moved the session on while this one was waiting for data.
            return FetchAnswer(ErrorCode.INVALID_FETCH_SESSION_EPOCH, session.session_id, ())
        positions = []
        for position, (key, fetched) in enumerate(zip(self.keys, results, strict=True)):
            if session.partitions[key].on_answer(fetched):
                positions.append(position)
            if fetched.size_bytes > 0:
                # The other partitions are read first next time: no partition starves the rest.
                session.partitions[key] = session.partitions.pop(key)
        return FetchAnswer(ErrorCode.NONE, session.session_id, positions)


def _draw_session_id() -> int:
    # Hard to guess: the id is all that a request needs to move a session on.
    return secrets.randbelow(_EPOCH_MAX) + 1


class FetchSessions:
    """All sessions of a broker, within their bounds."""

    def __init__(
        self,
        slots_max: int = SLOTS_DEFAULT,
        *,
        partitions_max: int = PARTITIONS_MAX_DEFAULT,
        eviction_ms: int = EVICTION_MS_DEFAULT,
        draw_session_id: Callable[[], int] = _draw_session_id,
    ) -> None:
        self._slots_max = slots_max
        self._partitions_max = partitions_max
        self._eviction_ms = eviction_ms
        self._draw_session_id = draw_session_id
        #: The session that was used longest ago comes first.
        self._sessions: dict[int, _Session] = {}
        self._partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """The partitions that all sessions remember; one in two sessions counts twice."""
        return self._partition_count

    def open(self, request: FetchRequest, version: int, now_ms: int) -> FetchContext:
        """Return what the fetch reads, or raise the KafkaError that answers the whole request.

        FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH; FETCH_SESSION_TOPIC_ID_ERROR where
        a session began with names and goes on with ids, or the other way round. After each of them
        the consumer starts anew.
        """
        uses_topic_ids = version >= _TOPIC_IDS_SINCE
        requests = _requests(request, uses_topic_ids)
        if request.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
            return self._incremental(request, requests, uses_topic_ids, now_ms)
        # KIP-227: a full fetch that names a session closes it.
        self._remove(request.session_id)
        if request.session_epoch == FINAL_EPOCH:
            return FetchContext(requests)
        return _FullContext(self, requests, uses_topic_ids)

    def _incremental(
        self,
        request: FetchRequest,
        requests: dict[PartitionKey, FetchPartitionRequest],
        uses_topic_ids: bool,
        now_ms: int,
    ) -> FetchContext:
        session = self._sessions.get(request.session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"session {request.session_id}")
        if session.epoch != request.session_epoch:
            detail = f"session {session.session_id} is at epoch {session.epoch}"
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH, detail)
        if session.uses_topic_ids is not uses_topic_ids:
            began = "topic ids" if session.uses_topic_ids else "topic names"
            detail = f"session {session.session_id} began with {began}"
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, detail)
        # Moved before anything else: a request that still waits for data in this session learns by
        # the epoch that the session has moved on.
        # Epoch 0 opens a session and -1 closes it, so counting begins at 1 again.
        session.epoch = 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        self._update(session, request, requests)
        if not session.partitions:
            self._remove(session.session_id)
            return FetchContext(requests)
        if self._partition_count > self._partitions_max:
            self._remove(session.session_id)
            # As for any missing session: the consumer begins again with a full fetch.
            detail = f"session {session.session_id} has grown beyond the broker's bound"
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, detail)
        session.last_used_ms = now_ms
        # To the end: the dictionary is kept in the order of use, for evictions.
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        return _IncrementalContext(session)

    def _update(
        self,
        session: _Session,
        request: FetchRequest,
        requests: dict[PartitionKey, FetchPartitionRequest],
    ) -> None:
        before = len(session.partitions)
        for key, asked in requests.items():
            cached = session.partitions.get(key)
            if cached is None:
                session.partitions[key] = _CachedPartition(asked)
            else:
                cached.request = asked
        for topic in request.forgotten_topics_data:
            name = topic.topic_id if session.uses_topic_ids else topic.topic
            for partition in topic.partitions:
                session.partitions.pop((name, partition), None)
        self._partition_count += len(session.partitions) - before

    def create(self, partition_count: int, uses_topic_ids: bool, now_ms: int) -> _Session | None:
        """Return a new, empty session for `partition_count` partitions; None without room."""
        # A session of no partitions would save nothing, and take a slot.
        if partition_count == 0 or not self._make_room(partition_count, now_ms):
            return None
        session_id = self._draw_session_id()
        while session_id in self._sessions or session_id == NO_SESSION:
            session_id = self._draw_session_id()
        session = _Session(session_id, uses_topic_ids, now_ms, now_ms)
        self._sessions[session_id] = session
        self._partition_count += partition_count
        return session

    def _make_room(self, partition_count: int, now_ms: int) -> bool:
        """Evict what a new session may replace; return whether the new one fits.

        Sessions unused for too long go first. Then, for a slot, the smallest of those that have
        lived long enough, if the new one is larger: a larger session saves more.
        """
        while self._lacks_slot() or self._lacks_memory(partition_count):
            longest_unused = next(iter(self._sessions.values()), None)
            if longest_unused is None or not self._is_over(longest_unused.last_used_ms, now_ms):
                break
            self._remove(longest_unused.session_id)
        if self._lacks_memory(partition_count):
            return False
        if not self._lacks_slot():
            return True
        had_their_time = (
            session
            for session in self._sessions.values()
            if self._is_over(session.created_ms, now_ms)
        )
        smallest = min(had_their_time, key=lambda session: len(session.partitions), default=None)
        if smallest is None or len(smallest.partitions) >= partition_count:
            return False
        self._remove(smallest.session_id)
        return True

    def _lacks_slot(self) -> bool:
        return len(self._sessions) >= self._slots_max

    def _lacks_memory(self, partition_count: int) -> bool:
        return self._partition_count + partition_count > self._partitions_max

    def _is_over(self, since_ms: int, now_ms: int) -> bool:
        return now_ms - since_ms > self._eviction_ms

    def _remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partition_count -= len(session.partitions)


def _requests(
    request: FetchRequest, uses_topic_ids: bool
) -> dict[PartitionKey, FetchPartitionRequest]:
    """Return what the request names, each partition once: the last mention counts."""
    return {
        (topic.topic_id if uses_topic_ids else topic.topic, asked.partition): FetchPartitionRequest(
            topic.topic,
            topic.topic_id,
            asked.partition,
            asked.fetch_offset,
            asked.partition_max_bytes,
            asked.current_leader_epoch,
            asked.last_fetched_epoch,
        )
        for topic in request.topics
        for asked in topic.partitions
    }
