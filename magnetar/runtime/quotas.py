"""What clients may take: the quotas of users, client ids and addresses, and what was taken.

Each quota has a token bucket (`magnetar.security.token_bucket`): of the user, of the client id, or
of both together, as the quota names them. Clients that share the name share the bucket. The order
in which quotas are looked for is Kafka's (KIP-55, KIP-546). Nothing is counted for a client without
a quota. A bucket in debt pauses its connection after the answer (KIP-219): `RequestContext` carries
the time to the edge.

Bounded: at most `BUCKETS_MAX` buckets. For a new one full buckets are forgotten first, which loses
nothing, and then the oldest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from hashlib import sha256
from typing import NamedTuple

from magnetar.clock import Clock
from magnetar.config.addresses import plain_address
from magnetar.config.broker import BrokerConfig
from magnetar.config.quotas import QuotasConfig
from magnetar.logging import get_logger
from magnetar.runtime.request_context import RequestContext
from magnetar.security.token_bucket import Rate, TokenBucket
from magnetar.storage.client_quotas import (
    CLIENT_ID,
    IP,
    USER,
    ClientQuotas,
    Component,
    make_entity,
)
from wire.error_code import ErrorCode
from wire.errors import KafkaError

BUCKETS_MAX = 10_000
#: Longer client ids are kept by their hash: a client may choose 32 KB.
_NAME_CHARACTERS_MAX = 256
_DEFAULT = None

_log = get_logger("server")


class Kind(StrEnum):
    """What a quota limits, by the name of the quota."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    MUTATION = "controller_mutation_rate"
    CONNECTION = "connection_creation_rate"


#: Whether the quota's entity names the user and the client id: by name, by default, or not at all.
#: The first entity that has the quota counts.
_BY_NAME, _BY_DEFAULT, _ABSENT = range(3)
_ORDER = (
    (_BY_NAME, _BY_NAME),
    (_BY_NAME, _BY_DEFAULT),
    (_BY_NAME, _ABSENT),
    (_BY_DEFAULT, _BY_NAME),
    (_BY_DEFAULT, _BY_DEFAULT),
    (_BY_DEFAULT, _ABSENT),
    (_ABSENT, _BY_NAME),
    (_ABSENT, _BY_DEFAULT),
)
_OF_CLIENTS = (Kind.PRODUCE, Kind.FETCH, Kind.REQUEST, Kind.MUTATION)


class BucketKey(NamedTuple):
    """The clients that share a bucket of a quota. A part that the quota does not name is empty."""

    kind: Kind
    user: str
    client_id: str = ""


class Throttled:
    """What one kind of quota has done since the start."""

    def __init__(self) -> None:
        self.count = 0
        self.total_ms = 0


Buckets = dict[Kind, TokenBucket]


class Quotas:
    """The buckets of all clients."""

    def __init__(
        self,
        stored: ClientQuotas,
        config: BrokerConfig,
        clock: Clock,
        count_nodes: Callable[[], int],
    ) -> None:
        """`count_nodes`: how many share the quotas at present, each of which gives its part."""
        self._count_nodes = count_nodes
        #: The number of nodes for which `_clients` was looked up.
        self._node_count = 0
        settings = config.view(QuotasConfig)
        #: As in Kafka: a rate over eleven samples, one of which has just begun.
        window_s = settings.quota_window_size_seconds
        self.burst_s = (max(settings.quota_window_num - 1, 1)) * window_s
        mutations_s = settings.controller_quota_window_num
        self._mutation_burst_s = mutations_s * settings.controller_quota_window_size_seconds
        #: The longest pause for request time and for connections, whatever the debt.
        self.pause_ms_max = window_s * 1000
        self.throttled = {kind: Throttled() for kind in Kind}
        #: Whether any user or client id has a quota.
        self.limits_clients = False
        #: By address, as `plain_address` writes it: its quotas. None: those of all other addresses.
        self._of_addresses: dict[str | None, Mapping[str, float]] = {}
        #: By address as quotas have it: its one text. To find it takes 3 us, and a change of one
        #: quota is a look at ten thousand, perhaps.
        self._plain: dict[str, str] = {}
        #: Called when a quota has changed.
        self.on_change: Callable[[], None] = lambda: None
        self._stored = stored
        self._now_ms = clock.steady_ms
        #: By user and client id as requests name them: the buckets that they take from.
        self._clients: dict[tuple[str, str], Buckets] = {}
        self._buckets: dict[BucketKey, TokenBucket] = {}
        stored.on_change = self._changed
        self._look()

    def _look(self) -> None:
        types = self._stored.types
        self.limits_clients = bool(types & {USER, CLIENT_ID})
        self._of_addresses.clear()
        known, self._plain = self._plain, {}
        if IP in types:
            for entity, values in self._stored.find([Component(IP, None, True)], strict=True):
                name = dict(entity)[IP]
                if name is not None:
                    self._plain[name] = name = known.get(name) or plain_address(name)
                self._of_addresses[name] = values

    def _changed(self) -> None:
        # Buckets keep what is in them: a change of one quota gives no client another burst.
        self._clients.clear()
        self._look()
        self.on_change()

    # Clients.

    def of(self, context: RequestContext) -> Buckets:
        """Return the buckets of a request's client by kind; empty for one without quotas."""
        # Before a login is over, it is not known which client to charge.
        if not self.limits_clients or not context.connection.session.is_open:
            return {}
        node_count = self._count_nodes()
        if node_count != self._node_count:
            # Each bucket gets its part anew when its client is looked up.
            self._node_count = node_count
            self._clients.clear()
        name = context.principal.name, _short(context.client_id or "")
        buckets = self._clients.get(name)
        if buckets is None:
            buckets = {}
            for kind in _OF_CLIENTS:
                found = self._find(kind, context.principal.name, context.client_id or "")
                if found is not None:
                    buckets[kind] = self._bucket(*found)
            if len(self._clients) >= BUCKETS_MAX:
                self._clients.clear()
            self._clients[name] = buckets
        return buckets

    def charge(
        self,
        context: RequestContext,
        buckets: Buckets,
        kind: Kind,
        amount: float,
        ms_max: int | None = None,
    ) -> int:
        """Take `amount` from the client's bucket of a kind; return how long the client must pause.

        At most `ms_max`. The request's context remembers the longest pause.
        """
        bucket = buckets.get(kind)
        if bucket is None:
            return 0
        now_ms = self._now_ms()
        bucket.take(amount, now_ms)
        return self._pause(context, kind, bucket, ms_max)

    def fetch_bytes_max(self, context: RequestContext) -> int | None:
        """Return the most bytes that a fetch of this client may bring; None: no quota."""
        bucket = self.of(context).get(Kind.FETCH)
        return None if bucket is None else int(bucket.rate.per_s * bucket.rate.burst_s)

    def holds_back(self, context: RequestContext, size_bytes: int) -> bool:
        """Take a fetch's bytes; return whether the client must get none of them and pause."""
        buckets = self.of(context)
        bucket = buckets.get(Kind.FETCH)
        if bucket is None:
            return False
        # A batch may be larger than any burst. It is sent when nothing is owed, and paid for later:
        # else its reader would never pass it.
        is_due = bucket.is_full(self._now_ms())
        if not self.charge(context, buckets, Kind.FETCH, size_bytes) or is_due:
            return False
        # They are not sent, so they do not count.
        bucket.take(-size_bytes, self._now_ms())
        return True

    def charge_mutation(
        self, context: RequestContext, partition_count: int, *, is_strict: bool
    ) -> None:
        """Charge the client for partitions that are to be made or deleted.

        `is_strict`: the client's version knows THROTTLING_QUOTA_EXCEEDED, which is raised if the
        bucket is in debt. The request of an older client is served, and the client pauses then.
        """
        buckets = self.of(context)
        bucket = buckets.get(Kind.MUTATION)
        if bucket is None:
            return
        if not is_strict:
            self.charge(context, buckets, Kind.MUTATION, partition_count)
        elif self._pause(context, Kind.MUTATION, bucket, None):
            raise KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded."
            )
        else:
            bucket.take(partition_count, self._now_ms())

    def _pause(
        self, context: RequestContext, kind: Kind, bucket: TokenBucket, ms_max: int | None
    ) -> int:
        wait_ms = bucket.wait_ms(self._now_ms())
        if not wait_ms:
            return 0
        if ms_max is not None:
            wait_ms = min(wait_ms, ms_max)
        self.tell(
            kind,
            bucket,
            wait_ms,
            kind,
            principal=str(context.principal),
            client_id=_short(context.client_id or ""),
            client_address=context.client_address,
        )
        context.throttle_time_ms = max(context.throttle_time_ms, wait_ms)
        return wait_ms

    def _find(self, kind: Kind, user: str, client_id: str) -> tuple[BucketKey, float] | None:
        """Return the quota that counts for a client, and whose bucket it is."""
        for by_user, by_client in _ORDER:
            parts = [*_part(USER, user, by_user), *_part(CLIENT_ID, client_id, by_client)]
            per_s = self._stored.of(make_entity(parts)).get(kind)
            if per_s is not None:
                return BucketKey(
                    kind,
                    "" if by_user == _ABSENT else user,
                    "" if by_client == _ABSENT else _short(client_id),
                ), per_s
        return None

    # Addresses.

    def refuses(self, address: str) -> int:
        """Charge a new connection; return after how many ms it must be closed, 0: it may stay."""
        for name in (address, _DEFAULT):
            per_s = self._of_addresses.get(name, {}).get(Kind.CONNECTION)
            if per_s is None:
                continue
            bucket = self._bucket(BucketKey(Kind.CONNECTION, address), per_s)
            now_ms = self._now_ms()
            bucket.take(1, now_ms)
            wait_ms = min(bucket.wait_ms(now_ms), self.pause_ms_max)
            if wait_ms:
                bucket.take(-1, now_ms)
                self.tell(Kind.CONNECTION, bucket, wait_ms, Kind.CONNECTION, client_address=address)
            return wait_ms
        return 0

    # Buckets.

    def _bucket(self, key: BucketKey, per_s: float) -> TokenBucket:
        burst_s = self._mutation_burst_s if key.kind is Kind.MUTATION else self.burst_s
        rate = Rate(per_s / self._count_nodes(), burst_s)
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:
                self._forget()
            bucket = self._buckets[key] = TokenBucket(rate, self._now_ms())
        bucket.rate = rate
        return bucket

    def _forget(self) -> None:
        """Forget full buckets; where too many are left, the oldest quarter too."""
        now_ms = self._now_ms()
        left = [each for each in self._buckets.items() if not each[1].is_full(now_ms)]
        if len(left) > BUCKETS_MAX * 3 // 4:
            left = left[BUCKETS_MAX // 4 :]
        self._buckets = dict(left)
        # Clients that are known by name take from buckets that may be gone.
        self._clients.clear()

    def tell(self, kind: Kind, bucket: TokenBucket, wait_ms: int, limit: str, **who: str) -> None:
        """Count a client's pause, and log the first one by this bucket."""
        throttled = self.throttled[kind]
        throttled.count += 1
        throttled.total_ms += wait_ms
        if not bucket.is_told:
            # Once for each client: a throttled client stays throttled.
            bucket.is_told = True
            _log.info(
                "client throttled",
                quota=f"{limit}={bucket.rate.per_s:g}",
                throttle_time_ms=wait_ms,
                **who,
            )


def _part(entity_type: str, name: str, named: int) -> Iterable[tuple[str, str | None]]:
    if named != _ABSENT:
        yield entity_type, name if named == _BY_NAME else _DEFAULT


def _short(name: str) -> str:
    return name if len(name) <= _NAME_CHARACTERS_MAX else sha256(name.encode()).hexdigest()
