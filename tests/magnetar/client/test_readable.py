"""Times as people read and type them, and names that clients made to mislead."""

from __future__ import annotations

import pytest

from magnetar.client.readable import moment, one_line, parse_moment, parse_time, printable


def test_a_moment_is_told_to_the_second_and_one_that_no_calendar_has_as_a_number() -> None:
    assert moment(0) == "1970-01-01 00:00:00Z" and moment(-1) == "-"
    assert moment(253_402_300_799_999) == "9999-12-31 23:59:59Z"
    assert moment(253_402_300_800_000) == "253 402 300 800 000 ms"
    assert moment(2**62).endswith(" ms")


def test_a_time_is_a_number_of_milliseconds_or_iso_8601_in_utc_unless_it_names_a_zone() -> None:
    assert parse_moment("1970-01-01T00:00:01") == parse_moment("1970-01-01T01:00:01+01:00") == 1000
    assert parse_time("1000") == parse_time("1 000") == parse_time("1970-01-01T00:00:01Z") == 1000
    for text in ("", "soon", "\u00b2", "9" * 30, "-5", "1969-12-31T23:59:59Z"):
        with pytest.raises(ValueError):
            parse_time(text)


def test_what_cannot_be_seen_is_an_escape() -> None:
    assert printable("a\tb\nGr\u00f6\u00dfe \u65e5") == "a\tb\nGr\u00f6\u00dfe \u65e5"
    assert printable("\x1b[2J\u202eexe.png") == "\\x1b[2J\\u202eexe.png"
    assert one_line("a\tb\nc\x1b") == "a\\tb\\nc\\x1b"
