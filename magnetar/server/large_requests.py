"""Large requests that have arrived whole: which of them are decoded, and which wait until then.

A request takes many times its bytes once it is decoded. A hundred that come at once would take more
than all that wait may have. So they are decoded as far as there is room in the account of waiting
requests, in the order in which they came. The others wait as they came, in their own bytes. Most
requests are answered soon, and give their room back. Those that have room may also be long polls:
then large requests wait for minutes, and no others do.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import NamedTuple, Protocol

from magnetar.server.memory import RequestMemory
from wire.errors import WireError


class Holder(Protocol):
    """A request, as the account sees it."""

    size_bytes: int
    """What it has in the account."""


class _Undecoded(NamedTuple):
    holder: Holder
    size_bytes: int
    """What it takes once it is decoded."""


class LargeRequests:
    """The large requests of all connections."""

    def __init__(self, memory: RequestMemory) -> None:
        self._memory = memory
        memory.on_room = self._go_on
        #: In the order in which they came, by what is done once they may be decoded.
        self._waiting: OrderedDict[asyncio.Future[None], _Undecoded] = OrderedDict()

    async def admit(self, holder: Holder, frame_bytes: int, size_bytes: int) -> None:
        """Return when a request may be decoded, and has `size_bytes` in the account of waiting
        requests. Until then it takes its `frame_bytes`.

        Raises WireError where it never may, or where those that wait so hold half of the limit.
        """
        memory = self._memory
        if size_bytes > memory.limit_bytes:
            raise WireError("a request is too large for queued.max.request.bytes")
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[ready] = _Undecoded(holder, size_bytes)
        memory.undecoded_bytes += frame_bytes
        try:
            self._go_on()
            # One that has room at once does not wait.
            if not ready.done() and memory.undecoded_bytes > memory.limit_bytes // 2:
                detail = "a large request may not wait: others hold queued.max.request.bytes"
                raise WireError(detail)
            await ready
        finally:
            memory.undecoded_bytes -= frame_bytes
            # Where the client has gone: nothing of it stays, and the next request may need less.
            self._waiting.pop(ready, None)
            self._go_on()

    def _go_on(self) -> None:
        """Let those go on for which there is room by now."""
        memory, waiting = self._memory, self._waiting
        while waiting:
            ready, (holder, size_bytes) = next(iter(waiting.items()))
            # The client of one that is done has gone.
            if not ready.done():
                if memory.waiting_bytes + size_bytes > self._limit_bytes(size_bytes):
                    return
                # The connection gives it back with the answer, or when the client has gone.
                holder.size_bytes = size_bytes
                memory.waiting_bytes += size_bytes
                ready.set_result(None)
            del waiting[ready]

    def _limit_bytes(self, size_bytes: int) -> int:
        """Return up to where a request of that size may fill the account.

        An eighth is left to requests that are not large: else those that queue here would keep the
        account full, and others that may not wait then would be closed for as long. A request that
        fits in no other way may take all.
        """
        limit_bytes = self._memory.limit_bytes
        left_bytes = limit_bytes - limit_bytes // 8
        return left_bytes if size_bytes <= left_bytes else limit_bytes
