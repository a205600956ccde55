"""The pytest plugin: the fixture `kafka`, and the marker `magnetar` for a broker of a test's own.

pytest loads it wherever magnetar is installed, so it imports nothing until a test asks for a
broker. `-p no:magnetar` leaves it out.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from magnetar.testing.broker import Broker
    from magnetar.testing.process import Setting

_MARKER = (
    "magnetar(**options): the fixture kafka is a broker of this test's own, with these options of"
    " magnetar.testing.start_broker: settings={...}, as_version='3.9', tls=True, users={...}, ..."
)
_HAS_PASSED = pytest.StashKey[bool]()
#: What a topic may be called, and how long the part of its name is that tells the test.
_NO_NAME = re.compile(r"[^a-zA-Z0-9._-]+")
_NAMED_CHARACTERS = 60


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)


# Wrapped in the old way, which every pytest knows: this is loaded by those that use no broker too.
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, None]:
    outcome = yield
    # A test that failed need not be told that its faults have not happened. Only the report knows:
    # a test of unittest fails without an exception of its call.
    if call.when == "call":
        item.stash[_HAS_PASSED] = outcome.get_result().passed


@pytest.fixture(scope="session")
def magnetar_settings() -> Mapping[str, Setting]:
    """Return no settings for the broker that all tests share. Override it in a conftest.py."""
    return {}


@pytest.fixture(scope="session")
def magnetar_broker(magnetar_settings: Mapping[str, Setting]) -> Iterator[Broker]:
    """Yield the broker that all tests share. Use `kafka`, which cleans up behind each test."""
    from magnetar.testing.broker import Broker

    with Broker(settings=magnetar_settings) as broker:
        yield broker


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Yield a running broker: the one that all tests share, or, by the marker, one of its own.

    After the test all faults are gone, and the broker runs. A fault that has not happened fails the
    test.
    """
    marker = request.node.get_closest_marker("magnetar")
    if marker is None:
        yield from _lent(request, request.getfixturevalue("magnetar_broker"))
        return
    from magnetar.testing.broker import Broker

    with Broker(**_options(marker)) as broker:
        yield from _lent(request, broker)


def _options(marker: pytest.Mark) -> dict[str, Any]:
    if marker.args:
        raise TypeError("@pytest.mark.magnetar takes names: settings={...}, as_version='3.9', ...")
    return dict(marker.kwargs)


def _lent(request: pytest.FixtureRequest, broker: Broker) -> Iterator[Broker]:
    broker.topic_prefix = _NO_NAME.sub("-", request.node.name)[:_NAMED_CHARACTERS].strip("-.")
    yield broker
    try:
        if request.node.stash.get(_HAS_PASSED, False):
            broker.check_faults()
    finally:
        broker.reset()
