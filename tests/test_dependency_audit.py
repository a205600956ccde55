"""The audit of dependencies: what it reads, and what it finds."""

from __future__ import annotations

from packaging.requirements import Requirement

from tools import dependency_audit
from tools.dependency_audit import read_advisories, read_pins, required, vulnerable

ADVISORIES = """
[[advisory]]
id = "CVE-1"
package = "Some_Thing"
affected = ">=1,<1.5"
what = "it is bad"
"""


def test_a_pin_that_an_advisory_is_about_is_found() -> None:
    advisories = read_advisories(ADVISORIES)
    for pinned, found in (
        ("1.4.9", ["Some_Thing 1.4.9: CVE-1, it is bad"]),
        ("1.0rc1.post1", []),
        ("1.5", []),
        ("0.9", []),
    ):
        pins = read_pins(f"# a comment\nother==1.2\nsome.thing=={pinned}  # why\n")
        assert list(vulnerable(pins, advisories)) == found


def test_what_a_library_needs_is_followed() -> None:
    names = set(required([Requirement("pytest"), Requirement("no-such-library")]))
    assert {"pytest", "pluggy", "packaging"} <= names
    assert "no-such-library" not in names


def test_the_advisories_can_be_read() -> None:
    advisories = read_advisories(dependency_audit.ADVISORIES.read_text())
    assert len({each.id for each in advisories}) == len(advisories) > 0
