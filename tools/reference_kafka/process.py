"""A broker's process, of either kind: whether its port answers, and its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess


def answers(port: int) -> bool:
    """Return whether a server accepts connections at this port of 127.0.0.1."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def end(process: subprocess.Popen[bytes], number: signal.Signals, timeout_s: float) -> bool:
    """Send a signal to the process and its children, if it runs, and wait for its end; return
    whether it came in time. Who takes longer is killed.
    """
    if process.poll() is None:
        os.killpg(process.pid, number)
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return False
    return True
