"""What fetch sessions remember of names that clients send: none that is too long for a topic."""

from __future__ import annotations

import pytest

from magnetar.runtime.fetch_sessions import FetchContext, FetchedPartition, FetchSessions
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

NAMED = 12
LONGEST, TOO_LONG = "x" * 249, "x" * 250
UNKNOWN = FetchedPartition(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1, 0)


def request(*names: str, session: tuple[int, int] = (0, 0)) -> FetchRequest:
    return FetchRequest(
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic(topic=name, partitions=[FetchPartition(partition=0)]) for name in names],
    )


def session_of(context: FetchContext) -> int:
    """Answer that none of the topics is there; return the session's id."""
    for key in tuple(context.watch.due):
        assert context.tell(key, UNKNOWN), "an error is told each time"
    _, session_id = context.finish(0)
    context.release()
    return session_id


def test_a_full_fetch_of_a_name_that_is_too_long_opens_no_session() -> None:
    sessions = FetchSessions()
    assert session_of(sessions.open(request("a", TOO_LONG), NAMED, 0)) == 0
    assert len(sessions) == sessions.partition_count == 0
    assert session_of(sessions.open(request("a", LONGEST), NAMED, 0)) != 0


def test_a_session_that_is_given_a_name_that_is_too_long_ends() -> None:
    sessions = FetchSessions()
    session_id = session_of(sessions.open(request("a"), NAMED, 0))
    with pytest.raises(KafkaError) as refused:
        sessions.open(request(TOO_LONG, session=(session_id, 1)), NAMED, 0)
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(sessions) == sessions.partition_count == 0
