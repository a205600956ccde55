"""What clients ask a broker while a test looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

from magnetar.testing.link import BrokerGone


class Request(NamedTuple):
    """One request, by what it names."""

    api: str
    version: int
    client_id: str | None
    at_ms: int
    topics: Sequence[str]
    groups: Sequence[str]
    transactional_ids: Sequence[str]
    is_answered: bool
    """False: it waits still, or it asked for no answer, or the answer was lost."""
    error: str | None
    """The first error of its answer, by Kafka's name."""


class Requests(Sequence[Request]):
    """The requests since the block began, in order of arrival; after the block they stay.

    Inside of the block each look brings those that came meanwhile. What was recorded ends with the
    broker's process: a look raises BrokerGone then.
    """

    def __init__(
        self, call: Callable[..., Any], apis: Sequence[str], process: Callable[[], object]
    ) -> None:
        """`apis`: none stands for all. `process` returns the broker's process."""
        self._call = call
        self._apis = list(map(str, apis))
        self._process = process
        self._recording: object = None
        self._since = 0
        self._kept: list[Request] | None = None

    def __enter__(self) -> Self:
        self._since = self._call("record", apis=self._apis)
        self._recording = self._process()
        return self

    def __exit__(self, raised: object, *_: object) -> None:
        try:
            self._kept = self._seen()
            self._call("unrecord")
        except BrokerGone:
            # Where the block has failed, that is what the test should tell.
            if raised is None:
                raise

    @property
    def apis(self) -> list[str]:
        """The API of each request."""
        return [each.api for each in self]

    def _seen(self) -> list[Request]:
        if self._kept is not None:
            return self._kept
        if self._process() is not self._recording:
            raise BrokerGone("the process that has recorded the requests ended, and they with it")
        found = self._call("recorded", since=self._since, apis=self._apis)
        return [Request(**{name: each[name] for name in Request._fields}) for each in found]

    def __len__(self) -> int:
        return len(self._seen())

    def __iter__(self) -> Iterator[Request]:
        return iter(self._seen())

    def __getitem__(self, index: Any) -> Any:
        return self._seen()[index]

    def __repr__(self) -> str:
        return repr(self._seen())
