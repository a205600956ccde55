"""Events from a history, and sessions of them in plain Python, which Spark's are compared with."""

from __future__ import annotations

from spark_examples import change_events
from spark_examples.change_events import Event, Session, sessions

LOG = """\
\x00200

3\t1\twire/batches.py
-\t-\tdocs/picture.png
\x00100

10\t0\tREADME.md
"""


def event(at_s: int, part: str = "wire") -> Event:
    return Event(at_s, part, f"{part}/x.py", 1)


def test_each_file_of_a_commit_is_an_event() -> None:
    assert list(change_events.of_git(LOG)) == [
        Event(200, "wire", "wire/batches.py", 4),
        Event(100, "(top)", "README.md", 10),
    ]


def test_the_events_of_this_machine_are_in_order_and_many() -> None:
    what, found = change_events.events()
    assert what
    assert len(found) > 100
    assert [each.at_s for each in found] == sorted(each.at_s for each in found)


def test_a_change_the_gap_after_the_last_one_begins_a_session() -> None:
    found = sessions([event(0), event(9), event(18), event(28)], gap_s=10)
    assert found == [Session("wire", 0, 18, 3, 3), Session("wire", 28, 28, 1, 1)]


def test_parts_have_sessions_of_their_own() -> None:
    found = sessions([event(5, "logstore"), event(0), event(9)], gap_s=10)
    assert found == [Session("logstore", 5, 5, 1, 1), Session("wire", 0, 9, 2, 2)]
