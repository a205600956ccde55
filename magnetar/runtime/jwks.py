"""The keys of one issuer of tokens (JWKS), fetched in a thread and kept up to date.

If the set cannot be fetched or read, the old one stays in place. A token that names an unknown key
(`kid`) has the set fetched again, at most once in ten seconds, so made-up names keep neither the
issuer nor the broker busy. The thread is a daemon, so an issuer that hangs delays no stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import NamedTuple

from magnetar.config.load import ConfigError
from magnetar.endpoint import Endpoint, EndpointFailed
from magnetar.logging import get_logger
from magnetar.security.jwt import KeySet, parse_key_set

#: A start waits so long for the first keys; it goes on without them.
START_WAITS_S = 12.0
#: The time between two fetches that unknown keys ask for.
UNKNOWN_KEY_INTERVAL_S = 10.0
#: A file is looked at so often, as those of certificates are.
_FILE_INTERVAL_S = 10.0
#: Whatever the settings say, the pause between two fetches is not shorter.
_PAUSE_S_MIN = 0.1

_log = get_logger("server")

#: Returns the document, or raises EndpointFailed. Blocks.
Read = Callable[[], bytes]


class Pace(NamedTuple):
    """How often keys are fetched, in seconds."""

    refresh_s: float
    retry_s: float
    retry_s_max: float


class Jwks:
    """One endpoint's keys. Used on the event loop's thread."""

    def __init__(self, listener: str, endpoint: Endpoint, read: Read, pace: Pace) -> None:
        """`listener`: the name of the listener whose tokens the keys verify, for log lines."""
        #: None until a set has been fetched.
        self.keys: KeySet | None = None
        self._listener = listener
        self._endpoint = endpoint
        self._read = read
        refresh_s = min(pace.refresh_s, _FILE_INTERVAL_S) if endpoint.is_file else pace.refresh_s
        self._pace = pace._replace(refresh_s=refresh_s)
        self._retry_s = pace.retry_s
        self._document = b""
        self._complaint = ""
        #: When an unknown key has last asked for a fetch.
        self._missed_s = float("-inf")
        self._is_fetching = self._is_stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._first = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def start(self) -> None:
        """Fetch the keys, and go on fetching. Raises ConfigError for a file that has none.

        An issuer that does not answer in time may do so later: until then tokens are refused.
        """
        self._fetch()
        with suppress(TimeoutError):
            async with asyncio.timeout(START_WAITS_S):
                await self._first.wait()
        if self.keys is None and self._endpoint.is_file:
            raise ConfigError(f"sasl.oauthbearer.jwks.endpoint.url: {self._complaint}.")

    def stop(self) -> None:
        """Fetch no more; a fetch under way comes to nothing."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def miss(self) -> None:
        """Fetch the keys now, unless this was just asked for: a token names an unknown one."""
        now_s = self._loop.time()
        if now_s - self._missed_s >= UNKNOWN_KEY_INTERVAL_S:
            self._missed_s = now_s
            self._fetch()

    def _fetch(self) -> None:
        if self._is_fetching or self._is_stopped:
            return
        self._is_fetching = True
        if self._timer is not None:
            self._timer.cancel()
        Thread(target=self._work, name="jwks", daemon=True).start()

    def _work(self) -> None:
        """Fetch and parse, in a thread."""
        # What is not foreseen ends this thread with a traceback, and not the fetches after it.
        outcome: tuple[bytes, KeySet] | str = f"{self._endpoint}: its fetch broke off"
        try:
            document = self._read()
            outcome = document, parse_key_set(document)
        except EndpointFailed as failed:
            outcome = str(failed)
        except ValueError as mistake:
            outcome = f"{self._endpoint}: {mistake}"
        finally:
            # The loop is closed where the broker has ended meanwhile.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._fetched, outcome)

    def _fetched(self, outcome: tuple[bytes, KeySet] | str) -> None:
        self._is_fetching = False
        if self._is_stopped:
            return
        if isinstance(outcome, str):
            self._failed(outcome)
            pause_s, self._retry_s = self._retry_s, min(2 * self._retry_s, self._pace.retry_s_max)
        else:
            self._take(*outcome)
            pause_s, self._retry_s = self._pace.refresh_s, self._pace.retry_s
        self._first.set()
        self._timer = self._loop.call_later(max(pause_s, _PAUSE_S_MIN), self._fetch)

    def _take(self, document: bytes, keys: KeySet) -> None:
        if document != self._document or self._complaint:
            _log.info(
                "keys of tokens fetched",
                listener=self._listener,
                url=str(self._endpoint),
                keys=len(keys.keys),
            )
        self._document, self._complaint, self.keys = document, "", keys

    def _failed(self, complaint: str) -> None:
        # Once: it is tried again and again.
        if complaint != self._complaint:
            kept = (
                "the old keys are kept" if self.keys else "tokens are refused until there are any"
            )
            _log.error(
                "keys of tokens not fetched",
                listener=self._listener,
                reason=complaint,
                consequence=kept,
            )
        self._complaint = complaint
