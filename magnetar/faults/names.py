"""APIs, error codes and crash points by their names. A name that is unknown is a `Mistake`.

An API is called as in Kafka's protocol (`EndTxn`) or as a constant (`END_TXN`); both are compared
without case and underscores.
"""

from __future__ import annotations

from collections.abc import Mapping

from magnetar.apis.registry import load_apis
from magnetar.faults.rules import DECIDED, MARKING
from wire.api import API_NAMES
from wire.error_code import ErrorCode

#: What befalls a request on its way, and when. `appended` is there for the APIs below alone.
STAGES = {
    "received": "the broker has read the request, and nothing has happened",
    "appended": "what the request writes is in the log, and nothing of it is synced",
    "handled": "all is done and durable, and the answer is not sent",
    "answered": "the answer is sent",
}
#: The APIs that append in one step and then wait for the disk.
APPENDING = frozenset({"Produce", "OffsetCommit", "TxnOffsetCommit", "EndTxn"})
COMMIT_POINTS = {
    MARKING: "the decision is in the coordinator's log, unsynced, and no partition has its marker",
    DECIDED: "the decision is durable, and no client knows of it",
}


class Mistake(Exception):
    """A test asks for something that there is not; the message says what there is."""


def api_key(name: str) -> int:
    """Return the key of a served API. Raises Mistake."""
    by_name = {_plain(API_NAMES[key]): key for key in load_apis()}
    found = by_name.get(_plain(name))
    if found is None:
        shown = {plain: API_NAMES[key] for plain, key in by_name.items()}
        raise Mistake(f"there is no API {name!r}{_hint(_plain(name), shown)}")
    return found


def error_code(name: str) -> ErrorCode:
    """Return an error code by Kafka's name. Raises Mistake."""
    found = ErrorCode.__members__.get(name.upper())
    if found is None or found is ErrorCode.NONE:
        names = {each: each for each in ErrorCode.__members__ if each != "NONE"}
        raise Mistake(f"there is no error {name!r}{_hint(name.upper(), names)}")
    return found


def crash_point(name: str) -> tuple[str, int | None]:
    """Return a point's full name, and the key of its API; None for a moment of a commit.

    Raises Mistake.
    """
    if name in COMMIT_POINTS:
        return name, None
    api = name.partition(".")[0]
    keys = {_constant(API_NAMES[key]): key for key in load_apis()}
    points = {each: each for each in crash_points()}
    if name in points:
        return name, keys[api]
    raise Mistake(f"there is no crash point {name!r}{_hint(name, points)}")


def crash_points() -> list[str]:
    """Return the names of all crash points."""
    of_apis = [
        f"{_constant(API_NAMES[key])}.{stage}"
        for key in load_apis()
        for stage in STAGES
        if stage != "appended" or API_NAMES[key] in APPENDING
    ]
    return [*COMMIT_POINTS, *of_apis]


def _constant(name: str) -> str:
    """`EndTxn` as `end_txn`."""
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in name)[1:]


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _hint(name: str, shown: Mapping[str, str]) -> str:
    """Return the names near to `name`, of those that are the keys of `shown`, as it writes them."""
    # Here, since no start needs it.
    from difflib import get_close_matches

    near = get_close_matches(name, shown, n=3)
    if not near:
        return ""
    return f". Did you mean {' or '.join(shown[each] for each in near)}?"
