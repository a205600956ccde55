"""Fetch sessions without partitions: one may begin so, one left so ends, as in Kafka."""

from __future__ import annotations

from magnetar.runtime.fetch_sessions import FetchedPartition, FetchSessions
from wire.error_code import ErrorCode
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

NAMED = 12
QUIET = FetchedPartition(ErrorCode.NONE, 0, 0, 0)


def answered(
    sessions: FetchSessions, session: tuple[int, int], names: str = "", forgotten: str = ""
) -> tuple[int, str]:
    """Return the session's id, and the topics that are read for a fetch of these."""
    request = FetchRequest(
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic(topic=name, partitions=[FetchPartition()]) for name in names],
        forgotten_topics_data=[ForgottenTopic(topic=name, partitions=[0]) for name in forgotten],
    )
    context = sessions.open(request, NAMED, 0)
    read = tuple(context.watch.due)
    for key in read:
        context.tell(key, QUIET)
    _, session_id = context.finish(0)
    context.release()
    return session_id, "".join(str(topic) for topic, _ in read)


def test_a_session_may_begin_without_partitions() -> None:
    sessions = FetchSessions(draw_session_id=lambda: 7)
    assert answered(sessions, (0, 0)) == (7, "")
    assert answered(sessions, (7, 1), "a") == (7, "a")


def test_a_session_that_stays_without_partitions_ends() -> None:
    sessions = FetchSessions(draw_session_id=lambda: 7)
    assert answered(sessions, (0, 0)) == (7, "")
    assert answered(sessions, (7, 1)) == (0, "")
    assert len(sessions) == 0


def test_the_last_partition_is_read_where_it_is_named_and_forgotten_at_once() -> None:
    sessions = FetchSessions(draw_session_id=lambda: 7)
    assert answered(sessions, (0, 0), "a") == (7, "a")
    assert answered(sessions, (7, 1), "a", forgotten="a") == (0, "a")
    assert len(sessions) == 0
