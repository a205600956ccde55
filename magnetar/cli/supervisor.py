"""The processes of `serve --workers` and `serve --storage`: forked, watched, and stopped together.

The supervisor holds the addresses and the data directory, and forks one process for each node. It
serves no request. A node that dies is started again at once. Its listening sockets stay open here
meanwhile, so clients wait in their queue instead of being refused. One signal stops all nodes
cleanly, a second one at once. The log names a node that does not stop in time; later it is killed,
which loses nothing that was acknowledged. If the supervisor is killed, its nodes end at once too.
"""

from __future__ import annotations

import gc
import math
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

from magnetar.cli.commands import EXIT_INTERRUPTED, EXIT_MISTAKE
from magnetar.logging import get_logger

_log = get_logger("nodes")

#: A node that dies after this time is started again at once. One that dies sooner waits, each time
#: twice as long.
_STEADY_S = 5.0
_BACK_OFF_S = (0.05, 5.0)
#: How long a stop takes before the log names the nodes that still run, and before they are killed.
#: A node hands over for 30 s at most, and service managers kill all processes after 60 s.
_STOP_S = (10.0, 50.0)
#: A second signal within this time counts as the first one: GNU timeout sends a signal to the
#: process, and then to the process's whole group.
ONE_SIGNAL_S = 0.5
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Ties:
    """What a node's process shares with its supervisor: two pipes.

    Nodes heed no signals: a terminal and service managers send them to all processes, and the
    supervisor would then send each node a second one.
    """

    def __init__(self, ready: int, orders: int) -> None:
        """The node writes to `ready` when it serves, and reads its orders from `orders`."""
        self._ready = ready
        #: Readable when the node is to stop, and when the supervisor is gone.
        self.orders = orders

    def is_stop(self) -> bool:
        """Whether the order is to stop cleanly. False: the supervisor is gone."""
        return bool(os.read(self.orders, 1))

    def tell_ready(self) -> None:
        """Tell the supervisor that clients can connect."""
        with suppress(BrokenPipeError):
            os.write(self._ready, b"R")
        os.close(self._ready)


@dataclass
class _Worker:
    """One node's process: the one that runs, or the next one."""

    node_id: int
    pid: int = 0
    ready: int = -1
    orders: int = -1
    is_ready: bool = False
    started_s: float = 0.0
    back_off_s: float = _BACK_OFF_S[0]
    #: When it is to be started again; None while it runs.
    due_s: float | None = field(default=0.0)

    def back_off(self, now_s: float) -> None:
        """Put the next start off, and the one after it for twice as long."""
        self.due_s = now_s + self.back_off_s
        self.back_off_s = min(self.back_off_s * 2, _BACK_OFF_S[1])


class Supervisor:
    """All workers. `run` returns the exit code of the whole."""

    def __init__(
        self,
        nodes: Mapping[int, Callable[[Ties], int]],
        on_ready: Callable[[], None],
        stop_s: tuple[float, float] = _STOP_S,
    ) -> None:
        """`nodes`: for each id the function that its process runs; it returns the exit code.
        `on_ready` is called once, when all nodes serve. `stop_s`: how long a stop takes before the
        log names the nodes that still run, and before they are killed."""
        self._bodies = nodes
        self._on_ready = on_ready
        self._workers = [_Worker(node_id) for node_id in nodes]
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        self._stop_s = stop_s
        self._is_stopping = False
        #: When the first signal came.
        self._signalled_s = -math.inf
        #: What a stop does about nodes that still run, each with its time.
        self._overdue: list[tuple[float, Callable[[], None]]] = []
        self._was_ready = False
        self._exit_code = 0

    def run(self) -> int:
        """Serve until a signal, or until a node cannot be started; return the exit code."""
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        signal.set_wakeup_fd(self._wake_write)
        for number in (*_SIGNALS, signal.SIGCHLD):
            signal.signal(number, _ignored)
        # The objects that exist now are shared with all nodes for good.
        gc.collect()
        gc.freeze()
        self._start_due()
        while any(worker.pid for worker in self._workers) or not self._is_stopping:
            self._wait()
            self._reap()
            self._start_due()
            self._hurry()
        return self._exit_code

    # --- what happens

    def _wait(self) -> None:
        """Return when something has happened, or a node is due."""
        if self._is_stopping:
            due = [due_s for due_s, _ in self._overdue]
        else:
            due = [worker.due_s for worker in self._workers if worker.due_s is not None]
        timeout = max(min(due) - time.monotonic(), 0) if due else None
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                self._on_signals(os.read(self._wake_read, 4096))
            else:
                self._on_told(key.data)

    def _on_signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number not in _SIGNALS:
                continue  # A child has ended: `_reap` finds it.
            now_s = time.monotonic()
            if now_s - self._signalled_s < ONE_SIGNAL_S:
                continue
            if self._is_stopping:
                print("magnetar: stopped at once", file=sys.stderr, flush=True)
                self._kill_all()
                os._exit(EXIT_INTERRUPTED)
            self._signalled_s = now_s
            self._stop(0)

    def _on_told(self, worker: _Worker) -> None:
        told = os.read(worker.ready, 1)
        self._selector.unregister(worker.ready)
        os.close(worker.ready)
        worker.ready = -1
        worker.is_ready = bool(told)
        if not self._was_ready and all(one.is_ready for one in self._workers):
            self._was_ready = True
            self._on_ready()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for worker in self._workers:
                if worker.pid == pid:
                    self._ended(worker, os.waitstatus_to_exitcode(status))

    def _ended(self, worker: _Worker, code: int) -> None:
        worker.pid = 0
        os.close(worker.orders)
        worker.orders = -1
        if worker.ready >= 0:
            self._selector.unregister(worker.ready)
            os.close(worker.ready)
            worker.ready = -1
        if self._is_stopping:
            self._exit_code = self._exit_code or _exit_code(code)
            return
        # Until all nodes have served once, a failure ends the start. A later mistake, in a new
        # certificate for example, ends all only where no other node runs. One that starts may be as
        # it should: it was killed, while this one is tried again and again.
        runs = any(one.pid for one in self._workers)
        if not self._was_ready or (code == EXIT_MISTAKE and not runs):
            self._stop(_exit_code(code) or 1)
            return
        now_s = time.monotonic()
        if now_s - worker.started_s >= _STEADY_S:
            worker.back_off_s, worker.due_s = _BACK_OFF_S[0], now_s
        else:
            worker.back_off(now_s)
        _log.error("node ended: it is started again", node_id=worker.node_id, exit_code=code)

    # --- what is done

    def _start_due(self) -> None:
        now_s = time.monotonic()
        for worker in self._workers:
            is_due = worker.due_s is not None and worker.due_s <= now_s
            if is_due and not self._is_stopping:
                self._start(worker)

    def _start(self, worker: _Worker) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid, ends = _forked()
        except OSError as error:
            # A limit of processes or memory. The nodes that run need neither.
            if not self._was_ready:
                raise
            worker.back_off(time.monotonic())
            _log.error("node cannot be started yet", node_id=worker.node_id, reason=str(error))
            return
        ready_read, ready_write, orders_read, orders_write = ends
        if pid == 0:
            self._become(worker, Ties(ready_write, orders_read), (ready_read, orders_write))
        os.close(ready_write)
        os.close(orders_read)
        worker.pid, worker.ready, worker.orders, worker.due_s = pid, ready_read, orders_write, None
        worker.started_s, worker.is_ready = time.monotonic(), False
        self._selector.register(ready_read, selectors.EVENT_READ, worker)

    def _become(self, worker: _Worker, ties: Ties, ends: Sequence[int]) -> NoReturn:
        """Go on as the process of a node. `ends`: the supervisor's ends of its pipes."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            self._selector.close()
            others = [fd for one in self._workers for fd in (one.ready, one.orders) if fd >= 0]
            # All of them: a node hears of the supervisor's end only if no other holds its pipe.
            for fd in (self._wake_read, self._wake_write, *ends, *others):
                os.close(fd)
            code = self._bodies[worker.node_id](ties)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            if (failure := sys.exc_info()) != (None, None, None):
                sys.excepthook(*failure)
            # Nothing of the supervisor's may run in this process.
            os._exit(code)

    def _stop(self, code: int) -> None:
        """Stop every node cleanly; `code` is what the supervisor ends with."""
        self._is_stopping = True
        self._exit_code = code
        now_s = time.monotonic()
        told_s, killed_s = self._stop_s
        self._overdue = [(now_s + told_s, self._tell_slow), (now_s + killed_s, self._kill_slow)]
        for worker in self._workers:
            if worker.pid:
                with suppress(BrokenPipeError):
                    os.write(worker.orders, b"S")

    def _hurry(self) -> None:
        """Do what is due about nodes that do not stop."""
        while self._overdue and self._overdue[0][0] <= time.monotonic():
            _, act = self._overdue.pop(0)
            act()

    def _running(self) -> list[int]:
        return [worker.node_id for worker in self._workers if worker.pid]

    def _tell_slow(self) -> None:
        _log.warning(
            "the stop waits for nodes that have not ended yet; a second signal ends them at once",
            node_ids=self._running(),
            killed_after_s=self._stop_s[1],
        )

    def _kill_slow(self) -> None:
        _log.error(
            "nodes have not stopped in time, and are killed: nothing that was acknowledged is lost",
            node_ids=self._running(),
        )
        self._kill_all()

    def _kill_all(self) -> None:
        for worker in self._workers:
            if worker.pid:
                with suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)


def _forked() -> tuple[int, list[int]]:
    """Fork, with two pipes between the processes.

    Returns the id of the new process, 0 in that process itself, and the ends of the pipes. Raises
    OSError, and leaves nothing open then.
    """
    ends: list[int] = []
    try:
        ends += os.pipe()
        ends += os.pipe()
        return os.fork(), ends
    except OSError:
        for fd in ends:
            os.close(fd)
        raise


def _exit_code(code: int) -> int:
    """Return the exit code of a process as a shell has it: 128 and the signal that ended it."""
    return code if code >= 0 else 128 - code


def _ignored(number: int, frame: object) -> None:
    """Let the signal wake `select`; it is read from the wake-up pipe."""
