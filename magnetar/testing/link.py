"""The tests' end of a broker's door; `magnetar.faults.door` is the other end.

It says how the two talk.
"""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from typing import Any

#: What a call may take beyond the time that it says itself.
CALL_TIMEOUT_S = 60.0


class BrokerGone(Exception):
    """The broker has ended: a call cannot be made."""


class Link:
    """A pair of sockets that a broker is started with. One for each start."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._idle: list[Channel] = []

    @property
    def descriptor(self) -> int:
        """The broker's end, to be inherited."""
        return self._theirs.fileno()

    def handed_over(self) -> None:
        """The process has its end: close it here, so that the broker's end of life is noticed."""
        self._theirs.close()

    def call(self, name: str, **args: Any) -> Any:
        """Return what the broker answers. Raises ValueError, TimeoutError and BrokerGone."""
        try:
            channel = self._idle.pop()
        except IndexError:
            channel = self._open()
        extra_s = args.get("timeout_s", 0.0)
        answer = channel.ask({"call": name, "args": args}, CALL_TIMEOUT_S + extra_s)
        self._idle.append(channel)
        return result_of(answer)

    def last_words(self) -> dict[str, Any]:
        """Return what a broker that has ended told before it crashed; nothing if it did not."""
        said = b""
        self._ours.settimeout(CALL_TIMEOUT_S)
        with suppress(OSError):
            while more := self._ours.recv(1 << 16):
                said += more
        found: dict[str, Any] = json.loads(said) if said else {}
        return found

    def close(self) -> None:
        """Close everything. A broker that still runs stops."""
        for channel in self._idle:
            channel.close()
        self._idle.clear()
        self._ours.close()
        self._theirs.close()

    def _open(self) -> Channel:
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(self._ours, [b"+"], [theirs.fileno()])
        except OSError:
            ours.close()
            raise BrokerGone("the broker does not run") from None
        finally:
            theirs.close()
        return Channel(ours)


def result_of(answer: dict[str, Any]) -> Any:
    """Return the result that an answer brings. Raises ValueError and TimeoutError."""
    if "mistake" in answer:
        raise ValueError(answer["mistake"])
    if "timeout" in answer:
        raise TimeoutError(answer["timeout"])
    return answer["result"]


class Channel:
    """One pair on which calls go, one at a time: threads have channels of their own."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._lines = connected.makefile("rwb")

    def ask(self, call: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        self._socket.settimeout(timeout_s)
        try:
            self._lines.write(json.dumps(call).encode() + b"\n")
            self._lines.flush()
            line = self._lines.readline()
        except TimeoutError:
            self.close()
            raise TimeoutError(
                f"the broker does not answer {call['call']}: it stands still"
            ) from None
        except OSError:
            line = b""
        if not line:
            self.close()
            raise BrokerGone(f"the broker ended before it answered {call['call']}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        with suppress(OSError):
            self._lines.close()
        self._socket.close()
