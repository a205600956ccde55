"""docs/architecture.md tells the way of each request as it is measured, and counting is exact."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tools.trace.broker import ROOT
from tools.trace.samples import message_classes, sample
from tools.trace.way import Call, Counts, counted, drawn, usual
from tools.trace.world import Request
from wire.message import Message

#: A handler calls a codec, which was written at run time, and the log twice.
_WAY = (
    Call(0, "magnetar/handler.py", "handle"),
    Call(1, "", "decode"),
    Call(1, "magnetar/handler.py", "check"),
    Call(1, "logstore/log.py", "append"),
    Call(1, "logstore/log.py", "append"),
    Call(0, "magnetar/handler.py", "handle"),
)


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the counts are those of Python 3.11, as in CI"
)
def test_the_page_has_the_counts_that_are_measured() -> None:
    # A process of its own: the broker needs a main thread, and tunes the whole process.
    checked = subprocess.run(
        [sys.executable, "-m", "tools.trace", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, (
        f"run python -m tools.trace --document\n{checked.stdout}{checked.stderr}"
    )


@pytest.mark.parametrize(("api", "request_class"), message_classes("Request").items())
def test_the_sample_of_every_request_can_be_encoded(api: str, request_class: type[Message]) -> None:
    version = request_class.max_version
    assert sample(api, request_class, version, {}, {}).encode(version)


def test_code_written_at_run_time_is_a_call_and_no_file() -> None:
    assert counted(_WAY) == Counts(files=2, calls=6, moves=2)


def test_a_drawn_way_names_a_file_where_it_changes_and_collapses_repeated_calls() -> None:
    assert drawn(_WAY).splitlines() == [
        "magnetar/handler.py  handle",
        "                       decode",
        "                       check",
        "logstore/log.py        append  (2 times)",
        "magnetar/handler.py  handle",
    ]


def test_the_usual_way_is_the_one_taken_most_often_then_the_shortest() -> None:
    assert usual([_WAY, _WAY[:2], _WAY]) == _WAY
    assert usual([_WAY, _WAY[:2]]) == _WAY[:2]


@pytest.mark.parametrize("name", ["Fetch", "EndTxn v4", "Produce v11 transactional"])
def test_a_request_is_named_as_it_is_printed(name: str) -> None:
    assert str(Request.parse(name)) == name


@pytest.mark.parametrize("name", ["Fetch fast", "Fetch v", "Fetch 4"])
def test_words_that_say_nothing_of_a_request_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="neither a version nor"):
        Request.parse(name)


def test_a_request_that_is_not_served_is_refused_with_those_that_are() -> None:
    refused = subprocess.run(
        [sys.executable, "-m", "tools.trace", "EndTxn v99"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    assert "EndTxn v99 is not served; the APIs are AddOffsetsToTxn," in refused.stderr
