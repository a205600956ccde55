"""Fetch sessions: consumers name only what changed, hear only what changed, and miss nothing."""

from __future__ import annotations

import itertools
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from magnetar.runtime.fetch_sessions import (
    EVICTION_MS_DEFAULT,
    FetchAnswer,
    FetchContext,
    FetchedPartition,
    FetchSessions,
)
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


def answer(
    context: FetchContext, news: dict[str, FetchedPartition] | None = None, now_ms: int = 0
) -> FetchAnswer:
    """Answer a context; `news` by topic name, silence about the rest."""
    by_id = {topic_id: name for name, topic_id in IDS.items()}
    results = [(news or {}).get(by_id[asked.topic_id], QUIET) for asked in context.partitions]
    return context.respond(results, now_ms)


def names(context: FetchContext) -> str:
    return "".join(asked.topic for asked in context.partitions)


def counted(slots_max: int = 10, partitions_max: int = 1000) -> FetchSessions:
    """Return sessions whose ids are 1, 2, 3..."""
    ids = itertools.count(1)
    return FetchSessions(
        slots_max, partitions_max=partitions_max, draw_session_id=lambda: next(ids)
    )


def opened(
    sessions: FetchSessions, topics: str, version: int = NAMED, now_ms: int = 0
) -> FetchAnswer:
    full = request(*[(name, 0) for name in topics])
    return answer(sessions.open(full, version, now_ms), now_ms=now_ms)


def error_of(sessions: FetchSessions, fetch: FetchRequest, version: int = NAMED) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        sessions.open(fetch, version, 0)
    return refused.value.code


def test_a_full_fetch_is_answered_in_full_and_opens_a_session() -> None:
    sessions = counted()
    assert opened(sessions, "abc") == (ErrorCode.NONE, 1, range(3))
    assert (len(sessions), sessions.partition_count) == (1, 3)


def test_a_fetch_with_the_final_epoch_opens_no_session() -> None:
    sessions = counted()
    context = sessions.open(request(("a", 0), session=(0, -1)), NAMED, 0)
    assert answer(context) == (ErrorCode.NONE, 0, range(1))
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
    assert answer(context) == (ErrorCode.NONE, 0, range(1))
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
    assert names(context) == "abcd"
    news = {
        "a": QUIET._replace(high_watermark=5),
        "b": QUIET._replace(log_start_offset=2),
        "d": QUIET._replace(size_bytes=100),
    }
    assert answer(context, news) == (ErrorCode.NONE, 1, [0, 1, 3])
    context = sessions.open(request(session=(1, 2)), NAMED, 0)
    del news["d"]
    assert answer(context, news) == (ErrorCode.NONE, 1, [])


def test_a_diverging_epoch_is_always_told() -> None:
    sessions = counted()
    opened(sessions, "a")
    for epoch in (1, 2):
        context = sessions.open(request(session=(1, epoch)), NAMED, 0)
        assert answer(context, {"a": QUIET._replace(is_diverging=True)}).positions == [0]


def test_partitions_are_changed_added_and_forgotten() -> None:
    sessions = counted()
    opened(sessions, "ab")
    changes = request(("b", 0), ("c", 0), session=(1, 1), forgotten=(("a", 0),), fetch_offset=9)
    context = sessions.open(changes, NAMED, 0)
    assert [(asked.topic, asked.fetch_offset) for asked in context.partitions] == [
        ("b", 9),
        ("c", 9),
    ]
    # What was added has never been told: it is answered even if there is nothing in it.
    assert answer(context).positions == [1]
    assert sessions.partition_count == 2


def test_what_is_forgotten_in_the_fetch_that_names_it_is_forgotten() -> None:
    sessions = counted()
    opened(sessions, "ab")
    context = sessions.open(request(("a", 0), session=(1, 1), forgotten=(("a", 0),)), NAMED, 0)
    assert names(context) == "b"


def test_a_session_without_partitions_ends() -> None:
    sessions = counted()
    opened(sessions, "a")
    context = sessions.open(request(session=(1, 1), forgotten=(("a", 0), ("f", 7))), NAMED, 0)
    assert answer(context) == (ErrorCode.NONE, 0, range(0))
    assert (len(sessions), sessions.partition_count) == (0, 0)
    assert opened(sessions, "").session_id == 0


def test_partitions_that_had_data_are_read_last_next_time() -> None:
    sessions = counted()
    opened(sessions, "abc")
    context = sessions.open(request(session=(1, 1)), NAMED, 0)
    answer(context, {"a": QUIET._replace(size_bytes=10)})
    assert names(sessions.open(request(session=(1, 2)), NAMED, 0)) == "bca"


def test_an_error_is_told_each_time_and_its_end_too() -> None:
    sessions = counted()
    opened(sessions, "ab")
    failed = FetchedPartition(ErrorCode.KAFKA_STORAGE_ERROR, 0, 0, 0)
    for epoch, news, positions in (
        (1, failed, [0]),
        (2, failed, [0]),
        (3, QUIET, [0]),
        (4, QUIET, []),
    ):
        context = sessions.open(request(session=(1, epoch)), NAMED, 0)
        assert answer(context, {"a": news}).positions == positions


def test_a_partition_named_twice_is_read_once_as_named_last() -> None:
    fetch = request(("a", 0), ("b", 0), ("a", 0))
    fetch.topics[2].partitions[0].fetch_offset = 5
    context = counted().open(fetch, NAMED, 0)
    assert [(asked.topic, asked.fetch_offset) for asked in context.partitions] == [
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
    assert names(sessions.open(request(session=(1, 1)), NAMED, 0)) == "a"


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
    assert [asked.topic_id for asked in context.partitions] == [IDS["b"]]


def test_an_answer_to_an_overtaken_fetch_is_an_epoch_error() -> None:
    sessions = counted()
    opened(sessions, "a")
    waiting = sessions.open(request(session=(1, 1)), NAMED, 0)
    answer(sessions.open(request(("b", 0), session=(1, 2), forgotten=(("a", 0),)), NAMED, 0))
    assert answer(waiting) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 1, ())


def test_an_answer_to_a_fetch_whose_session_was_emptied_is_an_epoch_error() -> None:
    sessions = counted()
    opened(sessions, "a")
    waiting = sessions.open(request(session=(1, 1)), NAMED, 0)
    answer(sessions.open(request(session=(1, 2), forgotten=(("a", 0),)), NAMED, 0))
    assert answer(waiting) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 1, ())


def test_a_fetch_whose_session_was_closed_meanwhile_is_still_answered() -> None:
    sessions = counted()
    opened(sessions, "a")
    waiting = sessions.open(request(session=(1, 1)), NAMED, 0)
    sessions.open(request(session=(1, -1)), NAMED, 0)
    assert answer(waiting, {"a": QUIET._replace(size_bytes=9)}).positions == [0]
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
    assert opened(sessions, "abc", now_ms=EVICTION_MS_DEFAULT).session_id == 0


def test_the_session_unused_for_longest_goes_first() -> None:
    sessions = counted(slots_max=2)
    opened(sessions, "abc")
    opened(sessions, "ab")
    answer(sessions.open(request(session=(1, 1)), NAMED, 1))
    assert opened(sessions, "a", now_ms=EVICTION_MS_DEFAULT + 1).session_id == 3
    assert error_of(sessions, request(session=(2, 1))) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert names(sessions.open(request(session=(1, 2)), NAMED, 1)) == "abc"


def test_a_larger_session_replaces_the_smallest_that_had_its_time() -> None:
    sessions = counted(slots_max=2)
    opened(sessions, "abc")
    opened(sessions, "ab")
    now_ms = EVICTION_MS_DEFAULT + 1
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
    assert opened(sessions, "abcde", now_ms=EVICTION_MS_DEFAULT + 1).session_id == 3
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
        self.consumers = [Consumer() for _ in range(3)]

    @rule(topic=st.sampled_from("abcdef"), high_watermark=st.integers(0, 3), fails=st.booleans())
    def move(self, topic: str, high_watermark: int, fails: bool) -> None:
        code = ErrorCode.KAFKA_STORAGE_ERROR if fails else ErrorCode.NONE
        self.log[topic] = FetchedPartition(code, high_watermark, 0, 0)

    @rule(ms=st.integers(1, EVICTION_MS_DEFAULT))
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
        assert set(names(context)) == topics
        answered = answer(context, self.log, self.now_ms)
        if is_lost:
            consumer.start_anew()
            return
        heard = {context.partitions[position].topic for position in answered.positions}
        consumer.hear(answered.session_id, {topic: self.log[topic] for topic in heard})
        assert consumer.knows == {topic: self.log[topic] for topic in topics}

    @invariant()
    def bounds_hold(self) -> None:
        held = self.sessions._sessions.values()
        assert len(held) <= 2
        assert self.sessions.partition_count == sum(len(one.partitions) for one in held) <= 8


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
