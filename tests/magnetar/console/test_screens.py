"""A cluster that is lost, live pages, and addresses that make no sense."""

from __future__ import annotations

import asyncio
import threading
from urllib.parse import parse_qsl

import pytest

from magnetar.client import Unreachable
from magnetar.console import screens
from magnetar.console.app import CHANGES, PAGES
from magnetar.console.sessions import Access
from tests.magnetar.console.browser import Browser
from tests.magnetar.console.fake_cluster import FakeClient, World
from tests.magnetar.console.test_transactions_page import world_with_two
from wire.messages.metadata import MetadataRequest


class Stream:
    """One live page, read event by event straight from the application."""

    def __init__(self, browser: Browser, path: str) -> None:
        self.events: asyncio.Queue[str] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._task = asyncio.create_task(self._run(browser, path))

    async def _run(self, browser: Browser, path: str) -> None:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"host", b"127.0.0.1:8080"), (b"accept", b"text/event-stream")],
        }

        async def receive() -> dict[str, object]:
            await self._gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, object]) -> None:
            body = message.get("body", b"")
            assert isinstance(body, bytes)
            if body:
                await self.events.put(body.decode())

        await browser.app(scope, receive, send)  # type: ignore[arg-type]  # plain dictionaries

    async def next(self) -> str:
        return await asyncio.wait_for(self.events.get(), 10)

    async def close(self) -> None:
        self._gone.set()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def test_a_live_page_says_that_the_cluster_is_lost_and_that_it_is_back() -> None:
    world = world_with_two()
    stream = Stream(Browser(world), "/transactions")
    try:
        first = await stream.next()
        assert first.startswith("data: ") and "etl" in first
        world.is_down = True
        while not (event := await stream.next()).startswith("event: lost"):
            assert event.startswith("data: ")
        assert "cannot reach a broker" in event
        world.is_down = False
        assert (await stream.next()).startswith("event: back")
        world.transactions.pop("etl")
        while "etl" in (event := await stream.next()):
            assert event.startswith("data: ")
    finally:
        await stream.close()


async def test_a_live_page_tells_a_refusal_from_a_cluster_that_is_away() -> None:
    world = world_with_two()
    stream = Stream(Browser(world), "/topics")
    try:
        assert (await stream.next()).startswith("data: ")
        world.fatal.add(MetadataRequest)
        while not (event := await stream.next()).startswith("event: lost"):
            pass
        assert '"is_away": true' in event
        world.fatal.clear()
        assert (await stream.next()).startswith("event: back")
        world.forbidden.add(MetadataRequest)
        while not (event := await stream.next()).startswith("event: lost"):
            pass
        assert '"is_away": false' in event
        assert "do not allow you to do that with this topic" in event
    finally:
        await stream.close()


async def test_a_page_beyond_the_live_ones_says_so_and_is_live_when_another_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(screens, "STREAMS_MAX", 1)
    browser = Browser(world_with_two())
    first = Stream(browser, "/transactions")
    try:
        assert (await first.next()).startswith("data: ")
        second = Stream(browser, "/transactions")
        try:
            event = await second.next()
            assert event.startswith("event: lost") and "1 pages are live already" in event
            assert (await second.next()).startswith(": waiting")
            await first.close()
            while not (event := await second.next()).startswith("event: back"):
                assert event.startswith(": waiting")
            assert "etl" in await second.next()
        finally:
            await second.close()
    finally:
        await first.close()


@pytest.mark.parametrize(
    "address",
    [
        "/transactions/one?id=none",
        "/transactions/abort?id=none",
        "/groups/one?id=none",
        "/groups/delete?id=none",
        "/groups/member?id=none&member=none",
        "/groups/offsets?id=none&topic=none",
        "/topics/one?name=none",
        "/topics/messages?name=none",
        "/topics/message?name=orders&partition=0&offset=99",
        "/topics/message?name=orders&partition=99&offset=0",
        "/topics/value?name=none&partition=0&offset=0",
        "/topics/groups?name=none",
        "/topics/outcomes?name=none",
        "/topics/produce?name=none",
        "/topics/delete?name=none",
        "/topics/partitions?name=none",
        "/topics/trim?name=none",
        "/access/user/delete?name=none",
        "/access/quota/delete?user=none&rate=producer_byte_rate",
        "/configs?type=broker&name=99",
        "/nowhere",
    ],
)
def test_the_page_of_what_is_not_there_answers_404(address: str) -> None:
    path, _, query = address.partition("?")
    answer = Browser(world_with_two()).get(path, **dict(parse_qsl(query)))
    assert answer.status_code == 404, answer.text


@pytest.mark.parametrize("path", PAGES)
def test_a_page_without_a_cluster_says_so_and_comes_back(path: str) -> None:
    world = world_with_two()
    world.is_down = True
    browser = Browser(world)
    answer = browser.get(path, name="orders", id="etl")
    assert answer.status_code == 502
    assert "The cluster does not answer" in answer.text and "hx-sse:connect" in answer.text
    world.is_down = False
    assert browser.get(path, name="orders", id="etl", partition=0, offset=0).status_code < 500


@pytest.mark.parametrize("path", [*PAGES, *CHANGES])
@pytest.mark.parametrize("value", ["", "-1", "9" * 40, "%00", "²", "<script>", "a b"])
def test_no_address_breaks_a_page(path: str, value: str) -> None:
    answer = Browser(world_with_two()).get(
        path, name="orders", id=value, partition=value, offset=value, page=value, end=value, go=1
    )
    assert answer.status_code < 500 and "<script>" not in answer.text.partition("<body>")[2]


def test_an_address_that_is_not_there_is_a_page() -> None:
    answer = Browser(World()).get("/nothing")
    assert answer.status_code == 404 and "Not Found" in answer.text


def test_an_idle_connection_that_broke_is_replaced_for_questions_and_not_for_deeds() -> None:
    world = World()
    made = []

    def connect() -> FakeClient:
        made.append(FakeClient(world))
        return made[-1]

    access = Access(connect)
    access.ask(lambda client: client.node_ids)
    calls = []

    def fails_once(client: object) -> str:
        calls.append(client)
        if len(calls) == 1:
            raise Unreachable("it broke")
        return "answered"

    assert access.ask(fails_once) == "answered" and len(made) == 2
    calls.clear()
    with pytest.raises(Unreachable):
        access.act(fails_once)
    assert len(calls) == 1
    access.close()


def test_questions_at_once_have_connections_of_their_own() -> None:
    world = World()
    access = Access(lambda: FakeClient(world))
    met = threading.Barrier(3, timeout=10)
    clients: list[object] = []

    def question(client: object) -> None:
        clients.append(client)
        met.wait()

    threads = [threading.Thread(target=access.ask, args=(question,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, clients))) == 3
    access.close()
