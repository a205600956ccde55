"""Faults around handlers: what befalls a request happens here.

Only the APIs that a fault waits for have this around them, and only while it waits
(`magnetar.faults.composing`). The guard of the ACLs lies inside: denied requests meet faults too.

A request that is delayed holds up those behind it on its connection, as on a slow wire. Else a
producer's later batch would overtake the earlier one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from types import CoroutineType
from types import coroutine as awaitable
from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary

from magnetar.apis.authorization import guarded
from magnetar.apis.registry import AnyHandler, Api, Handled
from magnetar.faults.named import named_in
from magnetar.faults.rules import NOTHING, Fault, Faults, Kind, Plan
from magnetar.runtime.delayed_response import DelayedResponse, DelayedResponses
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.server.connection import ClientConnection
from wire.errors import KafkaError
from wire.message import Message

#: How long an answer may take to the operating system's buffer.
_SENT_AFTER_S = 0.01


class Observer(Protocol):
    """Is told of each request, whether or not a fault befalls it."""

    def begin(self, api: Api, request: Message, context: RequestContext) -> Any:
        """Note a request that has arrived; return what stands for it in `end`."""
        ...

    def end(self, begun: Any, response: Message | None) -> None:
        """Note the response to it; None: there was none."""
        ...


class FaultyHandlers:
    """Puts faults around the handlers of one broker."""

    def __init__(
        self,
        faults: Faults,
        observer: Observer,
        delayed_responses: Callable[[], DelayedResponses],
        crash: Callable[[], None],
        on_hit: Callable[[], None],
    ) -> None:
        """`crash` ends the process and does not return. `on_hit` is called after each hit."""
        self._faults = faults
        self._observer = observer
        self._delayed_responses = delayed_responses
        self._crash = crash
        self._on_hit = on_hit
        #: By connection: done when the delayed request before has had its turn.
        self._turns: WeakKeyDictionary[ClientConnection, asyncio.Future[None]] = WeakKeyDictionary()

    def around(self, api: Api, *, is_guarded: bool) -> Api:
        """Return an API whose requests may meet faults."""
        inner: AnyHandler = api.handler
        if is_guarded and api.needs:
            inner = guarded(api.handler, api.refuse, api.needs)

        def handle(services: Services, request: Message, context: RequestContext) -> Handled:
            named = partial(named_in, request, services)
            plan = self._faults.plan(api.key, context.client_id, named)
            if plan is not NOTHING:
                self._on_hit()
            begun = self._observer.begin(api, request, context)
            run = partial(inner, services, request, context)
            # In this step, up to its first wait: requests are worked on in the order of arrival.
            return self._run(_Met(api, request, context, plan), run, begun)

        return api._replace(handler=handle, needs=())

    async def _run(self, met: _Met, run: Callable[[], Handled], begun: Any) -> Message | None:
        response = None
        try:
            response = await self._befall(met, run)
        finally:
            self._observer.end(begun, response)
        return response

    async def _befall(self, met: _Met, run: Callable[[], Handled]) -> Message | None:
        fault = met.plan.fault
        done = await self._wait_for_turn(met)
        try:
            if self._reaches(fault, "received"):
                self._crash()
            if fault is not None and fault.kind is Kind.LOSE_REQUEST:
                await self._lose(met, fault)
                return None
            if fault is not None and fault.kind is Kind.FAIL and not fault.is_applied:
                return met.refused(fault)
            response = await self._effect(met, run, done)
        finally:
            _end_turn(done)
        return await self._after(met, fault, response)

    async def _effect(
        self, met: _Met, run: Callable[[], Handled], done: asyncio.Future[None] | None
    ) -> Message | None:
        """Run the handler to its end. A refusal is a response, as to the client."""
        try:
            handled = run()
            if isinstance(handled, CoroutineType) and self._reaches(met.plan.fault, "appended"):
                return cast("Message | None", await _crashing_at_wait(handled, self._crash))
            while isinstance(handled, CoroutineType):
                handled = await handled
            # All its work is done: the next of the connection may begin its own.
            _end_turn(done)
            if isinstance(handled, DelayedResponse):
                if self._reaches(met.plan.fault, "appended"):
                    self._crash()
                return await self._durable(handled)
            return cast("Message | None", handled)
        except KafkaError as refusal:
            return met.api.refuse(met.request, met.context.version, refusal)

    async def _after(
        self, met: _Met, fault: Fault | None, response: Message | None
    ) -> Message | None:
        if fault is None:
            return response
        if self._reaches(fault, "handled"):
            self._crash()
        if self._reaches(fault, "answered"):
            # The answer goes to the operating system in this turn of the event loop, or the next.
            asyncio.get_running_loop().call_later(_SENT_AFTER_S, self._crash)
        elif fault.kind is Kind.FAIL:
            return met.refused(fault)
        elif fault.kind is Kind.LOSE_ANSWER:
            await self._lose(met, fault)
            return None
        elif fault.kind is Kind.DISCONNECT:
            # It closes behind the answers.
            met.connection.close()
        return response

    async def _lose(self, met: _Met, fault: Fault) -> None:
        if fault.is_silent:
            # For as long as the client stays: its end cancels this.
            await asyncio.get_running_loop().create_future()
        met.connection.abort()

    async def _durable(self, delayed: DelayedResponse) -> Message | None:
        """Wait for a delayed response as its connection would."""
        ended = asyncio.Event()
        self._delayed_responses().begin(delayed, ended.set)
        try:
            await ended.wait()
        except asyncio.CancelledError:
            delayed.cancel()
            raise
        return delayed.make(delayed.is_late)

    async def _wait_for_turn(self, met: _Met) -> asyncio.Future[None] | None:
        """Wait for the delay, and for delayed requests before; return what to end with the turn."""
        before = self._turns.get(met.connection)
        is_first = before is None or before.done()
        if is_first and not met.plan.delay_s:
            return None
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns[met.connection] = done
        try:
            if before is not None:
                await asyncio.wait([before])
            await asyncio.sleep(met.plan.delay_s)
        except asyncio.CancelledError:
            _end_turn(done)
            raise
        return done

    def _reaches(self, fault: Fault | None, stage: str) -> bool:
        return fault is not None and fault.kind is Kind.KILL and fault.point.endswith(f".{stage}")


class _Met:
    """One request and what befalls it."""

    __slots__ = ("api", "context", "plan", "request")

    def __init__(self, api: Api, request: Message, context: RequestContext, plan: Plan) -> None:
        self.api = api
        self.request = request
        self.context = context
        self.plan = plan

    @property
    def connection(self) -> ClientConnection:
        connection = self.context.connection
        assert isinstance(connection, ClientConnection), "requests come through connections"
        return connection

    def refused(self, fault: Fault) -> Message | None:
        error = KafkaError(fault.error, "a fault of the test")
        return self.api.refuse(self.request, self.context.version, error)


def _end_turn(done: asyncio.Future[None] | None) -> None:
    if done is not None and not done.done():
        done.set_result(None)


@awaitable
def _crashing_at_wait(
    coroutine: Coroutine[Any, Any, Any], crash: Callable[[], None]
) -> Generator[Any, Any, Any]:
    """Run a handler up to its first wait, and crash there; its result, if it does not wait."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    crash()
    yield
