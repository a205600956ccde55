"""TCP ports of 127.0.0.1 for the servers of tests and measurements."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from functools import cache
from pathlib import Path

#: Below the ports that Linux gives to clients (ip_local_port_range).
_PORTS = range(10_000, 20_000)
_given: set[int] = set()


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 on which nothing listens. No call returns it again, in this
    process or another of the same user, before this process has ended.

    The kernel gives none of these to a client's end of a connection, so it stays free while its
    broker is away, although clients ask for it all the time.
    """
    while True:
        port = random.choice(_PORTS)
        if port not in _given and _claim(port) and _is_free(port):
            _given.add(port)
            return port


def _claim(port: int) -> bool:
    """Take the port for this process: tests run in several, and a server that starts needs a while
    until it listens.
    """
    try:
        fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


@cache
def _claims() -> int:
    """Return the descriptor of the file whose locked bytes are the ports that are taken: the kernel
    unlocks them when the process ends.
    """
    path = Path(tempfile.gettempdir()) / f"magnetar-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
