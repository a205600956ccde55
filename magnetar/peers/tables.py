"""What a node serves to its peers: for each API the request, its version, and what answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from magnetar.runtime.delayed_response import DelayedResponse
from wire.message import Message

#: The answer to a peer's request, now or later, or what a task calls for it: not called if the node
#: stops before. None: it has no answer.
Performed: TypeAlias = Message | DelayedResponse | Callable[[], Awaitable[Message]] | None


class PeerApi(NamedTuple):
    """One API between nodes."""

    request_class: type[Message]
    version: int
    """The one version that nodes speak (`runtime.peer_messages`)."""
    perform: Callable[[Any], Performed]
    """Does all that changes state before it returns the answer, or what waits for it. So requests
    take effect in the order of their arrival, and those of a superseded connection have none.
    Markers that take several turns keep an order of their own (`PeerRequests`)."""


#: What a node serves, by API key.
PeerApis = Mapping[int, PeerApi]
