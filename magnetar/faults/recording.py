"""What clients have asked, for tests that look at how a client behaves."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from magnetar.apis.registry import Api
from magnetar.faults.named import error_in, named_in
from magnetar.faults.rules import OWN_CLIENT_ID
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from wire.message import Message

#: The newest requests that are kept: a fetch loop of a forgotten test must not fill the memory.
KEPT_MAX = 100_000


class Recorder:
    """The requests since `start`, in order of arrival, each with the first error of its answer."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        """`on_end` is called after each request, recorded or not."""
        self._on_end = on_end
        #: Set before the first client connects.
        self.services: Services
        self._seen: deque[dict[str, Any]] = deque(maxlen=KEPT_MAX)
        self._readers = 0
        self._last_number = 0

    @property
    def is_recording(self) -> bool:
        """Whether a test reads along."""
        return self._readers > 0

    def start(self) -> None:
        """Record, until as many calls of `stop`."""
        self._readers += 1

    def stop(self) -> None:
        """End one `start`; with the last one, forget everything."""
        self._readers = max(self._readers - 1, 0)
        if not self._readers:
            self._seen.clear()

    def seen_since(self, number: int, apis: Collection[str]) -> list[dict[str, Any]]:
        """Return the requests of these APIs (none: of all) after that number; they count from 1."""
        return [
            each
            for each in self._seen
            if each["number"] > number and (not apis or each["api"] in apis)
        ]

    @property
    def last_number(self) -> int:
        """The number of the last request, 0 before the first."""
        return self._last_number

    def begin(self, api: Api, request: Message, context: RequestContext) -> dict[str, Any] | None:
        """Note a request that has arrived."""
        if not self.is_recording or context.client_id == OWN_CLIENT_ID:
            return None
        named = named_in(request, self.services)
        self._last_number += 1
        noted = {
            "number": self._last_number,
            "api": api.name,
            "version": context.version,
            "client_id": context.client_id,
            "at_ms": context.now_ms,
            "topics": sorted(named.topics),
            "groups": sorted(named.groups),
            "transactional_ids": sorted(named.transactional_ids),
            "is_answered": False,
            "error": None,
        }
        self._seen.append(noted)
        return noted

    def end(self, begun: dict[str, Any] | None, response: Message | None) -> None:
        """Note the answer that its client gets."""
        if begun is not None and response is not None:
            begun["is_answered"] = True
            begun["error"] = error_in(response)
        self._on_end()
