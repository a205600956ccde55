"""What the requests of one API in one version have in common, looked up once."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from magnetar.apis.authorization import guarded
from magnetar.apis.registry import Api
from magnetar.server.latency import Durations
from magnetar.server.metering import metered
from magnetar.server.settling import settled
from wire.source import has_records

if TYPE_CHECKING:
    from magnetar.server.tracing import Tracing

#: The API keys of requests that do all their work in their first step, and then wait for a sync
#: only, or for a time limit: Produce, OffsetCommit, TxnOffsetCommit.
OVERLAPPING = frozenset({0, 8, 28})
#: The same as a frame that is not decoded yet begins with them.
OVERLAPPING_BYTES = frozenset(key.to_bytes(2, "big") for key in OVERLAPPING)
#: Size and correlation id, by the version of the response header; version 1 ends with no tags.
_PREFIXES = (Struct(">ii"), Struct(">iix"))


class Route:
    """One API in one version: its handler with what is put around it, and its bytes."""

    __slots__ = (
        "api",
        "api_key",
        "byte_factor",
        "decode",
        "durations",
        "encode",
        "gives_way",
        "handler",
        "is_flexible",
        "overlaps",
        "prefix",
        "version",
    )

    def __init__(
        self,
        api: Api,
        version: int,
        durations: Durations,
        *,
        is_guarded: bool = False,
        is_metered: bool = False,
        do_partitions_move: bool = False,
        tracing: Tracing | None = None,
    ) -> None:
        """`durations` count the requests of all versions of the API.

        `is_guarded`: there is an authorizer, which the API's needs are put before. `is_metered`:
        some clients have quotas. `do_partitions_move`: between nodes, so what a request is for may
        be on its way. `tracing`: what makes a span of each request.
        """
        self.api = api
        self.api_key = api.key
        self.version = version
        self.durations = durations
        self.overlaps = api.key in OVERLAPPING
        #: Else as in Kafka: what stands behind a fetch that waits is read when that is answered.
        self.gives_way = do_partitions_move
        self.handler = api.handler
        if is_guarded and api.needs:
            self.handler = guarded(api.handler, api.refuse, api.needs)
        if do_partitions_move and api.is_for is not None:
            self.handler = settled(api.is_for, self.handler)
        if is_metered:
            self.handler = metered(self.handler)
        if tracing is not None:
            self.handler = tracing.around(api, self.handler)
        self.decode = api.request_class.decoder(version)
        self.encode = api.response_class.encoder(version)
        #: The bytes in memory for each byte of a frame. Records stay as they came. One character
        #: beyond the first 256 makes each of a text take two; longer texts count as elements too.
        self.byte_factor = 1 if has_records(api.request_class, version) else 2
        self.is_flexible = api.request_class.header_version(version) >= 2
        self.prefix = _PREFIXES[api.response_class.header_version(version)]
