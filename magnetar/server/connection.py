"""One client's connection: its frames, the order of its answers, and the pressure back to it.

Order: answers leave in the order of the requests. Requests that append and then wait for a sync
overlap (`OVERLAPPING`), the part of each before its first wait running on arrival; any other
request starts when all before it are answered. So a client that pipelines gets what it would get
from Kafka, which works on one at a time.

Pressure: no more is read while too many requests are unanswered, while the client does not read
its answers, or while requests hold too much memory; nothing is started while answers pile up.
A connection that breaks the protocol is closed, alone, after what came before was answered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, cast

from magnetar.logging import get_logger
from magnetar.runtime.response_memory import HeldResponse
from magnetar.server.dispatch import Answer, Call, UnsupportedVersion
from magnetar.server.first_step import run_first_step
from magnetar.server.frames import FrameReader
from wire.errors import WireError

if TYPE_CHECKING:
    from magnetar.config.listeners import Listener
    from magnetar.runtime.request_context import RequestContext
    from magnetar.server.listening import Server

PRODUCE = 0
API_VERSIONS = 18
#: The API keys, as a frame begins with them, of requests that do all they do in their first step,
#: and then wait for what they have appended to be durable, or for the time to say so: Produce,
#: OffsetCommit, TxnOffsetCommit.
OVERLAPPING = frozenset(key.to_bytes(2, "big") for key in (PRODUCE, 8, 28))
#: How many buffers of answers are gathered before they are handed over.
GATHER_MAX = 64
#: Up to here answers are joined: a copy costs less than handing over more than one buffer.
JOINED_BYTES_MAX = 16 * 1024

_log = get_logger("server")


class _Pause:
    """Why nothing is read: bits. Reading goes on when none is set. Plain integers: an IntFlag's
    operators are functions, called a dozen times for each request."""

    NONE = 0
    UNANSWERED = 1
    UNREAD_ANSWERS = 2
    MEMORY = 4
    CLOSING = 8


class _Exchange:
    """One request's place in the order of answers; `answer` is None until it is known, `task` until
    the request has to wait."""

    __slots__ = ("answer", "context", "overlaps", "size_bytes", "task")

    def __init__(
        self, size_bytes: int, overlaps: bool, context: RequestContext | None = None
    ) -> None:
        self.size_bytes = size_bytes
        self.overlaps = overlaps
        self.answer: Answer | None = None
        self.context = context
        self.task: asyncio.Task[None] | None = None


class ClientConnection(asyncio.BufferedProtocol):
    """The protocol of one accepted connection."""

    def __init__(self, server: Server, listener: Listener) -> None:
        self.listener = listener
        self.client_id: str | None = None
        self.client_address = "?"
        self.host = "?"
        self.last_active = 0.0
        self.received_bytes = 0
        self.sent_bytes = 0
        self._server = server
        self._dispatcher = server.dispatcher
        self._memory = server.memory
        #: Answers that the operating system did not take at once.
        self._unread = HeldResponse(server.response_memory)
        self._loop = server.loop
        self._reader = FrameReader(server.shared_buffer, server.memory, server.frame_bytes_max)
        self._backlog: deque[bytearray] = deque()
        self._exchanges: deque[_Exchange] = deque()
        self._transport: asyncio.Transport | None = None
        self._pause = _Pause.NONE
        self._do_overlap = True  # the requests under way, all of them
        self._is_pumping = False

    # What handlers may know.

    @property
    def is_closing(self) -> bool:
        """Whether nobody will read the answer."""
        return self._transport is None or bool(self._pause & _Pause.CLOSING)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being worked on for it, be it that it does not read its answers."""
        is_waiting = bool(self._backlog) and not self._pause & _Pause.UNREAD_ANSWERS
        return not self._exchanges and not is_waiting

    @property
    def is_partial(self) -> bool:
        """Whether it has a request that is not there whole, or behind another one."""
        return self._reader.is_partial or bool(self._backlog)

    def close(self) -> None:
        """Read no more, answer what was begun, then close."""
        if self._transport is None:
            return
        self._pause_reading(_Pause.CLOSING)
        self._drop_backlog()
        if not self._exchanges and not self._is_pumping:
            self._transport.close()

    def end(self) -> None:
        """Close it, or where it is closing and its client does not read, close at once."""
        if self._pause & _Pause.CLOSING:
            self.abort()
        else:
            self.close()

    def abort(self) -> None:
        """Close without answering."""
        self._cancel_tasks()
        if self._transport is not None:
            self._transport.abort()

    # The event loop's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Said by the server that made it; uvloop's class is no subclass of asyncio's.
        self._transport = connected = cast(asyncio.Transport, transport)
        self.last_active = self._loop.time()
        peer = transport.get_extra_info("peername")
        self.host = str(peer[0]) if peer else "?"
        self.client_address = f"{peer[0]}:{peer[1]}" if peer else "?"
        self._server.opened(self, connected)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._unread.resize(0)
        self._drop_backlog()
        # Nobody hears the answers: a long poll of a client that has gone must not go on, and hold
        # memory for as long as that client pleased. What was decided stands, and is carried out.
        self._cancel_tasks()
        self._reader.discard()
        self._memory.forget(self)
        self._server.closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active = self._loop.time()
        self.received_bytes += nbytes
        frames = self._reader.received(nbytes)
        if frames:
            self._accept(frames)
        if not self._memory.may_read(self):
            self._pause_reading(_Pause.MEMORY)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._unread.resize(self._transport.get_write_buffer_size())
        self._pause_reading(_Pause.UNREAD_ANSWERS)

    def resume_writing(self) -> None:
        self._unread.resize(0)
        self._resume_reading(_Pause.UNREAD_ANSWERS)
        self._pump()

    def resume_memory(self) -> None:
        if self._memory.may_read(self):
            self._resume_reading(_Pause.MEMORY)

    # Requests and answers.

    def _accept(self, frames: list[bytearray]) -> None:
        if self._pause & _Pause.CLOSING:
            return
        for frame in frames:
            self._memory.resize_partial(len(frame))
        self._backlog.extend(frames)
        self._pump()
        if self._exchanges or self._backlog:
            unanswered = len(self._exchanges) + len(self._backlog)
            if unanswered >= self._server.in_flight_max:
                self._pause_reading(_Pause.UNANSWERED)

    def _pump(self) -> None:
        """Start what may start, send what may be sent, in one go."""
        if self._is_pumping:
            return
        self._is_pumping = True
        backlog, exchanges = self._backlog, self._exchanges
        ready: Answer = []
        while True:
            if exchanges and exchanges[0].answer is not None:
                ready += self._take_ready()
                if len(ready) >= GATHER_MAX:
                    # Now, not at the end: it may turn out that the client does not read.
                    self._send(ready)
                    ready = []
            if not backlog or self._pause & _Pause.UNREAD_ANSWERS:
                break
            if exchanges and not (self._do_overlap and bytes(backlog[0][:2]) in OVERLAPPING):
                break
            self._start(backlog.popleft())
        self._is_pumping = False
        if ready:
            self._send(ready)
        if self._pause:
            self._after_answers()

    def _send(self, buffers: Answer) -> None:
        if self._transport is None or not buffers:
            return
        self.last_active = self._loop.time()
        size_bytes = sum(map(len, buffers))
        self.sent_bytes += size_bytes
        if size_bytes <= JOINED_BYTES_MAX:
            self._transport.write(b"".join(buffers))
            return
        # The last one by itself: `writelines` of asyncio in Python 3.12.0 to 3.13.1 does not say
        # that the client does not read (CVE-2024-12254).
        last = buffers.pop()
        if buffers:
            self._transport.writelines(buffers)
        self._transport.write(last)

    def _start(self, frame: bytearray) -> None:
        size_bytes = len(frame)
        self._memory.begin(size_bytes)
        if self._reader.error is not None and not frame:
            self._refuse(self._reader.error)
            return
        try:
            call = self._dispatcher.decode(frame, self, self.client_address)
        except UnsupportedVersion as unsupported:
            self._memory.give_back(size_bytes)
            self._refuse_version(unsupported)
            return
        except WireError as error:
            self._memory.give_back(size_bytes)
            self._refuse(error)
            return
        context = call[2]
        self.client_id = context.client_id
        is_alone = not self._exchanges
        overlaps = bytes(frame[:2]) in OVERLAPPING
        self._do_overlap = overlaps and (is_alone or self._do_overlap)
        exchange = _Exchange(size_bytes, overlaps, context)
        self._exchanges.append(exchange)
        try:
            _, task = run_first_step(self._serve(call, exchange), self._loop)
        except WireError as error:
            self._answered(exchange, [])
            self._refuse(error)
            return
        if task is not None:
            self._wait_for(task, exchange)

    def _wait_for(self, task: asyncio.Task[None], exchange: _Exchange) -> None:
        """Go on with others while a request waits."""
        if not exchange.overlaps:
            # There is one of these on a connection, and nothing looks at its frame any more. It may
            # wait for as long as its client likes, and must not keep others from being read.
            self._memory.give_back(exchange.size_bytes)
            exchange.size_bytes = 0
        exchange.task = task
        task.add_done_callback(partial(self._finished, exchange))

    async def _serve(self, call: Call, exchange: _Exchange) -> None:
        """Work on a request. An answer that was waited for leaves in the step that brings it.

        Where others are under way it leaves a step later, together with those that the same sync
        has brought.
        """
        self._answered(exchange, await self._dispatcher.answer(call))
        if not self._is_pumping and len(self._exchanges) == 1:
            self._send(self._take_ready())

    def _take_ready(self) -> Answer:
        """Remove and return the answers that are known, up to the first that is not."""
        ready: Answer = []
        exchanges = self._exchanges
        while exchanges and (answer := exchanges[0].answer) is not None:
            context = exchanges.popleft().context
            if context is not None and context.held is not None:
                context.held.resize(0)
            ready += answer
        return ready

    def _finished(self, exchange: _Exchange, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if exchange.answer is None:
            self._answered(exchange, [])
        if error is not None:
            self._refuse(error)
        if self._exchanges or self._backlog or self._pause:
            self._pump()

    def _answered(self, exchange: _Exchange, answer: Answer) -> None:
        exchange.answer = answer
        self._memory.give_back(exchange.size_bytes)

    def _after_answers(self) -> None:
        if self._pause & _Pause.CLOSING:
            if not self._exchanges and self._transport is not None:
                self._transport.close()
        elif self._pause & _Pause.UNANSWERED:
            unanswered = len(self._exchanges) + len(self._backlog)
            if unanswered < self._server.in_flight_max:
                self._resume_reading(_Pause.UNANSWERED)

    # Refusals and pressure.

    def _refuse_version(self, unsupported: UnsupportedVersion) -> None:
        if unsupported.api_key != API_VERSIONS:
            self._refuse(unsupported)
            return
        # KIP-511: a client newer than the broker learns from a version 0 answer which to use.
        exchange = _Exchange(0, overlaps=False)
        exchange.answer = self._server.unsupported_api_versions(unsupported.correlation_id)
        self._exchanges.append(exchange)

    def _refuse(self, error: BaseException) -> None:
        _log.warning(
            "connection closed",
            client_address=self.client_address,
            client_id=self.client_id,
            reason=str(error),
            exc_info=None if isinstance(error, WireError) else error,
        )
        self.close()

    def _cancel_tasks(self) -> None:
        for exchange in self._exchanges:
            if exchange.task is not None:
                exchange.task.cancel()

    def _drop_backlog(self) -> None:
        dropped = sum(map(len, self._backlog))
        self._backlog.clear()
        if dropped:
            self._memory.resize_partial(-dropped)

    def _pause_reading(self, reason: int) -> None:
        if not self._pause and self._transport is not None:
            self._transport.pause_reading()
        self._pause |= reason

    def _resume_reading(self, reason: int) -> None:
        if not self._pause & reason:
            return
        self._pause &= ~reason
        if not self._pause and self._transport is not None:
            self._transport.resume_reading()
