"""The passes of a large log in a process of their own, seen from the broker.

A process for each run: it begins with the run and ends with it, so none waits, and none that died
has to be restarted. What the process has written is what any unfinished `.cleaned` file is: without
a name until the broker seals it, and deleted with the run that fails. All methods block, in the
cleaner's thread.
"""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from logstore.cleaner.batches import CleaningPlan, Pause
from logstore.cleaner.passes import MapPlan, Place
from logstore.cleaner.worker import Word, receive, send
from logstore.segments.aborted_index import AbortedEntry
from logstore.segments.ledger import Replacement, SealedSegment
from wire.records import BATCH_OVERHEAD, BatchHeader

#: A process that says nothing for so long is given up.
_SILENCE_S = 60.0
#: `Pause` is called as often as this while the process works: a stop is noticed.
_LOOK_MS = 100
_END_S = 5.0
#: Headers accounted for between two pauses.
_HEADERS_PER_PAUSE = 64
#: What the interpreter runs: it finds the modules where this one has.
_BEGIN = "import sys; sys.path[:] = sys.argv[1:]; from logstore.cleaner.worker import main; main()"


class WorkerEnded(Exception):
    """The process ended, or hangs. The log is as it was, or cleaner."""


class CannotStart(WorkerEnded):
    """No process can be started here."""


class ProcessPasses:
    """`Passes` that another process performs."""

    def __init__(self, plan: MapPlan, pause: Pause) -> None:
        """Start the process. Raises CannotStart, and as all methods do."""
        self._pause = pause
        self.silence_s = _SILENCE_S
        self._link, theirs = socket.socketpair()
        self._link.settimeout(_SILENCE_S)
        with theirs:
            try:
                # The process inherits only the standard error from the broker.
                self.process = subprocess.Popen(
                    [sys.executable, "-c", _BEGIN, *sys.path],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                )
            except OSError as error:
                self._link.close()
                raise CannotStart(str(error)) from error
        try:
            self._await_start()
        except BaseException:
            self.close()
            raise
        self._ask("begin", plan)

    def _await_start(self) -> None:
        try:
            self._result(None)
        except WorkerEnded as error:
            raise CannotStart(str(error)) from error

    def map_segment(self, place: Place, source: SealedSegment) -> int | None:
        full_at: int | None = self._ask("map_segment", place, files=(source.descriptor,))
        return full_at

    def begin_cleaning(self, plan: CleaningPlan) -> int:
        keys: int = self._ask("begin_cleaning", plan)
        return keys

    def clean_segment(
        self, place: Place, source: SealedSegment, target: Replacement, *, is_last: bool
    ) -> tuple[bool, int]:
        shared = target.shared
        assert shared is not None, "a log in files is cleaned into a file"
        files = source.descriptor, shared.descriptor
        outcome: tuple[bool, int] = self._ask(
            "clean_segment", place, is_last, files=files, account=shared.account
        )
        return outcome

    def end_group(self) -> list[AbortedEntry]:
        entries: list[AbortedEntry] = self._ask("end_group")
        return entries

    def close(self) -> None:
        self._link.close()
        self.process.kill()
        # A process whose disk does not answer dies later.
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_S)

    def _ask(
        self,
        name: str,
        *arguments: object,
        files: Sequence[int] = (),
        account: Callable[[BatchHeader], None] | None = None,
    ) -> Any:
        try:
            self._send((name, arguments), files)
            result = self._result(account)
        except BaseException:
            self.close()  # Here, since a process may take a moment to end.
            raise
        if isinstance(result, Exception):
            raise result
        return result

    def _result(self, account: Callable[[BatchHeader], None] | None) -> Any:
        while True:
            word = self._next_word()
            for number, at in enumerate(range(0, len(word.headers), BATCH_OVERHEAD)):
                if number % _HEADERS_PER_PAUSE == 0:
                    self._pause(0)
                assert account is not None, "only `clean_segment` writes batches"
                account(BatchHeader.parse(word.headers, at))
            # The pace of the broker's cleaner holds for the process too, which waits meanwhile.
            self._pause(word.size_bytes)
            if word.is_last:
                return word.result
            self._send(None)

    def _next_word(self) -> Word:
        poll = select.poll()
        poll.register(self._link, select.POLLIN)
        silent_from = time.monotonic()
        while not poll.poll(_LOOK_MS):
            if time.monotonic() - silent_from >= self.silence_s:
                raise WorkerEnded(f"the cleaner's process said nothing for {self.silence_s:g} s")
            self._pause(0)
        try:
            word, _ = receive(self._link)
        except (EOFError, OSError) as error:
            raise self._ended() from error
        assert isinstance(word, Word)
        return word

    def _send(self, value: object, files: Sequence[int] = ()) -> None:
        try:
            send(self._link, value, files)
        except OSError as error:
            raise self._ended() from error

    def _ended(self) -> WorkerEnded:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)
        return WorkerEnded(f"the cleaner's process ended with code {self.process.returncode}")
