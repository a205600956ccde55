"""A network between two programs of this machine: a TCP proxy that hands on each byte later.

    python -m benchmarks.distance 127.0.0.1:5432 --ms 1

It prints its port. `tools.tcp_proxy` breaks connections; this one is exact to a tenth of a
millisecond. Each direction of each connection has two threads, one that reads and one that
waits and writes, so bytes that follow one another closely are late once, not in turn. A process of
its own: the threads would wait for others' Python code.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue

_READ_BYTES = 1 << 18


@contextmanager
def distant(port: int, ms: float) -> Iterator[int]:
    """Yield a port of 127.0.0.1 behind which `port` is so far away, each way."""
    command = [sys.executable, "-m", "benchmarks.distance", f"127.0.0.1:{port}", "--ms", str(ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def _hand_on(source: socket.socket, target: socket.socket, delay_s: float) -> None:
    """Copy one direction until it ends."""
    late: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
    threading.Thread(target=_write, args=(target, late), daemon=True).start()
    data = b"?"
    while data:
        try:
            data = source.recv(_READ_BYTES)
        except OSError:
            data = b""
        late.put((time.monotonic() + delay_s, data))


def _write(target: socket.socket, late: SimpleQueue[tuple[float, bytes]]) -> None:
    with suppress(OSError):
        while True:
            due, data = late.get()
            time.sleep(max(due - time.monotonic(), 0))
            if not data:
                target.shutdown(socket.SHUT_WR)
                return
            target.sendall(data)


def main() -> None:
    """Hand on until killed."""
    parser = argparse.ArgumentParser(description="Put a distance between two programs.")
    parser.add_argument("target", help="HOST:PORT")
    parser.add_argument("--ms", type=float, default=1.0, help="of each direction")
    arguments = parser.parse_args()
    host, _, port = arguments.target.rpartition(":")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        while True:
            near, _ = listening.accept()
            far = socket.create_connection((host, int(port)))
            for source, target in ((near, far), (far, near)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(
                    target=_hand_on, args=(source, target, arguments.ms / 1000), daemon=True
                ).start()


if __name__ == "__main__":
    main()
