"""For how long a connection was idle, without a look at the clock for each request."""

from __future__ import annotations


class Idling:
    """The last sign of life of one connection, as far as it was asked for."""

    __slots__ = ("_quiet_since_s", "_traffic_bytes_seen")

    def __init__(self, now_s: float, traffic_bytes: int = 0) -> None:
        self._quiet_since_s = now_s
        self._traffic_bytes_seen = traffic_bytes

    def seconds(
        self, now_s: float, traffic_bytes: int, *, is_busy: bool, bytes_min: int = 1
    ) -> float:
        """Return for how long the connection was idle; to be asked regularly.

        `traffic_bytes` are all that were sent or received. They show the traffic, so requests need
        not read the clock; what comes between two calls counts as if it came with the second.
        `bytes_min` of it, in however many calls, are a sign of life.
        """
        if is_busy or traffic_bytes - self._traffic_bytes_seen >= bytes_min:
            self._traffic_bytes_seen = traffic_bytes
            self._quiet_since_s = now_s
        return now_s - self._quiet_since_s
