"""Tells systemd the state of a service of Type=notify: sd_notify(3), one datagram each time."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

READY, STOPPING = "READY=1", "STOPPING=1"


def notify(state: str, status: str) -> None:
    """Tell the service manager, if there is one, the state and a line for people."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    # An abstract socket begins with a zero byte, which the environment cannot hold.
    if address.startswith("@"):
        address = f"\0{address[1:]}"
    # A manager that has gone is no reason to end the broker.
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(f"{state}\nSTATUS={status}".encode(), address)
