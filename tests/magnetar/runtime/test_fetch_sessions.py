"""Fetch sessions: consumers name only what changed, hear only what changed, and miss nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from magnetar.runtime.fetch_sessions import (
    EVICTION_MS,
    FetchContext,
    FetchedPartition,
    FetchSessions,
)
from magnetar.runtime.fetch_watch import PartitionKey
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

NAMED, BY_ID = 12, 17
IDS = {name: UUID(int=number) for number, name in enumerate("abcdef", 1)}
QUIET = FetchedPartition(ErrorCode.NONE, 0, 0, 0)


def request(
    *partitions: tuple[str, int],
    session: tuple[int, int] = (0, 0),
    forgotten: tuple[tuple[str, int], ...] = (),
    fetch_offset: int = 0,
) -> FetchRequest:
    """Return a fetch that gives names and ids alike, for any version to pick from."""
    return FetchRequest(
        session_id=session[0],
        session_epoch=session[1],
        topics=[
            FetchTopic(
                topic=name,
                topic_id=IDS[name],
                partitions=[FetchPartition(partition=index, fetch_offset=fetch_offset)],
            )
            for name, index in partitions
        ],
        forgotten_topics_data=[
            ForgottenTopic(topic=name, topic_id=IDS[name], partitions=[index])
            for name, index in forgotten
        ],
    )


class Answer(NamedTuple):
    error_code: ErrorCode
    session_id: int
    #: The topics whose partition the response carries.
    told: str


class Log:
    """A partition that tells its subscribers that it has moved."""

    def __init__(self) -> None:
        self.subscribers: dict[Callable[[], None], None] = {}

    def subscribe(self, callback: Callable[[], None]) -> None:
        self.subscribers[callback] = None

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        self.subscribers.pop(callback, None)

    def move(self) -> None:
        for callback in tuple(self.subscribers):
            callback()


def answer(
    context: FetchContext,
    news: dict[str, FetchedPartition] | None = None,
    now_ms: int = 0,
    logs: dict[str, Log] | None = None,
) -> Answer:
    """Read all that is due and answer it; `news` by topic name, silence about the rest.

    With `logs`, what did not fail and has no data is not read again before it moves.
    """
    context.watch.take(context)
    told = []
    for key in list(context.watch.due):
        topic = topic_of(key)
        fetched = (news or {}).get(topic, QUIET)
        if logs is not None and fetched.error_code is ErrorCode.NONE and not fetched.size_bytes:
            context.watch.settle(key, logs[topic])
        if context.tell(key, fetched):
            told.append(topic)
    answered = Answer(*context.finish(now_ms), "".join(told))
    context.watch.end(context)
    context.release()
    return answered


def topic_of(key: PartitionKey) -> str:
    topic = key[0]
    return topic if isinstance(topic, str) else chr(ord("a") + topic.int - 1)


def due(context: FetchContext) -> str:
    return "".join(map(topic_of, context.watch.due))


def counted(slots_max: int = 10, partitions_max: int = 1000) -> FetchSessions:
    """Return sessions whose ids are 1, 2, 3..."""
    ids = itertools.count(1)
    return FetchSessions(
        slots_max, partitions_max=partitions_max, draw_session_id=lambda: next(ids)
    )


def opened(sessions: FetchSessions, topics: str, version: int = NAMED, now_ms: int = 0) -> Answer:
    full = request(*[(name, 0) for name in topics])
    return answer(sessions.open(full, version, now_ms), now_ms=now_ms)


def error_of(sessions: FetchSessions, fetch: FetchRequest, version: int = NAMED) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        sessions.open(fetch, version, 0)
    return refused.value.code


def test_a_full_fetch_is_answered_in_full_and_opens_a_session() -> None:
    sessions = counted()
    assert opened(sessions, "abc") == (ErrorCode.NONE, 1, "abc")
    assert (len(sessions), sessions.partition_count) == (1, 3)


def test_a_fetch_with_the_final_epoch_opens_no_session() -> None:
    sessions = counted()
    context = sessions.open(request(("a", 0), session=(0, -1)), NAMED, 0)
    assert answer(context) == (ErrorCode.NONE, 0, "a")
    assert len(sessions) == 0


def test_an_old_version_knows_no_sessions() -> None:
    decoded = FetchRequest.decode(request(("a", 0), session=(0, -1)).encode(7), 7)
    assert (decoded.session_id, decoded.session_epoch) == (0, -1)
    sessionless = FetchRequest.decode(FetchRequest(topics=[]).encode(4), 4)
    assert answer(counted().open(sessionless, 4, 0)).session_id == 0


def test_the_closing_fetch_ends_its_session() -> None:
    sessions = counted()
    opened(sessions, "ab")
    context = sessions.open(request(("a", 0), session=(1, -1)), NAMED, 0)
    assert answer(context) == (ErrorCode.NONE, 0, "a")
    assert (len(sessions), sessions.partition_count) == (0, 0)
    assert error_of(sessions, request(session=(1, 1))) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_full_fetch_replaces_the_session_that_it_names() -> None:
    sessions = counted()
    opened(sessions, "ab")
    context = sessions.open(request(("c", 0), session=(1, 0)), NAMED, 0)
    assert answer(context).session_id == 2
    assert (len(sessions), sessions.partition_count) == (1, 1)


def test_an_incremental_fetch_reads_all_and_answers_what_is_new() -> None:
    sessions = counted()
    opened(sessions, "abcd")
    context = sessions.open(request(session=(1, 1)), NAMED, 0)
    assert due(context) == "abcd"
    news = {
        "a": QUIET._replace(high_watermark=5),
        "b": QUIET._replace(log_start_offset=2),
        "d": QUIET._replace(size_bytes=100),
    }
    assert answer(context, news) == (ErrorCode.NONE, 1, "abd")
    context = sessions.open(request(session=(1, 2)), NAMED, 0)
    del news["d"]
    assert answer(context, news) == (ErrorCode.NONE, 1, "")


def test_a_diverging_epoch_is_always_told() -> None:
    sessions = counted()
    opened(sessions, "a")
    for epoch in (1, 2):
        context = sessions.open(request(session=(1, epoch)), NAMED, 0)
        assert answer(context, {"a": QUIET._replace(is_diverging=True)}).told == "a"


def test_partitions_are_changed_added_and_forgotten() -> None:
    sessions = counted()
    opened(sessions, "ab")
    changes = request(("b", 0), ("c", 0), session=(1, 1), forgotten=(("a", 0),), fetch_offset=9)
    context = sessions.open(changes, NAMED, 0)
    assert [(key[0], asked.fetch_offset) for key, asked in context.asked.items()] == [
        ("b", 9),
        ("c", 9),
    ]
    # What was added has never been told: it is answered even if there is nothing in it.
    assert answer(context).told == "c"
    assert sessions.partition_count == 2


def test_what_is_forgotten_in_the_fetch_that_names_it_is_forgotten() -> None:
    sessions = counted()
    opened(sessions, "ab")
    context = sessions.open(request(("a", 0), session=(1, 1), forgotten=(("a", 0),)), NAMED, 0)
    assert due(context) == "b"


def test_a_session_without_partitions_ends() -> None:
    sessions = counted()
    opened(sessions, "a")
    context = sessions.open(request(session=(1, 1), forgotten=(("a", 0), ("f", 7))), NAMED, 0)
    assert answer(context) == (ErrorCode.NONE, 0, "")
    assert (len(sessions), sessions.partition_count) == (0, 0)


def test_partitions_that_had_data_are_read_last_next_time() -> None:
    sessions = counted()
    opened(sessions, "abc")
    context = sessions.open(request(session=(1, 1)), NAMED, 0)
    answer(context, {"a": QUIET._replace(size_bytes=10)})
    assert due(sessions.open(request(session=(1, 2)), NAMED, 0)) == "bca"


def test_a_partition_in_which_nothing_moves_is_not_read_again() -> None:
    sessions, logs = counted(), {name: Log() for name in "abc"}
    answer(sessions.open(request(("a", 0), ("b", 0), ("c", 0)), NAMED, 0), logs=logs)
    context = sessions.open(request(session=(1, 1)), NAMED, 0)
    assert due(context) == ""
    answer(context, logs=logs)
    logs["b"].move()
    context = sessions.open(request(session=(1, 2)), NAMED, 0)
    assert due(context) == "b"
    assert answer(context, {"b": QUIET._replace(high_watermark=7)}, logs=logs).told == "b"
    context = sessions.open(request(("c", 0), session=(1, 3), forgotten=(("a", 0),)), NAMED, 0)
    assert due(context) == "c"
    logs["a"].move()
    assert due(context) == "c"


def test_another_isolation_level_and_other_rights_read_everything_again() -> None:
    sessions, logs = counted(), {name: Log() for name in "ab"}
    answer(sessions.open(request(("a", 0), ("b", 0)), NAMED, 0), logs=logs)
    committed = request(session=(1, 1))
    committed.isolation_level = 1
    context = sessions.open(committed, NAMED, 0)
    assert due(context) == "ab"
    answer(context, logs=logs)
    committed.session_epoch = 2
    assert due(sessions.open(committed, NAMED, 0, rights="fewer")) == "ab"


@pytest.mark.parametrize("following_epoch", [2, -1])
def test_a_fetch_that_waits_in_a_session_is_woken_by_the_next_and_by_the_end(
    following_epoch: int,
) -> None:
    sessions, woken = counted(), [0]
    opened(sessions, "a")
    waiting = sessions.open(request(session=(1, 1)), NAMED, 0)
    waiting.watch.take(waiting)
    waiting.watch.wake = woken.clear
    sessions.open(request(session=(1, following_epoch)), NAMED, 0).watch.take(None)
    assert not woken and waiting.watch.owner is None


def test_an_error_is_told_each_time_and_its_end_too() -> None:
    sessions = counted()
    opened(sessions, "ab")
    failed = FetchedPartition(ErrorCode.KAFKA_STORAGE_ERROR, 0, 0, 0)
    for epoch, news, told in (
        (1, failed, "a"),
        (2, failed, "a"),
        (3, QUIET, "a"),
        (4, QUIET, ""),
    ):
        context = sessions.open(request(session=(1, epoch)), NAMED, 0)
        assert answer(context, {"a": news}).told == told


def test_a_partition_named_twice_is_read_once_as_named_last() -> None:
    fetch = request(("a", 0), ("b", 0), ("a", 0))
    fetch.topics[2].partitions[0].fetch_offset = 5
    context = counted().open(fetch, NAMED, 0)
    assert [(key[0], asked.fetch_offset) for key, asked in context.asked.items()] == [
        ("a", 5),
        ("b", 0),
    ]


@pytest.mark.parametrize("epoch", [0, 2, -2, 2**31 - 1])
def test_a_wrong_epoch_is_refused_and_changes_nothing(epoch: int) -> None:
    sessions = counted()
    opened(sessions, "a")
    if epoch != 0:  # which would be a full fetch
        wrong = request(("b", 0), session=(1, epoch))
        assert error_of(sessions, wrong) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert due(sessions.open(request(session=(1, 1)), NAMED, 0)) == "a"


def test_an_unknown_session_is_refused() -> None:
    for session in ((0, 1), (99, 1), (-1, 5)):
        refused = error_of(counted(), request(("a", 0), session=session))
        assert refused is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize(("began", "goes_on"), [(NAMED, BY_ID), (BY_ID, NAMED)])
def test_names_and_ids_do_not_mix_in_a_session(began: int, goes_on: int) -> None:
    sessions = counted()
    opened(sessions, "a", began)
    refused = error_of(sessions, request(session=(1, 1)), goes_on)
    assert refused is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_with_ids_partitions_are_known_by_id() -> None:
    sessions = counted()
    full = request(("a", 0), ("b", 0))
    for topic in full.topics:
        topic.topic = ""
    answer(sessions.open(full, BY_ID, 0))
    context = sessions.open(request(session=(1, 1), forgotten=(("a", 0),)), BY_ID, 0)
    assert list(context.watch.due) == [(IDS["b"], 0)]


def test_an_answer_to_an_overtaken_fetch_is_an_epoch_error() -> None:
    sessions = counted()
    opened(sessions, "a")
    waiting = sessions.open(request(session=(1, 1)), NAMED, 0)
    answer(sessions.open(request(("b", 0), session=(1, 2), forgotten=(("a", 0),)), NAMED, 0))
    assert answer(waiting) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 1, "")


def test_an_answer_to_a_fetch_whose_session_was_emptied_is_an_epoch_error() -> None:
    sessions = counted()
    opened(sessions, "a")
    waiting = sessions.open(request(session=(1, 1)), NAMED, 0)
    answer(sessions.open(request(session=(1, 2), forgotten=(("a", 0),)), NAMED, 0))
    assert answer(waiting) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 1, "")


def test_a_fetch_whose_session_was_closed_meanwhile_is_still_answered() -> None:
    sessions = counted()
    opened(sessions, "a")
    waiting = sessions.open(request(session=(1, 1)), NAMED, 0)
    sessions.open(request(session=(1, -1)), NAMED, 0)
    assert waiting.tell(("a", 0), QUIET._replace(size_bytes=9))
    assert waiting.finish(0) == (ErrorCode.NONE, 1)
    assert sessions.partition_count == 0


def test_the_epoch_after_the_largest_is_one() -> None:
    sessions = counted()
    opened(sessions, "a")
    sessions._sessions[1].epoch = 2**31 - 1
    answer(sessions.open(request(session=(1, 2**31 - 1)), NAMED, 0))
    assert answer(sessions.open(request(session=(1, 1)), NAMED, 0)).session_id == 1


def test_a_full_cache_gives_no_session_before_one_had_its_time() -> None:
    sessions = counted(slots_max=2)
    opened(sessions, "a")
    opened(sessions, "ab")
    assert opened(sessions, "abc", now_ms=EVICTION_MS).session_id == 0


def test_the_session_unused_for_longest_goes_first() -> None:
    sessions = counted(slots_max=2)
    opened(sessions, "abc")
    opened(sessions, "ab")
    answer(sessions.open(request(session=(1, 1)), NAMED, 1))
    assert opened(sessions, "a", now_ms=EVICTION_MS + 1).session_id == 3
    assert error_of(sessions, request(session=(2, 1))) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert due(sessions.open(request(session=(1, 2)), NAMED, 1)) == "abc"


def test_a_larger_session_replaces_the_smallest_that_had_its_time() -> None:
    sessions = counted(slots_max=2)
    opened(sessions, "abc")
    opened(sessions, "ab")
    now_ms = EVICTION_MS + 1
    for session_id in (1, 2):
        answer(sessions.open(request(session=(session_id, 1)), NAMED, now_ms))
    assert opened(sessions, "ef", now_ms=now_ms).session_id == 0
    assert opened(sessions, "def", now_ms=now_ms).session_id == 3
    assert error_of(sessions, request(session=(2, 2))) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_no_slots_mean_no_sessions() -> None:
    assert opened(counted(slots_max=0), "a").session_id == 0


def test_sessions_hold_no_more_partitions_than_their_bound() -> None:
    sessions = counted(partitions_max=5)
    assert opened(sessions, "abc").session_id == 1
    assert opened(sessions, "abc").session_id == 0
    assert opened(sessions, "ab").session_id == 2
    grown = request(("f", 0), session=(2, 1))
    assert error_of(sessions, grown) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(sessions), sessions.partition_count) == (1, 3)
    assert opened(sessions, "abcde", now_ms=EVICTION_MS + 1).session_id == 3
    assert (len(sessions), sessions.partition_count) == (1, 5)


def test_session_ids_are_never_zero_nor_taken() -> None:
    drawn = iter([7, 7, 0, 7, 8])
    sessions = FetchSessions(draw_session_id=lambda: next(drawn))
    assert opened(sessions, "a").session_id == 7
    assert opened(sessions, "a").session_id == 8
    assert opened(FetchSessions(), "a").session_id > 0


class ConsumersMissNothing(RuleBasedStateMachine):
    """Consumers that merge what they hear know all they fetch as it is, whatever gets lost."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.sessions = counted(slots_max=2, partitions_max=8)
        self.log = dict.fromkeys("abcdef", QUIET)
        self.logs = {topic: Log() for topic in "abcdef"}
        self.consumers = [Consumer() for _ in range(3)]

    @rule(topic=st.sampled_from("abcdef"), high_watermark=st.integers(0, 3), fails=st.booleans())
    def move(self, topic: str, high_watermark: int, fails: bool) -> None:
        code = ErrorCode.KAFKA_STORAGE_ERROR if fails else ErrorCode.NONE
        moved = FetchedPartition(code, high_watermark, 0, 0)
        if moved != self.log[topic]:
            self.log[topic] = moved
            self.logs[topic].move()

    @rule(ms=st.integers(1, EVICTION_MS))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule(who=st.integers(0, 2), topics=st.sets(st.sampled_from("abcdef")), is_lost=st.booleans())
    def fetch(self, who: int, topics: set[str], is_lost: bool) -> None:
        consumer = self.consumers[who]
        try:
            context = self.sessions.open(consumer.ask(topics), NAMED, self.now_ms)
        except KafkaError as refused:
            assert refused.code in {
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
            }
            consumer.start_anew()
            return
        assert set(due(context)) <= topics == set(map(topic_of, context.asked))
        answered = answer(context, self.log, self.now_ms, self.logs)
        if is_lost:
            consumer.start_anew()
            return
        consumer.hear(answered.session_id, {topic: self.log[topic] for topic in answered.told})
        assert consumer.knows == {topic: self.log[topic] for topic in topics}

    @invariant()
    def bounds_hold(self) -> None:
        held = self.sessions._sessions.values()
        assert len(held) <= 2
        assert self.sessions.partition_count == sum(len(one.partitions) for one in held) <= 8
        # What no session watches is not held by a log.
        subscribed = sum(len(log.subscribers) for log in self.logs.values())
        assert subscribed == sum(len(one.watch._subscriptions) for one in held)
        for one in held:
            assert one.watch.due.keys() | one.watch._subscriptions.keys() == one.partitions.keys()


class Consumer:
    """A consumer's half of KIP-227, as short as it can be."""

    def __init__(self) -> None:
        self.session = (0, 0)
        self.knows: dict[str, FetchedPartition] = {}
        self.fetched: set[str] = set()

    def ask(self, topics: set[str]) -> FetchRequest:
        if self.session[1] == 0:
            self.fetched, self.knows = set(), {}
        added, forgotten = topics - self.fetched, self.fetched - topics
        self.fetched = topics
        self.knows = {topic: known for topic, known in self.knows.items() if topic in topics}
        return request(
            *[(topic, 0) for topic in sorted(added)],
            session=self.session,
            forgotten=tuple((topic, 0) for topic in sorted(forgotten)),
        )

    def hear(self, session_id: int, news: dict[str, FetchedPartition]) -> None:
        self.knows.update(news)
        self.session = (session_id, self.session[1] + 1) if session_id else (0, 0)

    def start_anew(self) -> None:
        self.session = (self.session[0], 0)


test_consumers_miss_nothing = ConsumersMissNothing.TestCase
