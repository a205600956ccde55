"""What all connections of a server share: the event loop, the accounts of memory, the buffer that
they receive in, and their limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from magnetar.runtime.delayed_response import DelayedResponses
from magnetar.runtime.response_memory import ResponseMemory
from magnetar.runtime.turns import Turns
from magnetar.server.dispatch import Dispatcher
from magnetar.server.frames import SharedBuffer
from magnetar.server.memory import RequestMemory

#: The class of the connections, which imports this file.
C = TypeVar("C")


@dataclass(slots=True)
class Shared(Generic[C]):
    """What all connections of a server share."""

    loop: asyncio.AbstractEventLoop
    dispatcher: Dispatcher
    delayed_responses: DelayedResponses
    memory: RequestMemory
    response_memory: ResponseMemory
    turns: Turns
    buffer: SharedBuffer
    frame_bytes_max: int
    in_flight_max: int
    on_opened: Callable[[C, asyncio.Transport], None]
    on_closed: Callable[[C], None]
