"""Each story beside this file leaves the trace that is written in it.

`MAGNETAR_REWRITE_SCENARIOS=1` writes the traces anew: read the difference before you commit it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.scenarios.runner import run

STORIES = sorted(Path(__file__).parent.glob("*.story"))


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_the_story_is_as_it_is_told(story: Path) -> None:
    told = run(story.read_text())
    if os.environ.get("MAGNETAR_REWRITE_SCENARIOS"):
        story.write_text(told)
    assert told == story.read_text()
