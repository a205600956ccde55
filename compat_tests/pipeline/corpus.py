"""The input: the text of the installed Python's standard library, cut into records of some
lines.
"""

from __future__ import annotations

import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

LINES_PER_RECORD = 12
_WORD = re.compile(r"[a-z]+")
#: Below the standard library's root but not its text: others' packages and its tests.
_NOT_THE_LIBRARY = {"site-packages", "test", "tests", "idlelib", "lib2to3"}


def count_words(text: str) -> Counter[str]:
    """Return how often each word (a run of ASCII letters, lower case) occurs."""
    return Counter(_WORD.findall(text.lower()))


def records(words_max: int | None = None) -> Iterator[str]:
    """Yield the text in records of LINES_PER_RECORD lines, up to about `words_max` words."""
    words = 0
    for path in _sources():
        lines = path.read_text("utf-8", errors="ignore").splitlines()
        for start in range(0, len(lines), LINES_PER_RECORD):
            record = "\n".join(lines[start : start + LINES_PER_RECORD])
            yield record
            words += count_words(record).total()
            if words_max is not None and words >= words_max:
                return


def _sources() -> list[Path]:
    root = Path(sysconfig.get_paths()["stdlib"])
    found = (path for path in root.rglob("*.py") if not _NOT_THE_LIBRARY & set(path.parts))
    return sorted(found)
