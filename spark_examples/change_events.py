"""Real events with times, from the machine itself: which part of a project was changed when.

They are the history of this clone; where that is too short, or there is none, the files of the
installed Python packages, each an event at the time it was written.
"""

from __future__ import annotations

import json
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_ROOT = Path(__file__).resolve().parent.parent
#: A picture of fewer moments than this shows nothing.
_MOMENTS_MIN = 50
_EVENTS_MAX = 20_000
#: The begin of a commit's line; no path can have it.
_COMMIT = "\0"


class Event(NamedTuple):
    """A change of a part of the project: in `path`, by a number of lines (or bytes of a file)."""

    at_s: int
    part: str
    path: str
    size: int

    def to_value(self) -> bytes:
        return json.dumps(self._asdict()).encode()


class Session(NamedTuple):
    """Changes of a part, each less than the gap after the one before; times are inclusive."""

    part: str
    first_s: int
    last_s: int
    changes: int
    size: int


def events() -> tuple[str, list[Event]]:
    """Return a description of the events, and the events in the order of their times."""
    found = list(of_git(_git_log()))
    if len({event.at_s for event in found}) >= _MOMENTS_MIN:
        return "changes in the history of this clone", _latest(found)
    return "files of the installed Python packages", _latest(_of_packages())


def _latest(found: Iterable[Event]) -> list[Event]:
    return sorted(found)[-_EVENTS_MAX:]


def _git_log() -> str:
    """Return the history; empty without git, or outside a repository."""
    command = ["git", "-C", str(_ROOT), "log", "--no-renames", "--numstat", "--format=%x00%ct"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def of_git(log: str) -> Iterator[Event]:
    """Yield an event for each file of each commit. The part is the top-level folder."""
    at_s = 0
    for line in log.splitlines():
        if line.startswith(_COMMIT):
            at_s = int(line.removeprefix(_COMMIT))
        elif line:
            added, removed, path = line.split("\t", 2)
            if added != "-":  # A binary file has no lines.
                part = path.split("/")[0] if "/" in path else "(top)"
                yield Event(at_s, part, path, int(added) + int(removed))


def _of_packages() -> Iterator[Event]:
    root = Path(sysconfig.get_paths()["purelib"])
    for path in root.rglob("*.py"):
        status = path.stat()
        within = path.relative_to(root)
        yield Event(int(status.st_mtime), within.parts[0], str(within), status.st_size)


def sessions(found: Iterable[Event], gap_s: int) -> list[Session]:
    """Return the sessions of each part: a change `gap_s` or more after the last begins one."""
    open_sessions: dict[str, Session] = {}
    closed: list[Session] = []
    for event in sorted(found):
        session = open_sessions.get(event.part)
        if session is not None and event.at_s < session.last_s + gap_s:
            open_sessions[event.part] = Session(
                event.part,
                session.first_s,
                event.at_s,
                session.changes + 1,
                session.size + event.size,
            )
            continue
        if session is not None:
            closed.append(session)
        open_sessions[event.part] = Session(event.part, event.at_s, event.at_s, 1, event.size)
    return sorted((*closed, *open_sessions.values()))
