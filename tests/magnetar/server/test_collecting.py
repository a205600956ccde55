"""The garbage collector rests while a large request is handled, and never for long."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from magnetar.server import collecting
from magnetar.server.collecting import FREED_AFTER_S, PUT_OFF_S, Collector


class Timer:
    """A call at a time, until it is cancelled."""

    def __init__(self, at_s: float, callback: Callable[[], None]) -> None:
        self.at_s = at_s
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    """An event loop whose time the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.now_s + delay, callback))
        return self.timers[-1]

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds
        for timer in list(self.timers):
            if timer.at_s <= self.now_s:
                self.timers.remove(timer)
                if not timer.is_cancelled:
                    timer.callback()


def collector_of(loop: Loop) -> Collector:
    return Collector(cast(asyncio.AbstractEventLoop, loop))


@pytest.fixture(autouse=True)
def collections_are_on() -> Iterator[None]:
    assert gc.isenabled()
    yield
    gc.enable()


def test_nothing_is_collected_until_the_last_large_request_is_answered() -> None:
    loop = Loop()
    collector = collector_of(loop)
    with collector.put_off():
        with collector.put_off():
            assert not gc.isenabled()
        loop.pass_s(1)
        assert not gc.isenabled()
    assert not gc.isenabled(), "its objects are about to be freed"
    loop.pass_s(FREED_AFTER_S)
    assert gc.isenabled()


def test_what_collections_leave_alone_stays_so() -> None:
    """What a start has built (`magnetar.cli.serve`): nodes share its pages, and it is large."""
    loop = Loop()
    gc.freeze()
    try:
        left_alone = gc.get_freeze_count()
        with collector_of(loop).put_off():
            pass
        loop.pass_s(FREED_AFTER_S)
        # Some of it may be freed meanwhile.
        assert gc.get_freeze_count() > left_alone // 2
    finally:
        gc.unfreeze()


def test_a_request_that_waits_for_long_does_not_end_collections() -> None:
    loop = Loop()
    with collector_of(loop).put_off():
        loop.pass_s(PUT_OFF_S)
        assert gc.isenabled()
        loop.pass_s(PUT_OFF_S)
    loop.pass_s(PUT_OFF_S)
    assert gc.isenabled()


def test_one_large_request_after_the_other_leaves_time_to_collect() -> None:
    loop = Loop()
    collector = collector_of(loop)
    with collector.put_off():
        loop.pass_s(PUT_OFF_S)
    with collector.put_off():
        assert gc.isenabled()
    loop.pass_s(PUT_OFF_S)
    with collector.put_off():
        assert not gc.isenabled()
    loop.pass_s(FREED_AFTER_S)


def test_a_broker_that_stops_leaves_collections_on() -> None:
    collector = collector_of(Loop())
    with collector.put_off():
        pass
    assert not gc.isenabled()
    collector.close()
    assert gc.isenabled()


def test_a_collector_that_others_turned_off_stays_off() -> None:
    loop = Loop()
    gc.disable()
    with collector_of(loop).put_off():
        assert not gc.isenabled()
    loop.pass_s(1)
    assert not gc.isenabled()


@pytest.fixture
def looking_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What lives is looked at once, as in a broker's process, however little that is."""
    monkeypatch.setattr(collecting, "LONG_S", 0.0)
    collecting.look_once()
    try:
        yield
    finally:
        gc.callbacks.remove(collecting._freezer)
        gc.unfreeze()


@pytest.mark.usefixtures("looking_once")
@pytest.mark.parametrize("generation", [1, 2])
def test_what_a_collection_has_left_is_not_looked_at_again(generation: int) -> None:
    state = [[number] for number in range(50_000)]
    gc.collect(generation)
    assert gc.get_freeze_count() > len(state)
    # Frozen, it is freed as ever when its last reference goes.
    frozen = gc.get_freeze_count()
    state.clear()
    assert gc.get_freeze_count() <= frozen - 50_000


@pytest.mark.usefixtures("looking_once")
def test_what_is_young_may_still_become_garbage() -> None:
    gc.collect(0)
    assert not gc.get_freeze_count()


@pytest.mark.usefixtures("looking_once")
def test_a_short_collection_freezes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "LONG_S", 60.0)
    gc.unfreeze()
    gc.collect()
    # Python 3.12 freezes the objects itself that are never freed, some hundreds.
    assert gc.get_freeze_count() < 1_000


@pytest.mark.usefixtures("looking_once")
def test_what_a_large_request_has_made_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic for each of 100,000 names was a collection of 0.4 s, once the pause was over."""
    monkeypatch.setattr(collecting, "LIVING_MIN", 10_000)
    gc.unfreeze()
    loop = Loop()
    with collector_of(loop).put_off():
        state = [[number] for number in range(20_000)]
    loop.pass_s(FREED_AFTER_S)
    assert gc.get_freeze_count() > len(state)
    with collector_of(loop).put_off():
        before = gc.get_freeze_count()
    loop.pass_s(FREED_AFTER_S)
    assert gc.get_freeze_count() <= before, "what makes little is left to collections"
