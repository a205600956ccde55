"""A broker in this process, as `magnetar serve` runs it, whose calls can be recorded.

Owns the recording alone. It knows no module of the broker: it starts the command line, and looks at
what passes between the event loop and the connection's protocol. So nothing here changes when code
of the broker moves.
"""

from __future__ import annotations

import asyncio
import io
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any
from unittest.mock import patch

import uvloop

from tools.trace.way import Call, Way

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("wire", "coordinator", "logstore", "magnetar")
#: A member that joins alone is answered at once. Everything else is as a user gets it.
_SETTINGS = ("group.initial.rebalance.delay.ms=0",)
#: Python writes these for comprehensions and generator expressions.
_INLINED = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


class Recorder:
    """Records the way of one request: of the next one that arrives after `arm`."""

    def __init__(self) -> None:
        self._files: dict[str, str | None] = {}
        self._calls: list[Call] = []
        self._depth = 0
        self._is_armed = False
        self._is_recording = False
        self._answered = threading.Event()

    def arm(self) -> None:
        """Record the request that arrives next."""
        self._answered.clear()
        self._is_armed = True

    def take(self, timeout_s: float) -> Way:
        """Return the way of the request that was answered. Raises TimeoutError: none was."""
        if not self._answered.wait(timeout_s):
            raise TimeoutError("no answer was recorded")
        way, self._calls = tuple(self._calls), []
        return way

    def on_arrival(self) -> None:
        """Begin to record, in the event loop's thread."""
        if self._is_armed and not self._is_recording:
            self._is_recording = True
            self._depth = 0
            sys.setprofile(self._on_event)

    def on_answer(self) -> None:
        """Stop recording: the answer is handed over."""
        if self._is_recording:
            sys.setprofile(None)
            self._is_armed = self._is_recording = False
            self._answered.set()

    def _on_event(self, frame: FrameType, event: str, _: object) -> None:
        if event not in ("call", "return"):
            return
        file = self._file_of(frame)
        if file is None:
            return
        if event == "return":
            self._depth -= 1
            return
        code = frame.f_code
        self._calls.append(Call(self._depth, file, _name(frame) if not file else code.co_qualname))
        self._depth += 1

    def _file_of(self, frame: FrameType) -> str | None:
        """Return the file of a call that counts, "" for code written at run time, else None."""
        code = frame.f_code
        if code.co_name in _INLINED:
            return None
        known = self._product_file(code.co_filename)
        if known is not None:
            return known
        is_written_at_run_time = code.co_filename.startswith("<") and (
            "frozen" not in code.co_filename
        )
        caller = frame.f_back
        if is_written_at_run_time and caller is not None:
            # The constructors of a library's own named tuples are the library's business.
            return None if self._file_of(caller) is None else ""
        return None

    def _product_file(self, path: str) -> str | None:
        if path not in self._files:
            below = Path(path)
            is_ours = below.is_relative_to(ROOT) and below.relative_to(ROOT).parts[0] in PACKAGES
            self._files[path] = str(below.relative_to(ROOT)) if is_ours else None
        return self._files[path]


def _name(frame: FrameType) -> str:
    """Return what to call a function that was written at run time."""
    code = frame.f_code
    if code.co_filename != "<string>":
        return code.co_filename.strip("<>")
    made = str(frame.f_globals.get("__name__", ""))
    if made.startswith("namedtuple_"):
        return f"{made.removeprefix('namedtuple_')}()"
    return f"{type(frame.f_locals.get('self')).__name__}()"


class _Transport:
    """Hands everything on to the transport, and tells of the first answer."""

    def __init__(self, transport: Any, recorder: Recorder) -> None:
        self._transport = transport
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: Any) -> None:
        self._recorder.on_answer()
        self._transport.write(data)

    def writelines(self, data: Any) -> None:
        self._recorder.on_answer()
        self._transport.writelines(data)


class _Protocol(asyncio.BufferedProtocol):
    """Hands everything on to the connection's protocol, and tells of what arrives."""

    def __init__(self, protocol: Any, recorder: Recorder) -> None:
        self._protocol = protocol
        self._recorder = recorder

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._protocol.connection_made(_Transport(transport, self._recorder))

    def connection_lost(self, exc: Exception | None) -> None:
        self._protocol.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> Any:
        self._recorder.on_arrival()
        return self._protocol.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._protocol.buffer_updated(nbytes)

    def eof_received(self) -> bool | None:
        is_kept_open: bool | None = self._protocol.eof_received()
        return is_kept_open

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()


def run_beside(work: Callable[[str, Recorder], None]) -> None:
    """Run a broker in this thread, which must be the main one, until `work` has returned.

    `work` gets the broker's address and its recorder, in a thread of its own. What `work` raises is
    raised here, after the broker has stopped.
    """
    recorder = Recorder()
    failures: list[BaseException] = []
    threads: list[threading.Thread] = []

    def in_thread(bootstrap: str) -> None:
        try:
            work(bootstrap, recorder)
        except BaseException as failure:  # raised again below, in the caller's thread
            failures.append(failure)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    create_server: Any = uvloop.Loop.create_server

    async def recorded_server(loop: Any, factory: Callable[[], Any], **options: Any) -> Any:
        server = await create_server(loop, lambda: _Protocol(factory(), recorder), **options)
        if not threads:
            port = server.sockets[0].getsockname()[1]
            threads.append(threading.Thread(target=in_thread, args=(f"127.0.0.1:{port}",)))
            threads[0].start()
        return server

    with (
        TemporaryDirectory(prefix="magnetar-trace-") as directory,
        patch.object(uvloop.Loop, "create_server", recorded_server),
        patch.object(sys, "argv", _command(directory)),
        redirect_stdout(io.StringIO()),
    ):
        try:
            runpy.run_module("magnetar", run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            if ended.code and not failures:
                raise
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _command(directory: str) -> list[str]:
    command = ["magnetar", "serve", "--listen", "127.0.0.1:0", "--data-dir", directory]
    command += ["--log-level", "warning"]
    for setting in _SETTINGS:
        command += ["--set", setting]
    return command
