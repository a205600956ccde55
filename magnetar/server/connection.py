"""One client's connection: its frames, the order of its answers, and the pressure back to it.

Order: answers leave in the order of the requests. Requests that append and then wait for a sync
overlap (`OVERLAPPING`): the part of each before its first wait runs on arrival. Any other request
starts when all before it are answered, and so does what follows one that is held while partitions
move. So a client that pipelines gets Kafka's answers, which works on one request at a time.

Pressure: nothing more is read while too many requests are unanswered, while answers are not read,
while requests hold too much memory, or while a quota mutes the connection. No request is started
while answers pile up. A connection that breaks the protocol is closed, once all before is answered.

End: what has arrived and appends is done: with acks=0 a producer goes as soon as all is sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import cast

from magnetar.config.addresses import plain_address
from magnetar.config.listeners import Listener
from magnetar.logging import get_logger, shown
from magnetar.runtime.delayed_response import DelayedResponse
from magnetar.security.names import MappingRule
from magnetar.security.session import Session
from magnetar.server.backlog import Backlog
from magnetar.server.dispatch import API_VERSIONS, UnsupportedVersion
from magnetar.server.exchange import Exchange
from magnetar.server.first_step import Rest, failure_of
from magnetar.server.frames import Frame, FrameReader, is_long
from magnetar.server.idling import Idling
from magnetar.server.memory import PROGRESS_BYTES_MIN, SMALL_PARTIAL_BYTES
from magnetar.server.pacing import PacedTransport, paced
from magnetar.server.pausing import Mute, Pause
from magnetar.server.route import OVERLAPPING_BYTES
from magnetar.server.shared import Shared
from magnetar.server.tls import principal_of, undelivered
from magnetar.server.unread import UnreadAnswers
from magnetar.server.writing import GATHER_MAX, Answer, write
from wire.errors import WireError

#: The host of a client that has reset its connection before its socket was asked where it is.
NOWHERE = "?"

_log = get_logger("server")


class ClientConnection(asyncio.BufferedProtocol):
    """The protocol of one accepted connection."""

    def __init__(
        self,
        shared: Shared[ClientConnection],
        listener: Listener,
        session: Session,
        name_rules: Sequence[MappingRule] = (),
    ) -> None:
        """`name_rules` make a user of the name in a client's certificate."""
        self.listener = listener
        self.session = session
        self._name_rules = name_rules
        self.client_id: str | None = None
        self.client_address = self.host = NOWHERE
        self.received_bytes = self.sent_bytes = 0
        self._shared = shared
        self._dispatcher = shared.dispatcher
        self._memory = shared.memory
        self._loop = shared.loop
        self._turns = shared.turns
        self._in_flight_max = shared.in_flight_max
        #: Answers that the operating system did not take at once.
        self._unread = UnreadAnswers(shared.response_memory)
        bytes_max = session.limit_frames(shared.frame_bytes_max)
        self._reader = FrameReader(shared.buffer, shared.memory, bytes_max)
        # The event loop asks the reader itself, which saves a call for each read.
        self.get_buffer = self._reader.buffer  # type: ignore[method-assign]  # as said
        self._backlog = Backlog(shared.memory)
        self._exchanges: deque[Exchange] = deque()
        self._transport: asyncio.Transport | None = None
        self._pause = Pause.NONE
        self._mute: Mute | None = None  # Made when a quota mutes for the first time.
        self._do_overlap = True  # Whether every request under way is one of OVERLAPPING.
        self._is_pumping = self._will_pump = False
        self._idling = Idling(self._loop.time())
        self._sending = Idling(self._loop.time())

    # What handlers and the server may know.

    @property
    def is_closing(self) -> bool:
        """Whether the client will not read another answer."""
        return self._transport is None or bool(self._pause & Pause.CLOSING)

    @property
    def waits_for_turn(self) -> bool:
        """Whether nothing is read at present so that others have their turn."""
        return bool(self._pause & Pause.TURN)

    @property
    def is_held_up(self) -> bool:
        """Whether nothing is read at present for the turns of others, or for a quota."""
        return bool(self._pause & (Pause.TURN | Pause.MUTED))

    @property
    def is_partial(self) -> bool:
        """Whether a request of this connection has not arrived whole, or is behind another."""
        return self._reader.partial is not None or bool(self._backlog)

    @property
    def holds_partial(self) -> bool:
        """Whether a request that is not small is arriving, or more than that is behind another."""
        return self._reader.is_receiving or self._backlog.size_bytes > SMALL_PARTIAL_BYTES

    def idle_seconds(self, now_s: float) -> float:
        """Return for how long nothing was sent, received or worked on; 0 while answers wait for the
        client, which `slow_seconds` measures. Both are to be asked regularly."""
        is_busy = bool(self._pause & Pause.UNREAD_ANSWERS or self._exchanges or self._backlog)
        return self._idling.seconds(now_s, self.received_bytes + self.sent_bytes, is_busy=is_busy)

    def slow_seconds(self, now_s: float) -> float:
        """Return for how long the client has taken next to nothing of answers that wait for it."""
        if self._transport is None or not self._pause & Pause.UNREAD_ANSWERS:
            return 0.0
        return self._unread.slow_seconds(now_s, self._transport, self.sent_bytes)

    def stalled_seconds(self, now_s: float) -> float:
        """Return for how long the client, which is read, has sent next to nothing of a request that
        is arriving; to be asked regularly."""
        is_busy = bool(self._pause) or not self._reader.is_receiving
        received_bytes, bytes_min = self.received_bytes, PROGRESS_BYTES_MIN
        return self._sending.seconds(now_s, received_bytes, is_busy=is_busy, bytes_min=bytes_min)

    def close(self) -> None:
        """Read no more, answer the requests that were begun, then close."""
        self._pause_reading(Pause.CLOSING)
        self._backlog.drop()
        if not self._is_pumping:
            self._after_answers()

    def mute(self, pause_ms: int) -> None:
        """Read nothing more for a time. What has arrived is answered."""
        if self._transport is None:
            return
        self._mute = self._mute or Mute(self._loop, partial(self._resume_reading, Pause.MUTED))
        self._mute.extend(pause_ms)
        self._pause_reading(Pause.MUTED)

    def unmute(self) -> None:
        """Read on, if a quota had muted the connection."""
        if self._mute is not None:
            self._mute.end()

    def show_end(self) -> None:
        """Answer a fetch that waits while nothing is read; to be called about once a second. No
        read will tell that the client has gone, but the answer will."""
        give_way = self._exchanges[0].context.give_way if self._pause and self._exchanges else None
        if give_way is not None:
            give_way()

    def close_after(self, delay_ms: int) -> None:
        """Serve nothing, and close after a delay."""
        self._pause_reading(Pause.CLOSING)
        self._mute = Mute(self._loop, self.abort)
        self._mute.extend(delay_ms)

    def end(self) -> None:
        """Close, or close at once where the connection is closing and its client does not read."""
        if self._pause & Pause.CLOSING:
            self.abort()
        else:
            self.close()

    def abort(self) -> None:
        """Close without answering, and begin nothing more."""
        transport, self._transport = self._transport, None
        self._unread.resize(0)
        self._cancel_requests(is_aborted=True)
        self.close()
        if transport is not None:
            transport.abort()

    def cut_off(self, reason: str) -> None:
        """Log `reason` and close without answering."""
        _log.warning(
            "connection closed",
            client_address=self.client_address,
            client_id=shown(self.client_id or ""),
            reason=reason,
        )
        self.abort()

    # The event loop's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a check: uvloop's class is no subclass of asyncio's.
        self._transport = paced(connected := cast(asyncio.Transport, transport))
        if (peer := transport.get_extra_info("peername")) is not None:
            self.host = plain_address(peer[0])
            self.client_address = f"{self.host}:{peer[1]}"
        self._shared.on_opened(self, connected)
        if not self.listener.protocol.has_sasl:
            try:
                self.session.principal = principal_of(transport, self._name_rules)
            except WireError as mistake:
                self._refuse(mistake)
                self.abort()

    def eof_received(self) -> bool:
        # As in Kafka, what has arrived is done all the same: it may want no answer (acks=0). And
        # what appends is answered. Nothing else has a client. TLS ends with its client's side.
        goes_on = self._backlog or any(each.route.overlaps for each in self._exchanges)
        if not goes_on or self.listener.protocol.has_tls:
            return False
        self._pause_reading(Pause.CLOSING)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        transport, self._transport = self._transport, None
        if self._mute is not None:
            self._mute.cancel()
            self._mute = None  # It leads back here: a cycle that would not be freed.
        self._unread.resize(0)
        if transport is not None and not self._pause & Pause.CLOSING:
            for count in undelivered(transport, self._reader.buffer):
                self.received_bytes += count
                self._backlog.add(self._reader.received(count))
        self._backlog.drop_unheard()
        self._pause = self._pause & (Pause.CLOSING | Pause.TURN) | Pause.GONE
        # No client hears the answers: no long poll goes on and holds memory. Decisions stand.
        self._cancel_requests(is_aborted=False)
        self._reader.discard()
        self._memory.forget(self)
        self._pump()

    def buffer_updated(self, nbytes: int) -> None:
        self.received_bytes += nbytes
        frames = self._reader.received(nbytes)
        if frames:
            self._accept(frames)
        memory, limit_bytes = self._memory, self._memory.limit_bytes
        is_short = memory.in_flight_bytes > limit_bytes or memory.partial_bytes > limit_bytes
        if is_short and not memory.may_read(self):
            self._pause_reading(Pause.MEMORY)
        elif self._reader.partial is not None and not self.waits_for_turn and self._turns.is_over():
            # Others send large requests at the same time: to receive them all holds the loop.
            self._wait_for_turn()

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._unread.resize(self._transport.get_write_buffer_size())
        self._pause_reading(Pause.UNREAD_ANSWERS)

    def resume_writing(self) -> None:
        if isinstance(self._transport, PacedTransport) and not self._transport.go_on():
            return  # It has paused again.
        self._unread.resize(0)
        self._resume_reading(Pause.UNREAD_ANSWERS)
        self._pump()

    def resume_memory(self) -> None:
        if self._memory.may_read(self):
            # Thousands may go on in one step, and all of them may have sent much.
            if not self.waits_for_turn and self._turns.is_over():
                self._wait_for_turn()
            self._resume_reading(Pause.MEMORY)

    # Requests and answers.

    def _accept(self, frames: list[Frame]) -> None:
        if self._pause & Pause.CLOSING:
            return
        is_quiet = not (self._exchanges or self._backlog or self._pause)
        if is_quiet and len(frames) == 1 and not is_long(frames[0]):
            # The usual case: a client waits for each answer.
            self._is_pumping = True
            self._start(frames[0])
            self._is_pumping = False
            if self._exchanges and self._exchanges[0].answer is not None:
                self._send(self._take_ready())
            if self._pause:
                self._after_answers()
        else:
            self._backlog.add(frames)
            self._pump()
        unanswered = len(self._exchanges) + len(self._backlog)
        if unanswered and unanswered >= self._in_flight_max:
            self._pause_reading(Pause.UNANSWERED)

    def _pump(self, *, has_turn: bool = False) -> None:
        """Start requests that may start until the turn is over; send every answer that may be sent.

        A short one starts in any case: a client that waits for each answer asks for no turn.
        """
        if self._is_pumping:
            return
        self._is_pumping = True
        backlog, exchanges = self._backlog, self._exchanges
        has_started = False
        ready: Answer = []
        while True:
            if exchanges and exchanges[0].answer is not None:
                ready += (taken := self._take_ready())
                if len(ready) >= GATHER_MAX or len(taken) > 1:  # One alone has one if it is small.
                    # Now, not at the end: it may turn out that the client does not read.
                    self._send(ready)
                    ready = []
            if not backlog or self._pause & (Pause.TURN | Pause.UNREAD_ANSWERS):
                break
            if exchanges and not (self._do_overlap and bytes(backlog[0][:2]) in OVERLAPPING_BYTES):
                exchanges[-1].give_way(backlog[0])
                break
            if (has_started or (is_long(backlog[0]) and not has_turn)) and self._turns.is_over():
                self._wait_for_turn()
                break
            self._start(backlog.take())
            has_started = True
        self._is_pumping = False
        if ready:
            self._send(ready)
        if self._pause:
            self._after_answers()

    def _pump_soon(self) -> None:
        """Pump in the next turn: by then every request that a sync answers has its answer."""
        if not self._will_pump:
            self._will_pump = True
            self._loop.call_soon(self._pump_now)

    def _pump_now(self) -> None:
        self._will_pump = False
        self._pump()

    def _wait_for_turn(self) -> None:
        # Its end is not read before its requests have begun: with acks=0 a producer goes at once.
        self._pause_reading(Pause.TURN)
        self._turns.later(self._take_turn)

    def _take_turn(self) -> None:
        self._resume_reading(Pause.TURN)
        self._pump(has_turn=True)

    def _send(self, answer: Answer) -> None:
        if (transport := self._transport) is not None and len(answer) == 1:  # As small ones are.
            transport.write(answer[0])  # type: ignore[arg-type]  # no file's part: it has a head
            self.sent_bytes += len(answer[0])
        elif transport is not None and answer:
            try:
                self.sent_bytes += write(transport, answer)
            except OSError as error:
                self.cut_off(f"records that it has asked for cannot be sent: {error}")
        if self._pause & Pause.UNREAD_ANSWERS:
            self.pause_writing()  # To count what came after the pause, which waits, too.

    def _start(self, frame: Frame) -> None:
        if self._reader.error is not None and not frame:
            self._refuse(self._reader.error)
            return
        try:
            if self.session.is_guarded:
                exchange = self._dispatcher.begin_guarded(frame, self, self.client_address)
                bytes_max = self.session.limit_frames(self._shared.frame_bytes_max)
                self._reader.frame_bytes_max = bytes_max
            else:
                exchange = self._dispatcher.begin(frame, self, self.client_address)
        except UnsupportedVersion as unsupported:
            self._refuse_version(unsupported)
            return
        except WireError as error:
            self._refuse(error)
            return
        self.client_id = exchange.context.client_id
        # A request that does not overlap is alone; nothing may start beside it.
        self._do_overlap = exchange.overlaps and (self._do_overlap or not self._exchanges)
        self._exchanges.append(exchange)
        if exchange.answer is None:
            self._wait(exchange)
            if exchange.overlaps:
                self._memory.in_flight_bytes += exchange.size_bytes
            elif not (exchange.is_large or self._memory.hold_waiting(exchange.size_bytes)):
                api = exchange.route.api.name
                self.cut_off(f"its {api} may not wait: others hold queued.max.request.bytes")

    def _wait(self, exchange: Exchange) -> None:
        """Go on with other requests while this one waits."""
        waits_for = exchange.waits_for
        if isinstance(waits_for, DelayedResponse):
            on_end = partial(self._resume, exchange, waits_for)
            self._shared.delayed_responses.begin(waits_for, on_end)
        else:
            assert isinstance(waits_for, Rest), "a request without an answer waits"
            dispatcher = self._dispatcher
            go_on = dispatcher.go_on_large if exchange.is_large else dispatcher.go_on
            going_on = go_on(exchange, waits_for, self._answered)
            task = asyncio.Task(going_on, loop=self._loop)
            waits_for.run_in(task)
            task.add_done_callback(partial(self._finished, exchange, waits_for))
            exchange.waits_for = task

    def _resume(self, exchange: Exchange, delayed: DelayedResponse) -> None:
        """Answer a request whose syncs, or whose time, are over."""
        try:
            self._dispatcher.finish(exchange, delayed)
        except WireError as error:
            exchange.answer = []
            self._refuse(error)
        self._answered(exchange)

    def _answered(self, exchange: Exchange) -> None:
        """Account for an answer that was waited for, and send it as soon as may be; or wait again.

        Where others are under way it leaves a step later, with the answers that a sync has brought.
        """
        if exchange.answer is None:
            self._wait(exchange)
            return
        if exchange.overlaps:
            self._memory.in_flight_bytes -= exchange.size_bytes
            if self._memory.waiting:
                self._memory.wake()
        else:
            self._memory.give_back_waiting(exchange.size_bytes)
        if len(self._exchanges) == 1 and not self._is_pumping:
            self._send(self._take_ready())
        if self._exchanges or self._backlog or self._pause:
            self._pump_soon()

    def _take_ready(self) -> Answer:
        """Remove and return the answers that are known, up to the first that is not."""
        ready: Answer = []
        exchanges = self._exchanges
        while exchanges and (answer := exchanges[0].answer) is not None:
            held = exchanges.popleft().context.held_response
            if held is not None:
                held.end()
            ready += answer
        return ready

    def _finished(self, exchange: Exchange, rest: Rest, task: asyncio.Task[None]) -> None:
        """End a request whose task was cancelled, or has failed; else all is done."""
        if exchange.waits_for is task and exchange.answer is None:
            rest.abandon()
            exchange.answer = []
            self._answered(exchange)
        if (error := failure_of(task)) is not None:
            self._refuse(error)

    def _after_answers(self) -> None:
        if self._pause & Pause.MEMORY and not self.holds_partial:
            self.resume_memory()
        is_done = not (self._exchanges or self._backlog)
        if is_done and self._pause & Pause.GONE:
            self._pause &= ~Pause.GONE
            self._shared.on_closed(self)
        elif self._pause & Pause.CLOSING:
            if is_done and self._transport is not None:
                self._transport.close()
        elif len(self._exchanges) + len(self._backlog) < self._in_flight_max:
            self._resume_reading(Pause.UNANSWERED)

    # Refusals and pressure.

    def _refuse_version(self, unsupported: UnsupportedVersion) -> None:
        if unsupported.api_key != API_VERSIONS:
            self._refuse(unsupported)
            return
        self.session.expect_versions()
        # KIP-511: a client newer than the broker learns from a version 0 answer which to use.
        self._exchanges.append(self._dispatcher.version_0_exchange(unsupported, self))

    def _refuse(self, error: BaseException) -> None:
        _log.warning(
            "connection closed",
            client_address=self.client_address,
            client_id=shown(self.client_id or ""),
            principal=shown(str(self.session.principal)),
            reason=str(error),
            exc_info=None if isinstance(error, WireError) else error,
        )
        error.__traceback__ = None  # It leads to frames that hold the error: no cycle is left.
        self.close()

    def _cancel_requests(self, *, is_aborted: bool) -> None:
        # A copy: a cancelled request may leave the order of answers at once.
        for exchange in tuple(self._exchanges):
            exchange.cancel(is_aborted=is_aborted)

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
