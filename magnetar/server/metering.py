"""Quotas around a handler: what a request takes, and the pause that follows its answer.

The bytes of a Produce count when it arrives, so that a client that goes away has paid. Request time
counts with the answer: all steps of the handler, and no waits. Where the client must pause, the
answer says for how long and leaves at once, and the connection is not read meanwhile (KIP-219).
Handlers count what only they know: the bytes of a Fetch, and mutations. What refuses a request goes
on to the dispatcher, which makes that answer, in a thread where the request is large.

The dispatcher puts this around its handlers while any client has a quota, and takes it away again:
without quotas nothing of it runs.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from time import perf_counter
from types import CoroutineType
from types import coroutine as awaitable
from typing import Any

from magnetar.apis.registry import AnyHandler, Handled
from magnetar.runtime.delayed_response import DelayedResponse
from magnetar.runtime.quotas import Buckets, Kind
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from wire.message import Message
from wire.messages.produce import ProduceRequest


def metered(handler: AnyHandler) -> AnyHandler:
    """Return `handler` with the quotas of its clients around it."""

    def handle(services: Services, request: Message, context: RequestContext) -> Handled:
        buckets = services.quotas.of(context)
        if not buckets:
            return handler(services, request, context)
        return _Metered(services, request, context, buckets).run(handler)

    return handle


class _Metered:
    """One request of a client that has quotas."""

    def __init__(
        self,
        services: Services,
        request: Message,
        context: RequestContext,
        buckets: Buckets,
    ) -> None:
        self._services = services
        self._request = request
        self._context = context
        self._buckets = buckets
        self._worked_s = 0.0

    def run(self, handler: AnyHandler) -> Handled:
        if isinstance(self._request, ProduceRequest):
            size_bytes = self._context.size_bytes
            self._services.quotas.charge(self._context, self._buckets, Kind.PRODUCE, size_bytes)
        began_s = perf_counter()
        try:
            handled = handler(self._services, self._request, self._context)
        except Exception:  # for the dispatcher
            self._worked_s += perf_counter() - began_s
            self._charge_refused()
            raise
        self._worked_s += perf_counter() - began_s
        return self._go_on(handled) if isinstance(handled, CoroutineType) else self._after(handled)

    async def _go_on(self, handled: Coroutine[Any, Any, Any]) -> Any:
        try:
            after = await self._timed(handled)
        except Exception:  # for the dispatcher
            self._charge_refused()
            raise
        return self._after(after)

    @awaitable
    def _timed(self, steps: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Run the coroutine to its end, and count the time of its steps."""
        error: BaseException | None = None
        while True:
            began_s = perf_counter()
            try:
                awaited = steps.send(None) if error is None else steps.throw(error)
            except StopIteration as done:
                return done.value
            finally:
                self._worked_s += perf_counter() - began_s
                error = None  # Its traceback leads here.
            try:
                yield awaited
            except BaseException as raised:  # for the coroutine: it is cancelled, or closed
                error, awaited = raised, None  # What it awaited has the error.

    def _after(self, handled: Any) -> Message | DelayedResponse | None:
        if isinstance(handled, DelayedResponse):
            make = handled.make

            def answer(is_late: bool) -> Message | None:
                try:
                    response = make(is_late)
                except Exception:  # for the dispatcher
                    self._charge_refused()
                    raise
                return self._answer(response)

            handled.make = answer
            return handled
        return self._answer(handled)

    def _answer(self, response: Message | None) -> Message | None:
        self._charge(is_answered=response is not None)
        if response is not None:
            tell_pause(response, self._context)
        return response

    def _charge_refused(self) -> None:
        self._charge(is_answered=getattr(self._request, "acks", None) != 0)

    def _charge(self, *, is_answered: bool) -> None:
        """Charge the client for the time of its request, and let it pause."""
        context, quotas = self._context, self._services.quotas
        # As in Kafka: a producer that reads no answers is not paused for its time.
        if is_answered:
            percent = 100 * self._worked_s
            quotas.charge(context, self._buckets, Kind.REQUEST, percent, quotas.pause_ms_max)
        if context.throttle_time_ms:
            context.connection.mute(context.throttle_time_ms)


def tell_pause(response: Message, context: RequestContext) -> None:
    """Say in the response for how long the client has to pause, where it has to."""
    if context.throttle_time_ms and hasattr(response, "throttle_time_ms"):
        response.throttle_time_ms = context.throttle_time_ms
