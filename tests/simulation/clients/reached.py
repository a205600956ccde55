"""The broker, as the workers of `tests.simulation.workers` reach it: by frames of their own."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from logstore.disk.durability import Durability
from tests.simulation.clients.connection import Connection
from tests.simulation.simulated_broker import Gone
from tests.simulation.world.machine import Machine
from wire.message import Message

M = TypeVar("M", bound=Message)


class ReachedByFrames:
    """One worker's way to the broker. Requests that the worker holds back use it too."""

    def __init__(self, machine: Machine, connection: Connection) -> None:
        self._machine = machine
        self._connection = connection
        self._tasks: dict[asyncio.Task[Any], None] = {}

    @property
    def durability(self) -> Durability:
        return self._machine.durability

    @property
    def incarnations(self) -> int:
        return self._machine.incarnations

    def now_ms(self) -> int:
        return self._machine.wall.now_ms()

    async def call(self, request: Message, response_class: type[M], version: int) -> M:
        try:
            return await self._connection.ask(request, response_class, version)
        except Gone:
            while not self._machine.is_up:
                # A client waits until there is a broker again.
                await asyncio.sleep(0.05)
            raise

    def mine(self, task: asyncio.Task[Any]) -> asyncio.Task[Any]:
        self._tasks[task] = None
        return task
