"""Fetch sessions: what each consumer fetches, remembered, so that a fetch names only what changed.

Pure: decides which partitions a fetch reads and which of them its response carries; reads nothing
and asks no clock. A fetch of a session reads what its watch has as due, so partitions in which
nothing changes cost nothing. Bounded by slots (sessions), and by the partitions that all sessions
remember together; names that are longer than a topic's may be, up to 32 KB each, are not remembered
at all. A missing session costs its consumer one full fetch, whatever the reason. Source: KIP-227,
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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from magnetar.runtime.fetch_watch import FetchWatch, PartitionKey
from magnetar.storage.topic_names import NAME_LENGTH_MAX
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.fetch import FetchPartition, FetchRequest

#: `max.incremental.fetch.session.cache.slots`.
SLOTS_DEFAULT = 1000
#: A session unused for longer may be evicted; one that exists for longer, by a larger one.
EVICTION_MS = 120_000
#: Partitions in all sessions together, at some 700 bytes each.
PARTITIONS_MAX_DEFAULT = 200_000

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_EPOCH_MAX = 2**31 - 1
_TOPIC_IDS_SINCE = 13
_UNKNOWN_OFFSET = -1


#: What decides which records a client may see: isolation level, and the client's rights.
View = tuple[int, object]


class AskedPartition(Protocol):
    """What a fetch asks of one partition: a part of the request, or what a session remembers."""

    @property
    def fetch_offset(self) -> int: ...
    @property
    def partition_max_bytes(self) -> int: ...
    @property
    def current_leader_epoch(self) -> int: ...
    @property
    def last_fetched_epoch(self) -> int: ...


class FetchedPartition(NamedTuple):
    """The outcome of reading one partition, as far as the session needs it.

    `is_diverging`: the answer names a diverging epoch, of which the consumer must learn.
    """

    error_code: ErrorCode
    high_watermark: int
    log_start_offset: int
    size_bytes: int
    is_diverging: bool = False


class _CachedPartition:
    """What the session's consumer asked last of one partition, and the last answer to it."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "high_watermark",
        "last_fetched_epoch",
        "log_start_offset",
        "partition_max_bytes",
    )

    def __init__(self, asked: AskedPartition) -> None:
        self.ask(asked)
        self.high_watermark = _UNKNOWN_OFFSET
        self.log_start_offset = _UNKNOWN_OFFSET

    def ask(self, asked: AskedPartition) -> None:
        """Remember what is asked from now on. Not the request itself, which may hold more."""
        self.fetch_offset = asked.fetch_offset
        self.partition_max_bytes = asked.partition_max_bytes
        self.current_leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch

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
    """One session. The partitions that its watch has as due are read by the next fetch."""

    session_id: int
    uses_topic_ids: bool
    view: View
    created_ms: int
    last_used_ms: int
    watch: FetchWatch
    epoch: int = 1
    partitions: dict[PartitionKey, _CachedPartition] = field(default_factory=dict)


class FetchContext:
    """A fetch without a session: reads what it names, and its response carries all of that.

    Read what `watch` has as due. Then `tell` each partition that was read, `finish`, and in any
    case `release`.
    """

    def __init__(self, asked: Mapping[PartitionKey, AskedPartition]) -> None:
        #: What is asked, each partition once.
        self.asked = asked
        self.watch = FetchWatch(asked)

    @property
    def is_overtaken(self) -> bool:
        """Whether a later request has moved the session on."""
        return False

    def tell(self, key: PartitionKey, fetched: FetchedPartition) -> bool:
        """Note the outcome for one partition; return whether the response carries it."""
        return True

    def finish(self, now_ms: int) -> tuple[ErrorCode, int]:
        """Return the error code and the session id of the response, when all was told."""
        return ErrorCode.NONE, NO_SESSION

    def withhold(self, keys: Iterable[PartitionKey]) -> None:
        """Note that the client gets nothing of these partitions, which were read."""

    def release(self) -> None:
        """End the watch, unless a session keeps it."""
        self.watch.close()


class _FullContext(FetchContext):
    """A full fetch that would like a session."""

    def __init__(
        self,
        sessions: FetchSessions,
        asked: Mapping[PartitionKey, AskedPartition],
        uses_topic_ids: bool,
        view: View,
    ) -> None:
        super().__init__(asked)
        self._sessions = sessions
        self._uses_topic_ids = uses_topic_ids
        self._view = view
        self._told: dict[PartitionKey, _CachedPartition] = {}
        self._has_session = False

    def tell(self, key: PartitionKey, fetched: FetchedPartition) -> bool:
        self._told[key] = _CachedPartition(self.asked[key])
        self._told[key].on_answer(fetched)
        return True

    def finish(self, now_ms: int) -> tuple[ErrorCode, int]:
        session = self._sessions.create(
            self._told, self.watch, self._uses_topic_ids, self._view, now_ms
        )
        self._has_session = session is not None
        return ErrorCode.NONE, NO_SESSION if session is None else session.session_id

    def release(self) -> None:
        if not self._has_session:
            super().release()


class _IncrementalContext(FetchContext):
    """A fetch of what is due in its session; the response carries what is new to the consumer."""

    def __init__(self, session: _Session) -> None:
        self.asked = session.partitions
        self.watch = session.watch
        self._session = session
        self._epoch = session.epoch

    @property
    def is_overtaken(self) -> bool:
        return self._session.epoch != self._epoch

    def tell(self, key: PartitionKey, fetched: FetchedPartition) -> bool:
        cached = self.asked.get(key)
        if self.is_overtaken or cached is None:
            return False
        if fetched.size_bytes > 0:
            # The other partitions are read first next time: no partition starves the rest.
            self.watch.put_last(key)
        assert isinstance(cached, _CachedPartition), "a session remembers these"
        return cached.on_answer(fetched)

    def finish(self, now_ms: int) -> tuple[ErrorCode, int]:
        # Another request may have come while this one was waiting for data.
        code = ErrorCode.INVALID_FETCH_SESSION_EPOCH if self.is_overtaken else ErrorCode.NONE
        return code, self._session.session_id

    def withhold(self, keys: Iterable[PartitionKey]) -> None:
        if not self.is_overtaken:
            for key in keys:
                if key in self.asked:
                    self.watch.renew(key)

    def release(self) -> None:
        """The session keeps its watch."""


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
        draw_session_id: Callable[[], int] = _draw_session_id,
    ) -> None:
        self._slots_max = slots_max
        self._partitions_max = partitions_max
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

    def remembered(self, session_id: int) -> Iterable[PartitionKey]:
        """Return the partitions that a session remembers; none where there is no such session."""
        session = self._sessions.get(session_id)
        return () if session is None else tuple(session.partitions)

    def open(
        self, request: FetchRequest, version: int, now_ms: int, *, rights: object = None
    ) -> FetchContext:
        """Return what the fetch reads, or raise the KafkaError that answers the whole request.

        `rights` equal those of the session's last fetch where the client may read the same.

        Raises FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, and
        FETCH_SESSION_TOPIC_ID_ERROR where a session began with names and goes on with ids, or the
        other way round. After each of them the consumer starts anew.
        """
        uses_topic_ids = version >= _TOPIC_IDS_SINCE
        # An idle consumer names none.
        asked = _asked(request, uses_topic_ids) if request.topics else {}
        view = request.isolation_level, rights
        if request.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
            return self._incremental(request, asked, uses_topic_ids, view, now_ms)
        # KIP-227: a full fetch that names a session closes it.
        self._remove(request.session_id)
        if request.session_epoch == FINAL_EPOCH:
            return FetchContext(asked)
        if not uses_topic_ids and _names_too_much(request):
            return FetchContext(asked)
        return _FullContext(self, asked, uses_topic_ids, view)

    def _incremental(
        self,
        request: FetchRequest,
        asked: dict[PartitionKey, FetchPartition],
        uses_topic_ids: bool,
        view: View,
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
        if asked or request.forgotten_topics_data or view != session.view:
            self._update(session, request, asked, view)
        if not session.partitions:
            self._remove(session.session_id)
            # As in Kafka: what is named and forgotten at once is read this once.
            return FetchContext(asked)
        names_too_much = asked and not uses_topic_ids and _names_too_much(request)
        if names_too_much or self._partition_count > self._partitions_max:
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
        asked: dict[PartitionKey, FetchPartition],
        view: View,
    ) -> None:
        watch, before = session.watch, len(session.partitions)
        if view != session.view:
            # One level sees more than the other, and a topic may be denied by now.
            session.view = view
            for key in session.partitions:
                watch.renew(key)
        for key, named in asked.items():
            cached = session.partitions.get(key)
            if cached is None:
                session.partitions[key] = _CachedPartition(named)
            else:
                cached.ask(named)
            watch.renew(key)
        for topic in request.forgotten_topics_data:
            name = topic.topic_id if session.uses_topic_ids else topic.topic
            for partition in topic.partitions:
                session.partitions.pop((name, partition), None)
                watch.forget((name, partition))
        self._partition_count += len(session.partitions) - before

    def create(
        self,
        partitions: dict[PartitionKey, _CachedPartition],
        watch: FetchWatch,
        uses_topic_ids: bool,
        view: View,
        now_ms: int,
    ) -> _Session | None:
        """Return a new session, which keeps `partitions` and `watch`; None without room."""
        partition_count = len(partitions)
        if not self._make_room(partition_count, now_ms):
            return None
        session_id = self._draw_session_id()
        while session_id in self._sessions or session_id == NO_SESSION:
            session_id = self._draw_session_id()
        session = _Session(
            session_id,
            uses_topic_ids,
            view,
            now_ms,
            now_ms,
            watch,
            partitions=partitions,
        )
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
        return now_ms - since_ms > EVICTION_MS

    def _remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partition_count -= len(session.partitions)
            session.watch.close()


def _asked(request: FetchRequest, uses_topic_ids: bool) -> dict[PartitionKey, FetchPartition]:
    """Return what the request names, each partition once: the last mention counts."""
    return {
        (topic.topic_id if uses_topic_ids else topic.topic, asked.partition): asked
        for topic in request.topics
        for asked in topic.partitions
    }


def _names_too_much(request: FetchRequest) -> bool:
    """Return whether the request names what can be no topic by its length."""
    return any(len(topic.topic) > NAME_LENGTH_MAX for topic in request.topics)
