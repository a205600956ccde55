"""The way in: a test's process calls, in JSON, one line a call and one line its answer.

The two processes share a pair of sockets without a name: no third one can reach it. Each byte that
comes through it brings a descriptor of another pair, on which calls go, so that a call that waits
holds up no other. When the pair is closed its owner has gone, and the broker stops: a test run that
is killed leaves no broker behind. Its last words, before a crash of its own, say what every fault
has met. Each of several nodes has a door of its own, which tests find by its path.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from magnetar.faults.names import Mistake

#: A call by its name, with its arguments as keywords.
Calls = Mapping[str, Callable[..., Awaitable[Any]]]

_DESCRIPTORS_AT_ONCE = 16
_LINE_BYTES_MAX = 1 << 20


class NodeDoor:
    """The door of one of several nodes: a socket in a directory that is the tests' alone.

    Through the pair of sockets, which all nodes have, comes nothing but the end of the tests: the
    supervisor ends then, and with it all nodes.
    """

    def __init__(self, descriptor: int, path: Path, calls: Calls) -> None:
        self._pair = socket.socket(fileno=descriptor)
        self._path = path
        self._channels = _Channels(calls)
        self._listening: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Take calls, from the running loop."""
        # An earlier start of this node may have left the socket.
        self._path.unlink(missing_ok=True)
        bound = socket.socket(socket.AF_UNIX)
        bound.bind(str(self._path))
        bound.listen()
        bound.setblocking(False)
        loop = asyncio.get_running_loop()
        self._listening = loop.create_task(self._listen(bound))
        loop.add_reader(self._pair, os.kill, os.getppid(), signal.SIGKILL)

    def close(self) -> None:
        """Take no more calls, and end those under way."""
        assert self._listening is not None, "not open"
        asyncio.get_running_loop().remove_reader(self._pair)
        self._listening.cancel()
        self._channels.close()

    def say_last_words(self, words: Mapping[str, Any]) -> None:
        """Say nothing: the nodes share what their faults have met."""

    async def _listen(self, bound: socket.socket) -> None:
        with bound:
            while True:
                connected, _ = await asyncio.get_running_loop().sock_accept(bound)
                self._channels.begin(connected)


class Door:
    """The broker's end."""

    def __init__(self, descriptor: int, calls: Calls) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._channels = _Channels(calls)

    def open(self) -> None:
        """Take calls, from the running loop."""
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._on_readable)

    def close(self) -> None:
        """Take no more calls, and end those under way."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._channels.close()

    def say_last_words(self, words: Mapping[str, Any]) -> None:
        """Tell what the process will not be there to be asked for. Does not wait."""
        try:
            self._socket.send(json.dumps(words).encode() + b"\n")
        except OSError:
            return  # The tests have gone first.

    def _on_readable(self) -> None:
        try:
            said, descriptors, _, _ = socket.recv_fds(self._socket, 64, _DESCRIPTORS_AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            said, descriptors = b"", []
        if not said:
            asyncio.get_running_loop().remove_reader(self._socket)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        for descriptor in descriptors:
            self._channels.begin(socket.socket(fileno=descriptor))


class _Channels:
    """The connections on which calls come."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, connected: socket.socket) -> None:
        """Answer what is called on this connection."""
        task = asyncio.get_running_loop().create_task(self._serve(connected))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """End the calls under way."""
        for task in self._tasks:
            task.cancel()

    async def _serve(self, connected: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=connected, limit=_LINE_BYTES_MAX)
        try:
            while line := await reader.readline():
                writer.write(json.dumps(await self._answer(json.loads(line))).encode() + b"\n")
                await writer.drain()
        except ConnectionError:
            return
        finally:
            writer.close()

    async def _answer(self, call: dict[str, Any]) -> dict[str, Any]:
        name = call["call"]
        perform = self._calls.get(name)
        if perform is None:
            return {"mistake": f"there is no call {name!r}; there are {', '.join(self._calls)}"}
        try:
            return {"result": await perform(**call.get("args", {}))}
        except Mistake as mistake:
            return {"mistake": str(mistake)}
        except TimeoutError as late:
            return {"timeout": str(late)}
