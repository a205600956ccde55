"""Metrics that clients push (KIP-714): which client pushes what, how often, and its last samples.

Subscriptions are the configs of type client metrics. A client asks which of its metrics are wanted
(`subscribe`), and pushes them at the interval that it was given (`admit`, then `keep`). Its last
samples are kept until it has missed three intervals. The number of clients, and of all samples, is
bounded; the client that was silent longest is forgotten first. There may be many subscriptions with
slow patterns, so others have their turn while one client is compared with them. Source: KIP-714,
Kafka's ClientMetricsManager.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from uuid import UUID, uuid4

from magnetar.config.broker import BrokerConfig
from magnetar.config.client_metrics import ClientMetricsConfig, patterns_of
from magnetar.runtime.patterns import LIGHT_BYTES_MAX, compile_pattern
from magnetar.runtime.pushed_metrics import Sample
from magnetar.runtime.turns import Turns
from magnetar.storage.stored_configs import StoredConfigs
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.message import ZERO_UUID
from wire.records import Compression
from wire.resource_type import ResourceType

#: The most clients that are known, and the most samples of all of them together.
CLIENTS_MAX, SAMPLES_MAX = 1000, 10_000
#: The codecs that clients may use, the preferred one first.
CODECS = (Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY)
#: What a client says of itself is cut so: its id may have 32 KB, and each of its samples names it.
ATTRIBUTE_CHARACTERS_MAX = 255
#: A client that is asked for more names than these is asked for every metric.
METRICS_MAX = 1000
#: Stands for every metric, in a subscription and in the answer to a client.
ALL = "*"
_DEFAULT_INTERVAL_MS = 300_000
#: A client is forgotten after so many silent intervals, and after so many ms at least: the first
#: push after asking may come at any time.
_INTERVALS_MAX, _FORGOTTEN_AFTER_MS = 3, 60_000


def takes_telemetry(config: BrokerConfig) -> bool:
    """Return whether metrics are served, and the library that reads those of clients is here."""
    # The parent is looked at first: find_spec raises without it.
    return bool(config.metrics_listen) and all(
        find_spec(name) is not None for name in ("opentelemetry", "opentelemetry.proto")
    )


@dataclass(frozen=True)
class Subscription:
    """What one client is asked for. `metrics` are beginnings of names; none: nothing."""

    subscription_id: int
    metrics: Sequence[str]
    interval_ms: int


@dataclass
class ToldClient:
    """A client that has asked for its subscription; times are steady, in ms, -1 for never."""

    instance_id: UUID
    attributes: Mapping[str, str]
    subscription: Subscription
    #: The version of the stored configs that the subscription follows from.
    configs_version: int
    asked_at_ms: int = -1
    pushed_at_ms: int = -1
    is_terminating: bool = False
    #: Whether its last push was refused in a way that only asking anew can mend.
    must_ask: bool = False
    samples: Sequence[Sample] = field(default_factory=tuple)

    @property
    def seen_at_ms(self) -> int:
        return max(self.asked_at_ms, self.pushed_at_ms)


class ClientTelemetry:
    """The clients that push, by their instance ids, the one that was seen last at the end."""

    def __init__(self, stored: StoredConfigs, bytes_max: int, turns: Turns) -> None:
        self._stored = stored
        #: The names of metrics that clients are asked for, in one version of the configs.
        self._names: dict[str, str] = {}
        self._names_version = stored.version
        self._turns = turns
        self.bytes_max = bytes_max
        self._clients: OrderedDict[UUID, ToldClient] = OrderedDict()
        #: Samples that had no room: of one client, or of all.
        self.left_out = 0

    async def subscribe(
        self, instance_id: UUID, attributes: Mapping[str, str], now_ms: int
    ) -> ToldClient:
        """Return the client with what it is asked for. A client with the id ZERO_UUID gets one.

        Raises THROTTLING_QUOTA_EXCEEDED if it asks again before its interval is over.
        """
        known = self._clients.get(instance_id)
        if known is not None and not known.must_ask:
            self._check_pace(known, known.seen_at_ms, now_ms)
        if instance_id == ZERO_UUID:
            instance_id = uuid4()
        attributes = {name: text[:ATTRIBUTE_CHARACTERS_MAX] for name, text in attributes.items()}
        version = self._stored.version
        subscription = await self._subscription(instance_id, attributes)
        client = ToldClient(instance_id, attributes, subscription, version, now_ms)
        # What was told stays: it is true until the next push.
        known = self._clients.get(instance_id)
        client.samples = () if known is None else known.samples
        self._clients[instance_id] = client
        self._clients.move_to_end(instance_id)
        if len(self._clients) > CLIENTS_MAX:
            self._clients.popitem(last=False)
        return client

    async def admit(
        self,
        instance_id: UUID,
        subscription_id: int,
        codec: int,
        size_bytes: int,
        now_ms: int,
        *,
        is_terminating: bool,
    ) -> ToldClient:
        """Return the client whose push may be read.

        Raises INVALID_REQUEST, THROTTLING_QUOTA_EXCEEDED, UNKNOWN_SUBSCRIPTION_ID,
        UNSUPPORTED_COMPRESSION_TYPE or TELEMETRY_TOO_LARGE if the push may not be read.
        """
        if instance_id == ZERO_UUID:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a push without a client instance id")
        client = self._clients.get(instance_id)
        if client is None:
            raise KafkaError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID, "the client has not asked before")
        if client.is_terminating:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the client has pushed for the last time")
        # The first push after asking may come at any time: clients spread theirs.
        if client.pushed_at_ms >= client.asked_at_ms and not is_terminating:
            self._check_pace(client, client.pushed_at_ms, now_ms)
        client.pushed_at_ms = now_ms
        client.is_terminating = is_terminating
        client.must_ask = True
        if subscription_id != (await self._current(client)).subscription_id:
            raise KafkaError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID, "the subscription has changed")
        if codec not in (Compression.NONE, *CODECS):
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"codec {codec}")
        client.must_ask = False
        if size_bytes > self.bytes_max:
            raise KafkaError(
                ErrorCode.TELEMETRY_TOO_LARGE,
                f"{size_bytes} bytes, above telemetry.max.bytes={self.bytes_max}",
            )
        # It may have been forgotten while its subscription was looked for.
        if instance_id in self._clients:
            self._clients.move_to_end(instance_id)
        return client

    def keep(self, client: ToldClient, samples: Sequence[Sample], left_out: int) -> None:
        """Keep what a client told in place of what it told before."""
        self.left_out += left_out
        client.samples = samples

    def told(self, now_ms: int) -> Iterator[ToldClient]:
        """Yield the clients with samples, up to SAMPLES_MAX of these; forget silent clients."""
        room = SAMPLES_MAX
        for client in [*self._clients.values()]:
            silence_ms_max = _INTERVALS_MAX * client.subscription.interval_ms
            if now_ms - client.seen_at_ms > max(silence_ms_max, _FORGOTTEN_AFTER_MS):
                del self._clients[client.instance_id]
            elif client.samples and len(client.samples) <= room:
                room -= len(client.samples)
                yield client

    @property
    def client_count(self) -> int:
        """How many clients have asked what to push."""
        return len(self._clients)

    def _check_pace(self, client: ToldClient, before_ms: int, now_ms: int) -> None:
        if now_ms - before_ms < client.subscription.interval_ms:
            raise KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED, "before the push interval is over"
            )

    async def _current(self, client: ToldClient) -> Subscription:
        """Return what the client would be asked for now."""
        if client.configs_version == self._stored.version:
            return client.subscription
        return await self._subscription(client.instance_id, client.attributes)

    async def _subscription(self, instance_id: UUID, attributes: Mapping[str, str]) -> Subscription:
        """Return what all subscriptions that match the client ask for together."""
        attributed = {**attributes, "client_instance_id": str(instance_id)}
        metrics: set[str] = set()
        intervals = []
        async for name in self._turns.each(self._stored.names(ResourceType.CLIENT_METRICS)):
            texts = self._stored.texts(ResourceType.CLIENT_METRICS, name)
            config = ClientMetricsConfig(
                {key: ClientMetricsConfig.settings[key].parse(text) for key, text in texts.items()}
            )
            patterns = patterns_of(config.match).items()
            if config.metrics and await self._is_for(patterns, attributed):
                metrics.update(self._shared_name(each) for each in config.metrics)
                intervals.append(config.interval_ms)
            if len(metrics) > METRICS_MAX:
                metrics = {ALL}
        wanted = [ALL] if ALL in metrics else sorted(metrics)
        interval_ms = min(intervals, default=_DEFAULT_INTERVAL_MS)
        seed = f"{instance_id} {wanted} {interval_ms}".encode()
        # Signed, as the protocol has it.
        number = zlib.crc32(seed) - (1 << 31)
        return Subscription(number, wanted, interval_ms)

    def _shared_name(self, name: str) -> str:
        """Return the one text that all clients share which are asked for this metric.

        Not `sys.intern`: what Python 3.12 interns is never freed.
        """
        if self._names_version != self._stored.version:
            self._names, self._names_version = {}, self._stored.version
        return self._names.setdefault(name, name)

    async def _is_for(
        self, patterns: Iterable[tuple[str, str]], attributes: Mapping[str, str]
    ) -> bool:
        """Return whether the client's properties match their patterns."""
        async for name, pattern in self._turns.each(patterns):
            if not _matches(pattern, attributes.get(name, "")):
                return False
        return True


def _matches(pattern: str, text: str) -> bool:
    """Return whether the text matches whole, in linear time."""
    try:
        compiled = compile_pattern(pattern, LIGHT_BYTES_MAX)
    except KafkaError:
        # An older release has stored it: no client matches what is no pattern.
        return False
    return compiled.fullmatch(text) is not None
