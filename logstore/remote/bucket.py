"""An object store over the network, or a directory: by a URL, through obstore.

`s3://bucket/prefix`, `gs://...`, `az://...`, and `file:///directory` for one machine. Credentials
and endpoints come from where each cloud's own tools find them (`AWS_ENDPOINT_URL`,
`AWS_ACCESS_KEY_ID`, instance roles, ...), since other users see the URL on a command line.

An object has its own key in its metadata, which a store copies with it. So an object under another
key is noticed, even if its batches agree with the row in lengths and offsets, and are another
partition's. Objects of earlier releases have no such entry. A directory keeps no metadata.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, from_url

from logstore.disk.files import Buffer
from logstore.remote.object_store import NoSuchObject, ObjectsUnavailable, StoredObject

if TYPE_CHECKING:
    from obstore import Attributes, GetOptions
    from obstore.store import ClientConfig, RetryConfig

_CONNECT = timedelta(seconds=5)
#: How long the first bytes of an answer may take, and then the next ones each time.
_SILENCE = timedelta(seconds=8)
#: After this time nothing is asked for again. More than a silence: one bad connection costs a
#: second attempt, and no failure.
_ALL_ATTEMPTS = timedelta(seconds=10)
#: How long an answer may take, and a read with all its attempts. Clients wait for 30 seconds.
_WHOLE = timedelta(seconds=25)
#: Both limits of a write, for which no client waits: 8 MiB take 54 seconds at 1.25 Mbit/s.
_WRITE_ATTEMPT = _ALL_WRITE_ATTEMPTS = timedelta(seconds=60)
_RETRIES_MAX = 4
#: The name that an object's key has among its metadata: Azure takes no hyphen in it, and some
#: proxies drop a header with an underscore.
_KEY = "key"
#: The keys of one request: S3 takes 1,000.
_KEYS_AT_ONCE = 1_000
#: What the library's error says of a range that does not exist: in a directory, and on a server.
_NO_RANGE = ("Requested range was invalid", "status code: 416 ")
#: What a server says of a refusal, in a document that begins in the first line of the error.
_REFUSAL = re.compile(r"<Code>([^<]+)</Code>\s*<Message>([^<\n]*)")


class UnusableUrl(Exception):
    """A URL that names no object store, or lacks what it needs. Says which."""


class Bucket:
    """One bucket, or the part of it below the URL's path."""

    def __init__(self, url: str) -> None:
        """Does not connect yet. Raises UnusableUrl."""
        self.url = url
        scheme = urlsplit(url).scheme
        if not scheme:
            raise UnusableUrl(f"{url} is no URL: s3://BUCKET/PREFIX, for example")
        try:
            if scheme == "file":
                _make(Path(unquote(urlsplit(url).path)))
            self._store = from_url(url, **_options(scheme, _SILENCE, _WHOLE, _ALL_ATTEMPTS))
            # The store answers nothing before all is written, so its silence may be as long.
            limits = (_WRITE_ATTEMPT, _WRITE_ATTEMPT, _ALL_WRITE_ATTEMPTS)
            self._writes = from_url(url, **_options(scheme, *limits))
        except (BaseError, OSError, ValueError) as error:
            raise UnusableUrl(f"{url}: {_reason_of(error)}") from error

    async def put(self, key: str, data: Buffer) -> None:
        """Write a whole object; as `ObjectStore.put`."""
        # A directory refuses metadata.
        own: Attributes | None = None if isinstance(self._store, LocalStore) else {_KEY: key}
        with self._asking(f"write {key}"):
            # Never in parts: half an upload would stay in the bucket, where no listing shows it.
            await obstore.put_async(self._writes, key, data, attributes=own, use_multipart=False)
            if isinstance(self._store, LocalStore):
                # The library leaves it to the page cache, and its rows are about to be deleted.
                assert self._store.prefix is not None
                await asyncio.to_thread(_sync_object, self._store.prefix, key)

    async def read(self, key: str, position: int, size: int) -> bytes:
        """Return a part of an object; as `ObjectStore.read`."""
        options: GetOptions = {"range": (position, position + size)}
        with self._asking(f"read {key}", of_object=True):
            async with asyncio.timeout(_WHOLE.total_seconds()):
                found = await obstore.get_async(self._store, key, options=options)
                written_as = found.attributes.get(_KEY, key)
                if written_as != key:
                    raise NoSuchObject(f"{key} is damaged: it was written as {written_as}")
                data = bytes(await found.bytes_async())
        if len(data) < size:
            raise NoSuchObject(f"{key} ends at {position + len(data)}, not at {position + size}")
        return data

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; as `ObjectStore.delete`."""
        for first in range(0, len(keys), _KEYS_AT_ONCE):
            try:
                with self._asking("delete objects", of_object=True):
                    await obstore.delete_async(self._store, [*keys[first : first + _KEYS_AT_ONCE]])
            except NoSuchObject:
                # A directory, and Google's store, fail at the first key that is not there, and may
                # have left the others.
                for key in keys[first : first + _KEYS_AT_ONCE]:
                    await self._delete_one(key)

    async def _delete_one(self, key: str) -> None:
        try:
            with self._asking(f"delete {key}", of_object=True):
                await obstore.delete_async(self._store, key)
        except NoSuchObject:
            return

    async def list_keys(self, prefix: str) -> AsyncIterator[Sequence[StoredObject]]:
        """Yield the objects below a prefix; as `ObjectStore.list_keys`."""
        found = obstore.list(self._store, prefix, chunk_size=_KEYS_AT_ONCE)
        while True:
            with self._asking(f"list {prefix}"):
                page = await anext(found, None)
            if page is None:
                return
            yield [StoredObject(each["path"], each["size"]) for each in page]

    @contextmanager
    def _asking(self, doing: str, *, of_object: bool = False) -> Iterator[None]:
        """Turn the library's errors into those of `ObjectStore`.

        `of_object`: what is not there is the object. Else it is the bucket.
        """
        try:
            yield
        except FileNotFoundError as missing:
            # obstore's NotFoundError is a subclass of it.
            if not of_object:
                raise ObjectsUnavailable(doing, f"{self.url} is not there") from missing
            raise NoSuchObject(f"cannot {doing}: it is not there") from missing
        except (BaseError, OSError) as error:
            reason = _reason_of(error)
            if any(sign in str(error) for sign in _NO_RANGE):
                raise NoSuchObject(f"cannot {doing}: {reason}") from error
            raise ObjectsUnavailable(doing, reason) from error


def _make(directory: Path) -> None:
    """Make a directory, and those in which it lies, durably. Blocks."""
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for each in missing:
        _sync(each.parent)


def _sync_object(directory: Path, key: str) -> None:
    """Make an object in a directory durable, and the names that lead to it. Blocks."""
    path = directory / key
    for each in (path, *path.parents):
        _sync(each)
        if each == directory:
            break


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _options(
    scheme: str, silence: timedelta, attempt: timedelta, all_attempts: timedelta
) -> dict[str, Any]:
    if scheme == "file":
        return {}
    client: ClientConfig = {
        "timeout": attempt,
        "read_timeout": silence,
        "connect_timeout": _CONNECT,
        # For the servers of tests; a URL of https is not changed by this.
        "allow_http": True,
    }
    retry: RetryConfig = {"max_retries": _RETRIES_MAX, "retry_timeout": all_attempts}
    return {"client_options": client, "retry_config": retry}


def _reason_of(error: Exception) -> str:
    """Return why, without the structures that the library prints behind it."""
    lines = str(error).strip().splitlines()
    line = lines[0] if lines else type(error).__name__
    refusal = _REFUSAL.search(str(error))
    return line if refusal is None else ": ".join((line.partition(": <")[0], *refusal.groups()))
