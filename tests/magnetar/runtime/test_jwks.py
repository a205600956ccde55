"""The keys of an issuer: kept while it fails, fetched again for a key that is missing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar.config.load import ConfigError
from magnetar.endpoint import EndpointFailed, parse_endpoint
from magnetar.runtime import jwks
from magnetar.runtime.jwks import Jwks, Pace
from magnetar.testing.tokens import TokenIssuer

NEVER = Pace(3600, 3600, 3600)
OFTEN = Pace(0, 0, 0)


class Source:
    """What is fetched: the last of these documents again and again; an error is raised."""

    def __init__(self, *documents: bytes | Exception) -> None:
        self.documents = list(documents)
        self.reads = 0

    def __call__(self) -> bytes:
        self.reads += 1
        document = self.documents[0] if len(self.documents) == 1 else self.documents.pop(0)
        if isinstance(document, Exception):
            raise document
        return document


@pytest.fixture
def document(tmp_path: Path) -> bytes:
    return TokenIssuer(tmp_path).key_set().encode()


@pytest.fixture
def started() -> Iterator[list[Jwks]]:
    made: list[Jwks] = []
    yield made
    for each in made:
        each.stop()


async def start(
    started: list[Jwks], source: Source, pace: Pace, url: str = "https://issuer.test/"
) -> Jwks:
    made = Jwks("A", parse_endpoint(url), source, pace)
    started.append(made)
    await made.start()
    return made


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(one) for one in capsys.readouterr().err.splitlines()]


async def test_a_start_has_the_keys(started: list[Jwks], document: bytes) -> None:
    made = await start(started, Source(document), NEVER)
    assert made.keys is not None
    assert made.keys.keys[0].key_id == "key-1"


async def test_a_start_goes_on_without_an_issuer_and_takes_the_keys_later(
    started: list[Jwks], document: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = EndpointFailed("https://issuer.test/ did not answer")
    made = await start(started, Source(failed, failed, failed, document), OFTEN)
    assert made.keys is None
    await until(lambda: made.keys is not None)
    told = lines(capsys)
    assert [each["event"] for each in told] == [
        "keys of tokens not fetched",
        "keys of tokens fetched",
    ]
    assert told[0]["reason"] == "https://issuer.test/ did not answer"
    assert told[0]["consequence"] == "tokens are refused until there are any"
    assert told[0]["listener"] == "A"


async def test_a_start_does_not_wait_for_an_issuer_that_hangs(
    started: list[Jwks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwks, "START_WAITS_S", 0.01)
    loop, released = asyncio.get_running_loop(), asyncio.Event()

    def hang() -> bytes:
        asyncio.run_coroutine_threadsafe(released.wait(), loop).result()
        return b""

    made = Jwks("A", parse_endpoint("https://issuer.test/"), hang, NEVER)
    started.append(made)
    await made.start()
    assert made.keys is None
    released.set()


@pytest.mark.parametrize(
    "rubbish", [b"<html>", b'{"keys": []}', b"[" * 100_000, EndpointFailed("gone")]
)
async def test_rubbish_leaves_the_old_keys_in_place(
    started: list[Jwks],
    document: bytes,
    rubbish: bytes | Exception,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = Source(document, rubbish)
    made = await start(started, source, OFTEN)
    keys = made.keys
    await until(lambda: source.reads >= 4)
    assert made.keys is keys
    told = [each for each in lines(capsys) if each["level"] == "error"]
    assert len(told) == 1, "one line, however often it is tried"
    assert told[0]["consequence"] == "the old keys are kept"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_bug_in_a_fetch_is_not_the_last_of_them(
    started: list[Jwks], document: bytes
) -> None:
    made = await start(started, Source(KeyError("a bug"), document), OFTEN)
    await until(lambda: made.keys is not None)


async def test_an_unknown_key_has_the_set_fetched_at_once_and_a_flood_of_them_only_once(
    started: list[Jwks], document: bytes
) -> None:
    source = Source(document)
    made = await start(started, source, NEVER)
    for _ in range(1_000):
        made.miss()
    await until(lambda: source.reads == 2)
    await until(lambda: not made._is_fetching)
    made.miss()
    assert source.reads == 2


async def test_an_unknown_key_is_fetched_for_again_after_a_while(
    started: list[Jwks], document: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwks, "UNKNOWN_KEY_INTERVAL_S", 0.0)
    source = Source(document)
    made = await start(started, source, NEVER)
    for expected in (2, 3):
        made.miss()
        await until(lambda: not made._is_fetching)
        assert source.reads == expected


async def test_a_file_without_keys_is_a_reason_not_to_start(
    started: list[Jwks], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"jwks.endpoint.url: file:/k: it is no JSON\."):
        await start(started, Source(b"rubbish"), NEVER, "file:/k")


async def test_a_stop_forgets_a_fetch_that_is_under_way(document: bytes) -> None:
    source = Source(document)
    made = Jwks("A", parse_endpoint("https://issuer.test/"), source, OFTEN)
    made._fetch()
    made.stop()
    await until(lambda: source.reads == 1)
    await asyncio.sleep(0)
    assert made.keys is None
