"""From a frame to an answer: header, table of APIs, body, handler, response.

The edge of the broker: every error of a handler ends here. `KafkaError` is an answer, `WireError`
closes the connection, a failing disk or a broken invariant stops the broker, and any other error is
a bug, which is logged with its traceback and answered UNKNOWN_SERVER_ERROR.

A message of very many elements, or of long strings, would hold the event loop while it is decoded
or encoded. So the loop gives up at `ELEMENTS_AT_ONCE`, and a thread does the work from the
beginning.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from struct import Struct
from struct import error as StructError
from time import perf_counter_ns
from types import CoroutineType
from typing import TYPE_CHECKING, Any, cast

from magnetar.apis.api_versions import unsupported_version_response
from magnetar.apis.refusals import log_refused_request
from magnetar.apis.registry import Api
from magnetar.clock import Clock
from magnetar.logging import get_logger
from magnetar.runtime.delayed_response import DelayedResponse
from magnetar.runtime.failing import is_fatal
from magnetar.runtime.large_messages import ELEMENTS_AT_ONCE, LARGE_MESSAGES
from magnetar.runtime.request_context import Connection, RequestContext
from magnetar.runtime.response_memory import ResponseMemory
from magnetar.runtime.services import Services
from magnetar.runtime.turns import Turns
from magnetar.server.collecting import Collector
from magnetar.server.exchange import Exchange
from magnetar.server.first_step import Rest, run_first_step
from magnetar.server.frames import SIZE_BYTES, Frame
from magnetar.server.large_answers import SMALL_ELEMENTS_MAX, LargeAnswers
from magnetar.server.large_requests import LargeRequests
from magnetar.server.latency import SUM_NS, no_durations
from magnetar.server.memory import RequestMemory
from magnetar.server.metering import tell_pause
from magnetar.server.releasing import release
from magnetar.server.route import Route
from magnetar.server.writing import Answer
from wire.error_code import ErrorCode
from wire.errors import KafkaError, TooManyElements, WireError
from wire.message import Message
from wire.messages.api_versions import ApiVersionsRequest
from wire.messages.header import RequestHeader
from wire.messages.sasl_authenticate import SaslAuthenticateRequest

if TYPE_CHECKING:
    from magnetar.server.tracing import Tracing

API_VERSIONS = 18
#: The elements of all arrays that one request may have. Kafka's limit for each array is larger; a
#: thread decodes so many in 0.2 s, and no real request comes near.
REQUEST_ELEMENTS_MAX = 1 << 17
#: What an element takes once it is decoded, besides its text.
_ELEMENT_BYTES = 256
#: The elements of a large request are not counted yet: they are taken for so many times its frame.
_LARGE_FACTOR = 15
#: API key and version as one number, correlation id, length of the client id.
_HEADER = Struct(">Iih")
_KEY_AND_VERSION = Struct(">hh")
#: Where the client id begins.
_HEADER_BYTES = _HEADER.size
#: Shorter responses are joined into one buffer: a copy costs less than one more buffer.
_JOIN_BYTES_MAX = 16 * 1024

_log = get_logger("server")


class UnsupportedVersion(WireError):
    """The broker does not serve this API, or not in this version."""

    def __init__(self, api_key: int, version: int, correlation_id: int) -> None:
        super().__init__(f"API key {api_key} version {version} is not served")
        self.api_key = api_key
        self.correlation_id = correlation_id


class Dispatcher:
    """Decodes and runs the requests of all connections."""

    #: What handlers work with; set before the first connection is accepted.
    services: Services
    #: What makes a span of each request; None: nothing does.
    tracing: Tracing | None = None

    def __init__(
        self,
        clock: Clock,
        apis: Mapping[int, Api],
        on_fatal: Callable[[BaseException], None],
        turns: Turns,
        memory: RequestMemory,
        response_memory: ResponseMemory,
    ) -> None:
        self._apis = apis
        self._turns = turns
        self._large = LargeRequests(memory)
        self._response_memory = response_memory
        self._large_answers = LargeAnswers(response_memory)
        self._on_fatal = on_fatal
        self._now_ms = clock.now_ms
        self._steady_ms = clock.steady_ms
        self._loop = asyncio.get_running_loop()
        self._collector = Collector(self._loop)
        #: By API key and version as the first four bytes of a request say them.
        self._routes: dict[int, Route] = {}
        #: The number of requests that were understood, by API key.
        self.request_counts = dict.fromkeys(apis, 0)
        #: How long requests took until their answers were known, by API key.
        self.durations = {key: no_durations() for key in apis}

    def begin(self, frame: Frame, connection: Connection, client_address: str) -> Exchange:
        """Decode the request that `frame` holds and run its handler up to its first wait.

        The exchange returned has its answer, or what it waits for. Records are views of the frame.
        Raises WireError, of which UnsupportedVersion is a kind.
        """
        try:
            key_and_version, correlation_id, length = _HEADER.unpack_from(frame)
            route = self._routes.get(key_and_version)
            if route is None:
                route = self._route_of(frame, key_and_version, correlation_id)
            offset = _HEADER_BYTES + length
            if length < 0 or offset >= len(frame) or (route.is_flexible and frame[offset]):
                # A client id that is null or cut short, or tagged fields: both are rare.
                header, offset = RequestHeader.decode_from(frame, 2 if route.is_flexible else 1)
                client_id = header.client_id
            else:
                client_id = str(frame[_HEADER_BYTES:offset], "utf-8")
                offset += route.is_flexible
        except StructError:
            raise WireError(f"{len(frame)} bytes are no request header") from None
        except UnicodeDecodeError:
            raise WireError("the client id is not UTF-8") from None
        key, version = route.api_key, route.version
        context = RequestContext(
            key,
            version,
            correlation_id,
            client_id,
            client_address,
            self._now_ms(),
            connection,
            len(frame),
        )
        exchange = Exchange(route, context)
        try:
            # Bytes that follow are left alone, as in Kafka: librdkafka 2.16 sends three of them
            # after a Metadata request of version 13.
            exchange.request, _, elements = route.decode(frame, offset, ELEMENTS_AT_ONCE)
        except TooManyElements:
            exchange.is_large = True
            exchange.overlaps = False
            exchange.waits_for = self._begin_large(exchange, frame, offset)
            return exchange
        exchange.size_bytes = route.byte_factor * len(frame) + _ELEMENT_BYTES * elements
        self.request_counts[key] += 1
        try:
            handled = route.handler(self.services, exchange.request, context)
            # Asked in the order of how often: Produce, then handlers with `async`.
            if isinstance(handled, DelayedResponse):
                exchange.waits_for = handled
            elif isinstance(handled, CoroutineType):
                outcome = run_first_step(handled, self._loop)
                if isinstance(outcome, Rest):
                    exchange.waits_for = outcome
                    # Else later ones would do their work before it.
                    exchange.overlaps = exchange.overlaps and not context.is_deferred
                else:
                    self._respond(exchange, outcome)
            else:
                self._respond(exchange, cast("Message | None", handled))
        except Exception as error:  # the edge of the broker: `_on_error` sorts them
            exchange.answer = self._on_error(exchange, error)
        return exchange

    def finish(self, exchange: Exchange, delayed: DelayedResponse) -> None:
        """Answer a request whose delayed response may be made. Raises WireError.

        The exchange has its answer, or a new wait: for a large response to be encoded.
        """
        try:
            self._respond(exchange, delayed.made())
        except Exception as error:  # the edge of the broker: `_on_error` sorts them
            exchange.answer = self._on_error(exchange, error)

    async def go_on_large(
        self, exchange: Exchange, rest: Rest, answered: Callable[[Exchange], None]
    ) -> None:
        """Do as `go_on`, for a request that a thread decodes."""
        with self._collector.put_off():
            await self._run_rest(exchange, rest)
            answered(exchange)
            if exchange.answer is not None:
                exchange.held.append(exchange.request)
                del exchange.request
                await self._release(exchange)

    async def go_on(
        self, exchange: Exchange, rest: Rest, answered: Callable[[Exchange], None]
    ) -> None:
        """Run the handler from its first wait on, and call `answered`. Raises WireError.

        The exchange has its answer then, or waits for a `DelayedResponse`. What is large of one
        that has its answer is freed after that.
        """
        await self._run_rest(exchange, rest)
        answered(exchange)
        if exchange.held:
            await self._release(exchange)

    async def _release(self, exchange: Exchange) -> None:
        await LARGE_MESSAGES.run(partial(release, exchange.held))

    async def _run_rest(self, exchange: Exchange, rest: Rest) -> None:
        """Run the handler from its first wait on. Raises WireError."""
        try:
            handled = await rest.resume()
            if isinstance(handled, DelayedResponse):
                exchange.waits_for = handled
                return
            try:
                is_unread = self._response_memory.is_unread
                at_once = SMALL_ELEMENTS_MAX if is_unread else ELEMENTS_AT_ONCE
                exchange.answer = _encode(exchange, handled, at_once)
            except TooManyElements:
                exchange.held.append(handled)
                await self._encode_large(exchange, handled)
        except Exception as error:  # the edge of the broker: `_on_error` sorts them
            await self._refuse_rest(exchange, error)

    async def _encode_large(self, exchange: Exchange, response: Message | None) -> None:
        """Set an answer that a thread encodes, once there is room for it. Raises WireError."""
        # A fetch has its place in the account already.
        has_place = exchange.context.held_response is not None
        async with nullcontext() if has_place else self._large_answers.place():
            with self._turns.aside():
                encode = partial(_encode, exchange, response)
                exchange.answer = await LARGE_MESSAGES.run(encode)

    async def _refuse_rest(self, exchange: Exchange, error: Exception) -> None:
        """Answer a request whose handler has failed after its first wait. Raises WireError."""
        # Apart from the frame that caught the error, which the error's traceback holds. A variable
        # for the error there would be a cycle, and keep the request until a full collection.
        refusal = self._refusal_for(exchange, error)
        if refusal is not None and exchange.is_large:
            # It names as much as the request does.
            answer = await LARGE_MESSAGES.run(partial(_refusal, exchange, refusal))
        else:
            answer = _refusal(exchange, refusal)
        exchange.answer = _told(exchange, answer)

    def close(self) -> None:
        """Leave the process as it was: no request is begun any more."""
        self._collector.close()

    def forget_routes(self) -> None:
        """Look routes up anew: quotas have come or gone."""
        self._routes.clear()

    def _respond(self, exchange: Exchange, response: Message | None) -> None:
        """Set the answer, or what it waits for where a thread has to encode it."""
        try:
            at_once = SMALL_ELEMENTS_MAX if self._response_memory.is_unread else ELEMENTS_AT_ONCE
            exchange.answer = _encode(exchange, response, at_once)
        except TooManyElements:
            exchange.waits_for = run_first_step(_later(response), self._loop)

    def _begin_large(self, exchange: Exchange, frame: Frame, offset: int) -> Rest:
        """Begin to decode a request in the thread, and to run its handler after that."""
        began = run_first_step(self._handle_large(exchange, frame, offset), self._loop)
        assert isinstance(began, Rest), "a thread is waited for"
        return began

    async def _handle_large(self, exchange: Exchange, frame: Frame, offset: int) -> Any:
        frame_bytes = len(frame)
        elements_bytes = min(_LARGE_FACTOR * frame_bytes, _ELEMENT_BYTES * REQUEST_ELEMENTS_MAX)
        decoded_bytes = exchange.route.byte_factor * frame_bytes + elements_bytes
        await self._large.admit(exchange, frame_bytes, decoded_bytes)
        decode = partial(exchange.route.decode, frame, offset, REQUEST_ELEMENTS_MAX)
        exchange.request, _, _ = await LARGE_MESSAGES.run(decode)
        self.request_counts[exchange.route.api_key] += 1
        # The thread may be done with many in one step of the loop.
        await self._turns.begin()
        handled = exchange.route.handler(self.services, exchange.request, exchange.context)
        return await handled if isinstance(handled, CoroutineType) else handled

    def begin_guarded(self, frame: Frame, connection: Connection, client_address: str) -> Exchange:
        """Begin a request that the connection's session must admit. Raises WireError."""
        session = connection.session
        if session.takes_tokens:
            return self._token_exchange(frame, connection)
        session.admit(int.from_bytes(frame[:2], "big"), self._steady_ms())
        return self.begin(frame, connection, client_address)

    def _token_exchange(self, frame: Frame, connection: Connection) -> Exchange:
        """Return a bare token of a login as a request, with its answer: a bare token too."""
        now_ms, steady_ms = self._now_ms(), self._steady_ms()
        try:
            token, _ = connection.session.authenticate(bytes(frame), now_ms, steady_ms)
        except KafkaError as refusal:
            # Before KIP-152 the protocol has no answer that says no.
            self.services.refusals.add(SaslAuthenticateRequest.api_key, refusal.code)
            raise WireError(connection.session.failure or str(refusal)) from None
        api = self._apis[SaslAuthenticateRequest.api_key]
        context = RequestContext(api.key, 0, 0, None, "", now_ms, connection)
        exchange = Exchange(Route(api, 0, self.durations[api.key]), context)
        exchange.request = SaslAuthenticateRequest()
        exchange.answer = [len(token).to_bytes(SIZE_BYTES, "big") + token]
        return exchange

    def version_0_exchange(
        self, unsupported: UnsupportedVersion, connection: Connection
    ) -> Exchange:
        """Return an ApiVersions request of an unknown version, with its answer (KIP-511)."""
        key, correlation_id = unsupported.api_key, unsupported.correlation_id
        context = RequestContext(key, 0, correlation_id, None, "", self._now_ms(), connection)
        exchange = Exchange(Route(self._apis[key], 0, self.durations[key]), context)
        exchange.request = ApiVersionsRequest()
        exchange.answer = _encode(exchange, unsupported_version_response(self._apis))
        return exchange

    def _route_of(self, frame: Frame, key_and_version: int, correlation_id: int) -> Route:
        api_key, version = _KEY_AND_VERSION.unpack_from(frame)
        api = self._apis.get(api_key)
        if api is None or not api.min_version <= version <= api.max_version:
            raise UnsupportedVersion(api_key, version, correlation_id)
        route = self._routes[key_and_version] = Route(
            api,
            version,
            self.durations[api_key],
            is_guarded=self.services.acls is not None,
            is_metered=self.services.quotas.limits_clients,
            do_partitions_move=self.services.topics.placement.moves,
            tracing=self.tracing,
        )
        return route

    def _on_error(self, exchange: Exchange, error: Exception) -> Answer:
        """Return the answer to a request whose handler has failed. Raises WireError."""
        return _told(exchange, _refusal(exchange, self._refusal_for(exchange, error)))

    def _refusal_for(self, exchange: Exchange, error: Exception) -> KafkaError | None:
        """Return the refusal of a request whose handler has failed. Raises WireError.

        None: the failure ends the broker.
        """
        if isinstance(error, WireError):
            raise error
        if isinstance(error, KafkaError):
            log_refused_request(self.services, exchange.context, exchange.request, error)
            refusal = error
        elif is_fatal(error):
            self._on_fatal(error)
            return None
        else:
            # The one place: a bug must not take the other requests along.
            _log.exception("handler failed", **_described(exchange))
            refusal = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        # It leads to frames that may hold a task or a future, and by that the error: no cycle is
        # left.
        error.__traceback__ = None
        return refusal


async def _later(response: Message | None) -> Message | None:
    """Return `response` in a task, where its encoding may be waited for."""
    await asyncio.sleep(0)
    return response


def _encode(
    exchange: Exchange, response: Message | None, elements_max: int = sys.maxsize
) -> Answer:
    """Return size, response header and body in buffers of which none is empty.

    Counts the request's duration, which ends here. Large parts are not copied. Raises
    TooManyElements, and TypeError for a response that cannot be sent: a bug.
    """
    if response is None:
        return []
    route = exchange.route
    try:
        parts = route.encode(response, elements_max)
    except TooManyElements:
        raise
    except WireError as error:
        raise TypeError(f"{type(response).__name__} cannot be sent: {error}") from error
    prefix = route.prefix
    size = prefix.size - SIZE_BYTES
    for part in parts:
        size += len(part)
    head = prefix.pack(size, exchange.context.correlation_id)
    taken_ns = perf_counter_ns() - exchange.began_ns
    durations = route.durations
    durations[taken_ns.bit_length()] += 1
    durations[SUM_NS] += taken_ns
    if size <= _JOIN_BYTES_MAX:
        return [b"".join((head, *parts))]
    return [head, *filter(len, parts)]


def _refusal(exchange: Exchange, refusal: KafkaError | None) -> Answer:
    if refusal is None:
        return []
    route = exchange.route
    response = route.api.refuse(exchange.request, route.version, refusal)
    if response is not None:
        tell_pause(response, exchange.context)
    return _encode(exchange, response)


def _told(exchange: Exchange, answer: Answer) -> Answer:
    """Return the answer that refuses a request.

    As in Kafka a connection is closed where there is none: its producer reads none (acks=0).
    """
    if not answer:
        exchange.context.connection.close()
    return answer


def _described(exchange: Exchange) -> dict[str, Any]:
    """Return the fields by which a log line names a request."""
    context = exchange.context
    return {
        "api": exchange.route.api.name,
        "version": context.version,
        **context.described(),
    }
