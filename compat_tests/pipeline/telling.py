"""What a worker's process tells its supervisor: a line of JSON at a time on standard output, whole
even if the process is killed within it.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable

#: A pipe takes so much at once, or nothing (PIPE_BUF).
_LINE_BYTES_MAX = 4096
#: The end of a text says most.
_TEXT_CHARACTERS_MAX = 1500


def tell(event: str, **facts: object) -> None:
    """Tell one event. Texts are cut; with all other facts a line must not be too long."""
    told = {name: _cut(fact) for name, fact in facts.items()}
    line = json.dumps({"event": event, **told}).encode() + b"\n"
    assert len(line) <= _LINE_BYTES_MAX, f"{event} is told in {len(line)} bytes"
    os.write(1, line)


def tell_the_end_of(work: Callable[[], None]) -> None:
    """Do the work of a process; whatever it cannot go on from is told, and ends the process."""
    try:
        work()
    except Exception as error:  # noqa: BLE001  # the edge of the process: report, then end
        tell("ended", why=repr(error), trace=traceback.format_exc())
        raise SystemExit(1) from error


def _cut(fact: object) -> object:
    return fact[-_TEXT_CHARACTERS_MAX:] if isinstance(fact, str) else fact
