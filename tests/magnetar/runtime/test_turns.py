"""The event loop's turns: who has much to do lets the others go first, and is not forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator

from magnetar.runtime.handler_queue import HALF_MADE_MAX, TURNS_FEW, TURNS_MAX
from magnetar.runtime.turns import Turns
from magnetar.server.first_step import Rest, run_first_step


class _Clock:
    """Every look at it takes a while: a millisecond, unless told otherwise."""

    now_s = 0.0
    step_s = 0.001

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


def is_done_at_once(story: Coroutine[None, None, None]) -> bool:
    try:
        story.send(None)
    except StopIteration:
        return True
    story.close()
    return False


def test_what_lists_one_thing_asks_for_no_turn() -> None:
    async def story() -> None:
        assert [each async for each in Turns(_Clock()).each(["one"])] == ["one"]

    # Outside an event loop: a turn would need one.
    assert is_done_at_once(story())


async def listing(turns: Turns, name: str, count: int, log: list[str]) -> None:
    async for _ in turns.each(range(count)):
        log.append(name)


async def test_others_run_while_one_lists_much() -> None:
    turns, log = Turns(_Clock()), list[str]()
    task = asyncio.create_task(listing(turns, "listed", 1000, log))
    seen = []
    while not task.done():
        await asyncio.sleep(0)
        seen.append(len(log))
    assert log == ["listed"] * 1000
    steps = [after - before for before, after in zip([0, *seen], seen, strict=False)]
    # A look a millisecond, two milliseconds a turn.
    assert max(steps) <= 4


async def test_connections_take_turns_in_their_order() -> None:
    turns, log = Turns(_Clock()), list[str]()
    left = {"a": 3, "b": 3, "c": 1}

    def take_turn(name: str) -> None:
        log.append(name)
        left[name] -= 1
        if left[name]:
            turns.later(lambda: take_turn(name))

    for name in left:
        turns.later(lambda name=name: take_turn(name))  # type: ignore[misc]  # a default binds it
    while any(left.values()):
        await asyncio.sleep(0)
    assert "".join(log) == "abcabab"


def runs(log: list[str]) -> Iterator[tuple[str, int]]:
    """Return who listed, and how many things one after the other."""
    count = 0
    for this, following in zip(log, [*log[1:], ""], strict=True):
        count += 1
        if this != following:
            yield this, count
            count = 0


async def test_a_handler_goes_on_for_a_while_before_the_next_one() -> None:
    turns, log = Turns(_Clock()), list[str]()
    count = 10 * TURNS_MAX
    async with asyncio.TaskGroup() as group:
        for name in "ab":
            group.create_task(listing(turns, name, count, log))
    assert (log.count("a"), log.count("b")) == (count, count)
    longest = {name: max(n for each, n in runs(log) if each == name) for name in "ab"}
    # Not one by one, and not the first to its end.
    assert TURNS_MAX <= longest["a"] < count


async def test_no_handler_goes_on_while_a_thread_works_for_one() -> None:
    turns, log = Turns(_Clock()), list[str]()
    task = asyncio.create_task(listing(turns, "listed", 100, log))
    with turns.aside():
        for _ in range(20):
            await asyncio.sleep(0)
        held = len(log)
        assert held < 5
    await task
    assert len(log) == 100


async def test_a_handler_that_begins_while_many_wait_makes_little_before_it_waits() -> None:
    clock = _Clock()
    clock.step_s = 0.0001
    turns, log = Turns(clock), list[str]()
    names = "abcdefghijkl"
    tasks = []
    with turns.aside():
        for name in names:
            tasks.append(asyncio.create_task(listing(turns, name, 100, log)))
            for _ in range(3):
                await asyncio.sleep(0)
        counts = [log.count(name) for name in names]
    # A turn of 2 ms, and a quarter of it for those that come when eight wait.
    assert min(counts[:8]) > 10
    assert all(1 < count < 8 for count in counts[8:])
    await asyncio.gather(*tasks)
    assert [log.count(name) for name in names] == [100] * len(names)


async def test_a_handler_whose_elements_wait_lets_others_go_first_once() -> None:
    clock = _Clock()
    clock.step_s = 0.0001
    turns, log = Turns(clock), list[str]()
    elements, waits = 20, 4

    async def waiting() -> None:
        async for _ in turns.each(range(elements)):
            # As for a disk.
            for _ in range(waits):
                await asyncio.sleep(0)

    heavy = [asyncio.create_task(listing(turns, "h", 100_000, log)) for _ in range(10)]
    for _ in range(20):
        await asyncio.sleep(0)
    before = len(log)
    await waiting()
    # Each time that it lets the others go first is 25 turns of 2 ms, 500 looks, for all ten.
    assert len(log) - before < 2 * 5_000
    for each in heavy:
        each.cancel()
    await asyncio.gather(*heavy, return_exceptions=True)


async def test_a_cancelled_handler_takes_no_turn_of_others() -> None:
    turns, log = Turns(_Clock()), list[str]()
    with turns.aside():
        first = asyncio.create_task(listing(turns, "first", 100, log))
        second = asyncio.create_task(listing(turns, "second", 100, log))
        for _ in range(5):
            await asyncio.sleep(0)
        first.cancel()
    await second
    assert log.count("second") == 100
    assert first.cancelled()


async def test_few_responses_are_half_made_at_once() -> None:
    turns, log = Turns(_Clock()), list[str]()
    names, count = "abcdefghijklmnop", 10 * TURNS_MAX
    # Three looks at most in each of the few turns that all others have, and in their first step.
    few = 3 * (TURNS_FEW + 1)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(listing(turns, name, count, log)) for name in names]
        most = 0
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            most = max(most, sum(few < log.count(name) < count for name in names))
    assert all(log.count(name) == count for name in names)
    # The one that has the turn is half made, too.
    assert 1 < most <= HALF_MADE_MAX + 1


async def test_handlers_that_wait_for_a_disk_keep_none_from_beginning() -> None:
    turns, log = Turns(_Clock()), list[str]()
    disk = asyncio.Event()

    async def slow() -> None:
        async for _ in turns.each(range(2 * TURNS_MAX)):
            log.append("slow")
        await disk.wait()

    many = [asyncio.create_task(slow()) for _ in range(3 * HALF_MADE_MAX)]
    async with asyncio.timeout(10):
        await listing(turns, "other", 100, log)
    assert log.count("other") == 100
    disk.set()
    await asyncio.gather(*many)


async def test_one_that_comes_back_from_the_disk_at_each_element_keeps_none_from_beginning() -> (
    None
):
    turns, log = Turns(_Clock()), list[str]()

    async def slow() -> None:
        async for _ in turns.each(range(1_000_000)):
            await asyncio.sleep(0)

    many = [asyncio.create_task(slow()) for _ in range(3 * HALF_MADE_MAX)]
    for _ in range(100):
        await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await listing(turns, "other", 100, log)
    assert log.count("other") == 100
    for each in many:
        each.cancel()
    await asyncio.gather(*many, return_exceptions=True)


async def test_handlers_that_wake_a_step_late_are_not_forgotten() -> None:
    turns, log = Turns(_Clock()), list[str]()
    loop = asyncio.get_running_loop()
    # As the server begins them: the task begins to wait after the first turn may have come.
    rests = list[Rest]()

    def begin(name: str) -> None:
        began = run_first_step(listing(turns, name, 200, log), loop)
        assert isinstance(began, Rest)
        rests.append(began)

    for name in "abc":
        loop.call_soon(begin, name)

    await asyncio.sleep(0)
    tasks = [asyncio.ensure_future(awaited(rest)) for rest in rests]
    async with asyncio.timeout(10):
        await asyncio.gather(*tasks)
    assert [log.count(name) for name in "abc"] == [200] * 3


async def awaited(rest: Rest) -> None:
    await rest.resume()


async def test_a_short_answer_does_not_wait_until_a_long_one_is_made() -> None:
    turns, log = Turns(_Clock()), list[str]()
    heavy = [
        asyncio.create_task(listing(turns, "h", 1_000_000, log)) for _ in range(3 * HALF_MADE_MAX)
    ]
    while len(log) < 3 * HALF_MADE_MAX * 2 * TURNS_MAX:
        await asyncio.sleep(0)
    before = len(log)
    async with asyncio.timeout(10):
        await listing(turns, "short", 4, log)
    assert log.count("short") == 4
    # Each that is half made has its turns once, at two looks each, and once more.
    assert len(log) - before < 2 * HALF_MADE_MAX * 3 * TURNS_MAX
    for each in heavy:
        each.cancel()
    await asyncio.gather(*heavy, return_exceptions=True)
