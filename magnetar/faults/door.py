"""The way in: a test's process calls, in JSON, one line a call and one line its answer.

The two processes share a pair of sockets without a name: no third one can reach it. Each byte that
comes through it brings a descriptor of another pair, on which calls go, so that a call that waits
holds up no other. When the pair is closed its owner has gone, and the broker stops: a test run that
is killed leaves no broker behind. Its last words, before a crash of its own, say what every fault
has met.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from magnetar.faults.names import Mistake

#: A call by its name, with its arguments as keywords.
Calls = Mapping[str, Callable[..., Awaitable[Any]]]

_DESCRIPTORS_AT_ONCE = 16
_LINE_BYTES_MAX = 1 << 20


class Door:
    """The broker's end."""

    def __init__(self, descriptor: int, calls: Calls) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._calls = calls
        self._channels: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Take calls, from the running loop."""
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._on_readable)

    def close(self) -> None:
        """Take no more calls, and end those under way."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        for channel in self._channels:
            channel.cancel()

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
            task = asyncio.get_running_loop().create_task(self._serve(descriptor))
            self._channels.add(task)
            task.add_done_callback(self._channels.discard)

    async def _serve(self, descriptor: int) -> None:
        reader, writer = await asyncio.open_unix_connection(
            sock=socket.socket(fileno=descriptor), limit=_LINE_BYTES_MAX
        )
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
