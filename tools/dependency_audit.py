"""`python -m tools.dependency_audit`: the pinned libraries are those that run, and not known bad.

Three checks, none of which needs a network:

1. every library that `magnetar` and its extras bring is pinned in constraints.txt;
2. what is installed of those is what is pinned;
3. no pin is a version that tools/advisories.toml knows to be vulnerable.

`pip-audit` asks the databases of the world for the third, where there is a network.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

_ROOT = Path(__file__).parent.parent
CONSTRAINTS = _ROOT / "constraints.txt"
ADVISORIES = Path(__file__).with_name("advisories.toml")


class Advisory(NamedTuple):
    """One vulnerability of a library."""

    id: str
    package: str
    affected: SpecifierSet
    what: str


def read_pins(text: str) -> dict[str, str]:
    """Return the version of each library in the text of a constraints file."""
    pins: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, pinned = line.partition("#")[0].strip().partition("==")
        if equals:
            pins[canonicalize_name(name)] = pinned
    return pins


def read_advisories(text: str) -> list[Advisory]:
    """Return the advisories in the text of a TOML file."""
    return [
        Advisory(each["id"], each["package"], SpecifierSet(each["affected"]), each["what"])
        for each in tomllib.loads(text)["advisory"]
    ]


def vulnerable(pins: Mapping[str, str], advisories: Iterable[Advisory]) -> Iterator[str]:
    """Yield a sentence for each pin that an advisory is about."""
    for advisory in advisories:
        pinned = pins.get(canonicalize_name(advisory.package))
        if pinned is not None and advisory.affected.contains(pinned, prereleases=True):
            yield f"{advisory.package} {pinned}: {advisory.id}, {advisory.what}"


def required(roots: Iterable[Requirement]) -> Iterator[str]:
    """Yield the canonical names of libraries that are installed for `roots`, with what they need.

    Those that are not installed on this platform are left out.
    """
    waiting = [(root, frozenset(root.extras)) for root in roots]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement, extras = waiting.pop()
        name = canonicalize_name(requirement.name)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            below = [Requirement(each) for each in requires(name) or ()]
        except PackageNotFoundError:
            continue
        yield name
        waiting += [
            (each, frozenset(each.extras))
            for each in below
            if each.marker is None
            or any(each.marker.evaluate({"extra": extra}) for extra in extras or {""})
        ]


def _roots() -> list[Requirement]:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    return [Requirement(each) for one in lists for each in one]


def mistakes() -> Iterator[str]:
    """Yield what is wrong, a sentence each."""
    pins = read_pins(CONSTRAINTS.read_text())
    for name in sorted(set(required(_roots()))):
        if name not in pins:
            yield f"{name} {version(name)} is installed, and not pinned in constraints.txt"
        elif version(name) != pins[name]:
            yield f"{name} {version(name)} is installed, and {pins[name]} is pinned"
    yield from vulnerable(pins, read_advisories(ADVISORIES.read_text()))


def main() -> int:
    found = list(mistakes())
    for mistake in found:
        print(mistake, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
