"""Traces of OpenTelemetry: one span for each request, around its handler.

A span begins when the request is decoded and ends when its answer is known, like the durations in
metrics. It says the API and its version, who asks (principal, client id, address, correlation id),
what for (the topic, where there is one; the group, the transactional id), and the first error of
the answer. The spans of producers are linked where their records have the header `traceparent`.

The dispatcher puts this around its handlers where `traces.exporter` is set: without it nothing of
it is imported, and no request runs a call more. Names are those of OpenTelemetry's semantic
conventions, and `kafka.*` where these have none. Source: W3C Trace Context.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Iterator
from itertools import islice
from types import CoroutineType
from typing import Any
from uuid import UUID

from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    Tracer,
)

from magnetar.apis.registry import AnyHandler, Api, Handled
from magnetar.logging import shown
from magnetar.runtime.delayed_response import DelayedResponse
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.server.subjects import error_codes_of, topics_of
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.message import Message
from wire.messages.produce import ProduceRequest
from wire.records import ATTRIBUTE_COMPRESSION, BATCH_OVERHEAD

#: Spans of producers that one request is linked with, at most, and the bytes of each batch that are
#: searched for them.
LINKS_MAX = 16
SEARCHED_BYTES_MAX = 1 << 18
#: A record's header; lengths are varints. The value has version, trace id, span id and flags.
_HEADER = re.compile(
    rb"\x16traceparent\x6e(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})"
)
_SAMPLED = 0x01
#: Where a batch has the low byte of its attributes.
_ATTRIBUTES_AT = 22
#: Why a request has no answer whose client has gone.
_GONE = "client_gone"


class Tracing:
    """Makes the spans of a broker's requests."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def around(self, api: Api, handler: AnyHandler) -> AnyHandler:
        """Return `handler` with a span around each request."""
        begin, name = self._tracer.start_span, api.name

        def handle(services: Services, request: Message, context: RequestContext) -> Handled:
            span = begin(name, kind=SpanKind.SERVER)
            if not span.is_recording():
                return handler(services, request, context)
            return _Traced(span, name, services, request, context).run(handler)

        return handle


class _Traced:
    """One request with its span."""

    __slots__ = ("_context", "_name", "_request", "_services", "_span")

    def __init__(
        self, span: Span, name: str, services: Services, request: Message, context: RequestContext
    ) -> None:
        self._span = span
        self._name = name
        self._services = services
        self._request = request
        self._context = context

    def run(self, handler: AnyHandler) -> Handled:
        self._describe()
        try:
            handled = handler(self._services, self._request, self._context)
        except Exception as error:  # for the dispatcher: it is only told here
            self._fail(error)
            raise
        return self._go_on(handled) if isinstance(handled, CoroutineType) else self._after(handled)

    async def _go_on(self, handled: Coroutine[Any, Any, Any]) -> Any:
        try:
            after = await handled
        except BaseException as error:  # for the dispatcher, or of a client that has gone
            self._fail(error)
            raise
        return self._after(after)

    def _after(self, handled: Any) -> Message | DelayedResponse | None:
        if not isinstance(handled, DelayedResponse):
            self._end(handled)
            return handled  # type: ignore[no-any-return]  # what is no DelayedResponse is a Message
        make, on_cancel = handled.make, handled.on_cancel

        def answer(is_late: bool) -> Message | None:
            try:
                response = make(is_late)
            except Exception as error:  # for the dispatcher: it is only told here
                self._fail(error)
                raise
            self._end(response)
            return response

        def cancel() -> None:
            self._refuse(_GONE)
            if on_cancel is not None:
                on_cancel()

        handled.make, handled.on_cancel = answer, cancel
        return handled

    def _describe(self) -> None:
        """Say what is known before the handler runs."""
        context, request = self._context, self._request
        given: dict[str, str | int] = {
            "messaging.system": "kafka",
            "messaging.operation.name": self._name,
            "messaging.client.id": shown(context.client_id or ""),
            "client.address": context.host,
            "enduser.id": shown(str(context.principal)),
            "kafka.api.key": context.api_key,
            "kafka.api.version": context.version,
            "kafka.correlation_id": context.correlation_id,
            "kafka.request.size": context.size_bytes,
        }
        group_id = getattr(request, "group_id", None)
        if group_id:
            given["messaging.consumer.group.name"] = shown(group_id)
        transactional_id = getattr(request, "transactional_id", None)
        if transactional_id:
            given["kafka.transactional_id"] = shown(transactional_id)
        self._span.set_attributes(given)
        self._say_topics(request)
        if isinstance(request, ProduceRequest):
            for link in islice(_links_in(request), LINKS_MAX):
                self._span.add_link(link.context)

    def _say_topics(self, message: Message) -> bool:
        """Say the one topic of a message, or how many it has; return whether it has any."""
        topics = {*topics_of(message)}
        if len(topics) == 1:
            (topic,) = topics
            name = self._named(topic)
            self._span.update_name(f"{self._name} {name}")
            self._span.set_attribute("messaging.destination.name", name)
        elif topics:
            self._span.set_attribute("kafka.topic_count", len(topics))
        return bool(topics)

    def _named(self, topic: str | UUID) -> str:
        known = self._services.topics.by_id(topic) if isinstance(topic, UUID) else None
        return shown(str(topic) if known is None else known.name)

    def _end(self, response: Message | None) -> None:
        if response is not None:
            # A fetch in a session names only what has changed, and its answer what has records.
            if not any(topics_of(self._request)):
                self._say_topics(response)
            code = next(error_codes_of(response), 0)
            if code:
                self._span.set_attribute("error.type", _code_name(code))
                self._span.set_status(StatusCode.ERROR)
        self._end_span()

    def _fail(self, error: BaseException) -> None:
        """End the span of a request whose handler has raised."""
        if isinstance(error, KafkaError):
            self._refuse(error.code.name, error.detail)
        elif isinstance(error, asyncio.CancelledError | GeneratorExit):
            self._refuse(_GONE)
        else:
            self._span.record_exception(error)
            self._refuse(type(error).__name__, str(error))

    def _refuse(self, error: str, detail: str = "") -> None:
        self._span.set_attribute("error.type", error)
        self._span.set_status(StatusCode.ERROR, shown(detail) or None)
        self._end_span()

    def _end_span(self) -> None:
        if self._context.throttle_time_ms:
            self._span.set_attribute("kafka.throttle_time_ms", self._context.throttle_time_ms)
        self._span.end()


def _links_in(request: ProduceRequest) -> Iterator[Link]:
    """Yield the spans that made the records of batches that are not compressed, each once.

    They are found by the bytes of their header: decoding records would cost more than all the rest
    of a Produce.
    """
    seen = set()
    for topic in request.topic_data:
        for partition in topic.partition_data:
            for found in _HEADER.finditer(_searched(partition.records)):
                trace_id, span_id, flags = (int(each, 16) for each in found.groups())
                sampled = TraceFlags(flags & _SAMPLED)
                context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=sampled)
                if context.is_valid and (trace_id, span_id) not in seen:
                    seen.add((trace_id, span_id))
                    yield Link(context)


def _searched(records: Any) -> bytes:
    """Return the bytes of a batch that are searched; none of a batch that is compressed."""
    # Without BatchHeader.parse: nothing of the batch has been checked yet.
    if records is None or len(records) < BATCH_OVERHEAD:
        return b""
    if records[_ATTRIBUTES_AT] & ATTRIBUTE_COMPRESSION:
        return b""
    return bytes(memoryview(records)[:SEARCHED_BYTES_MAX])


def _code_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
