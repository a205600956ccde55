"""What every object store must do: the twin, a directory, and a server that speaks S3."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from logstore.remote import bucket as bucket_module
from logstore.remote.bucket import Bucket, UnusableUrl
from logstore.remote.object_store import (
    NoSuchObject,
    ObjectStore,
    ObjectsUnavailable,
    StoredObject,
)
from tests.logstore.simulated_objects import SimulatedObjects
from tools.tcp_proxy import TcpProxy


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    """A server that speaks S3, with a bucket."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="id",
        aws_secret_access_key="secret",
    )
    client.create_bucket(Bucket="test")
    client.close()
    yield endpoint
    server.stop()


def reach(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """Let a Bucket reach the test server at `endpoint`."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")


@pytest.fixture(params=["simulated", "directory", "s3"])
def objects(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ObjectStore:
    if request.param == "simulated":
        return SimulatedObjects()
    if request.param == "directory":
        return Bucket(f"file://{tmp_path}/objects")
    reach(monkeypatch, request.getfixturevalue("s3_endpoint"))
    return Bucket(f"s3://test/{tmp_path.name}")


async def listed(objects: ObjectStore, prefix: str) -> list[StoredObject]:
    pages: AsyncIterator[Sequence[StoredObject]] = objects.list_keys(prefix)
    return sorted([each async for page in pages for each in page])


async def test_what_was_written_is_read(objects: ObjectStore) -> None:
    await objects.put("wal/1-7-1", b"0123456789")
    assert await objects.read("wal/1-7-1", 0, 10) == b"0123456789"
    assert await objects.read("wal/1-7-1", 3, 4) == b"3456"
    assert await objects.read("wal/1-7-1", 9, 1) == b"9"


async def test_the_same_again_does_no_harm(objects: ObjectStore) -> None:
    for _ in range(2):
        await objects.put("wal/1-7-1", memoryview(b"same"))
    assert await objects.read("wal/1-7-1", 0, 4) == b"same"
    assert await listed(objects, "wal") == [StoredObject("wal/1-7-1", 4)]


async def test_a_large_object_is_whole(objects: ObjectStore) -> None:
    data = bytes(range(256)) * (9 << 12)
    await objects.put("segments/a", data)
    assert await objects.read("segments/a", len(data) - 3, 3) == data[-3:]
    assert await objects.read("segments/a", 0, len(data)) == data


@pytest.mark.parametrize(("position", "size"), [(0, 11), (5, 6), (10, 1), (900, 1)])
async def test_a_range_beyond_the_end_is_none(
    objects: ObjectStore, position: int, size: int
) -> None:
    await objects.put("wal/1-7-1", b"0123456789")
    with pytest.raises(NoSuchObject):
        await objects.read("wal/1-7-1", position, size)


async def test_an_object_that_is_not_there(objects: ObjectStore) -> None:
    with pytest.raises(NoSuchObject):
        await objects.read("wal/1-7-1", 0, 1)


async def test_a_bucket_that_is_not_there_is_away(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reach(monkeypatch, s3_endpoint)
    bucket = Bucket("s3://misspelled/some")
    with pytest.raises(ObjectsUnavailable, match="write wal/1: s3://misspelled/some is not"):
        await bucket.put("wal/1", b"x")
    with pytest.raises(ObjectsUnavailable):
        await listed(bucket, "wal")


async def test_objects_that_were_swapped_are_none(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their lengths and offsets may agree: the records of two partitions of one topic."""
    reach(monkeypatch, s3_endpoint)
    bucket, copied = Bucket("s3://test/swapped"), Bucket("s3://test/copied")
    client = boto3.client("s3", endpoint_url=s3_endpoint)
    for key in ("logs/0/1", "logs/1/1"):
        await bucket.put(key, key.encode())
        source = {"Bucket": "test", "Key": f"swapped/{key}"}
        client.copy_object(Bucket="test", Key=f"copied/{key}", CopySource=source)
        assert await copied.read(key, 5, 3) == key[5:].encode(), "a copy of all is as good"
    client.copy_object(
        Bucket="test",
        Key="copied/logs/0/1",
        CopySource={"Bucket": "test", "Key": "swapped/logs/1/1"},
    )
    with pytest.raises(NoSuchObject, match="logs/0/1 is damaged: .* written as logs/1/1"):
        await copied.read("logs/0/1", 5, 3)
    # An earlier release, or a copy by way of files, left no name.
    client.put_object(Bucket="test", Key="copied/logs/0/1", Body=b"logs/0/1")
    assert await copied.read("logs/0/1", 5, 3) == b"0/1"
    client.close()


async def test_an_object_in_a_directory_survives_a_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    root = f"{tmp_path}/made/ob jects"
    bucket = Bucket(f"file://{tmp_path}/made/ob%20jects")
    assert synced == [f"{tmp_path}/made", f"{tmp_path}"]
    synced.clear()
    await bucket.put("wal/7/1", b"x")
    assert synced == [f"{root}/wal/7/1", f"{root}/wal/7", f"{root}/wal", root]


async def test_deleted_objects_are_gone_and_may_be_deleted_again(objects: ObjectStore) -> None:
    for key in ("wal/a", "wal/b", "wal/c"):
        await objects.put(key, key.encode())
    await objects.delete(["wal/a"])
    await objects.delete(["wal/a", "wal/never", "wal/b"])
    await objects.delete([])
    assert await listed(objects, "wal") == [StoredObject("wal/c", 5)]


async def test_a_listing_goes_by_the_parts_of_keys(objects: ObjectStore) -> None:
    for key in ("wal/1-7-1", "wal/1-7-2", "wall/1", "segments/1"):
        await objects.put(key, b"x")
    keys = [each.key for each in await listed(objects, "wal")]
    assert keys == ["wal/1-7-1", "wal/1-7-2"]
    assert await listed(objects, "none") == []


@pytest.mark.parametrize("url", ["no-url", "unknown://bucket", "s3://"])
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(UnusableUrl, match=url):
        Bucket(url)


async def _answering(
    status: bytes, requests: list[bytes], after_s: float = 0, body: bytes = b""
) -> asyncio.Server:
    """Return a server that answers every request with this status."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        await asyncio.sleep(after_s)
        end = b"\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
        writer.write(b"HTTP/1.1 " + status + end + body)
        writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", 0)


@pytest.mark.parametrize("status", [b"403 Forbidden", b"301 Moved Permanently"])
async def test_a_refusal_is_told(status: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[bytes] = []
    async with await _answering(status, requests) as server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        bucket = Bucket("s3://test/some")
        with pytest.raises(ObjectsUnavailable, match="cannot read wal/1"):
            await bucket.read("wal/1", 0, 1)
    assert requests[0].startswith(b"GET /test/some/wal/1 ")


@pytest.mark.parametrize("line_end", [b"\n", b""])
async def test_a_refusal_says_why(line_end: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is wrong is no lack of rights."""
    body = line_end.join(
        (
            b'<?xml version="1.0" encoding="UTF-8"?>',
            b"<Error><Code>RequestTimeTooSkewed</Code><Message>Too large a difference.</Message>",
            b"<RequestId>7</RequestId></Error>",
        )
    )
    async with await _answering(b"403 Forbidden", [], body=body) as server:
        reach(monkeypatch, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(ObjectsUnavailable) as refused:
            await Bucket("s3://test/some").read("wal/1", 0, 1)
    said = str(refused.value)
    assert said.endswith("403 Forbidden: RequestTimeTooSkewed: Too large a difference.")


async def test_a_server_that_fails_is_asked_again_and_then_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests: list[bytes] = []
    async with await _answering(b"503 Slow Down", requests) as server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        with pytest.raises(ObjectsUnavailable, match="cannot write wal/1"):
            await Bucket("s3://test").put("wal/1", b"x")
    assert len(requests) > 1


async def test_a_write_may_take_longer_than_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 MiB take more than 5 seconds at 13 Mbit/s, and no client waits for them."""
    for limit in ("_SILENCE", "_WHOLE", "_ALL_ATTEMPTS"):
        monkeypatch.setattr(bucket_module, limit, timedelta(seconds=0.2))
    requests: list[bytes] = []
    async with await _answering(b"200 OK\r\nETag: 1", requests, after_s=0.7) as server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        await Bucket("s3://test").put("wal/1", b"x")
    assert len(requests) == 1


@pytest.mark.parametrize("silent_s", [0.2, 1.0])
async def test_a_read_takes_as_long_as_the_store_goes_on_sending(
    silent_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the store falls silent, the read is asked again, and goes on where it was."""
    data = bytes(range(80))
    monkeypatch.setattr(bucket_module, "_SILENCE", timedelta(seconds=0.6))
    asked: list[int] = []
    answered = asyncio.Semaphore(0)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        first = int(request.partition(b"bytes=")[2].partition(b"-")[0])
        asked.append(first)
        head = b"HTTP/1.1 206 Partial Content\r\nConnection: close\r\nETag: 1\r\n"
        dated = b"Last-Modified: Mon, 02 Nov 2026 00:00:00 GMT\r\n"
        ranged = b"Content-Range: bytes %d-79/80\r\nContent-Length: %d\r\n\r\n"
        writer.write(head + dated + ranged % (first, 80 - first))
        for position in range(first, 80, 10):
            writer.write(data[position : position + 10])
            await asyncio.sleep(silent_s if position == 30 and first == 0 else 0.2)
        writer.close()
        answered.release()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        reach(monkeypatch, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert await Bucket("s3://test").read("wal/1", 0, 80) == data
        for _ in asked:
            await answered.acquire()
    assert asked == ([0] if silent_s < 0.6 else [0, 40])


@pytest.mark.parametrize("is_dripping", [False, True])
async def test_a_read_takes_two_attempts_and_ends_before_clients_give_up(
    is_dripping: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first connection falls silent; the next one answers at once, or a little at a time."""
    hurry = 4
    for limit in ("_SILENCE", "_WHOLE", "_ALL_ATTEMPTS"):
        monkeypatch.setattr(bucket_module, limit, getattr(bucket_module, limit) / hurry)
    connections = 0
    ended, answered = asyncio.Event(), asyncio.Semaphore(0)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        if connections > 1:
            writer.write(
                b"HTTP/1.1 206 Partial Content\r\nETag: 1\r\nContent-Range: bytes 0-79/80\r\n"
                b"Last-Modified: Mon, 02 Nov 2026 00:00:00 GMT\r\nContent-Length: 80\r\n\r\n"
            )
            writer.write(bytes(1 if is_dripping else 80))
            while is_dripping and not ended.is_set():
                await asyncio.sleep(0.2)
                writer.write(b"x")
        await ended.wait()
        writer.close()
        answered.release()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        reach(monkeypatch, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        began = time.monotonic()
        reading = Bucket("s3://test").read("wal/1", 0, 80)
        if is_dripping:
            with pytest.raises(ObjectsUnavailable, match="cannot read wal/1"):
                await reading
        else:
            assert await reading == bytes(80)
        assert time.monotonic() - began < 30 / hurry
        ended.set()
        for _ in range(connections):
            await answered.acquire()
    assert connections == 2


async def test_a_write_whose_answer_is_lost_is_there_once_and_whole(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = TcpProxy(int(s3_endpoint.rpartition(":")[2]))
    reach(monkeypatch, f"http://127.0.0.1:{proxy.port}")
    monkeypatch.setattr(bucket_module, "_WRITE_ATTEMPT", timedelta(seconds=1))
    bucket = Bucket("s3://test/lost")
    proxy.lose_answers()
    write = asyncio.create_task(bucket.put("wal/1", b"whole"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    direct = Bucket("s3://test/lost")
    async with asyncio.timeout(30):
        while not await listed(direct, "wal"):
            await asyncio.sleep(0.01)
        assert not write.done()
        proxy.heal()
        await write
    assert [each.key for each in await listed(bucket, "wal")] == ["wal/1"]
    assert await bucket.read("wal/1", 0, 5) == b"whole"
    proxy.close()
