"""The brokers that a sink asks: whether they are magnetar's, who coordinates what, what passes.

confluent-kafka can list no votes and fence nobody but itself, so what decides a batch goes through
the project's own client. Source: docs/joint_transactions.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Self, TypeVar

from coordinator.groups.offsets.store import PROGRESS_TOPIC
from magnetar.client.cluster import PASSING, Client, ClientError, Refused, Unreachable
from magnetar.client.configs import Resource, describe_configs
from magnetar.client.topics import create_topic
from magnetar.config.resources import ResourceType
from magnetar.spark.errors import BadOptions, SinkError
from wire.error_code import ErrorCode

_SEPARATOR = "joint.transactions.separator"
_TIMEOUT_MAX = "transaction.max.timeout.ms"
#: The parent's transaction lasts for a few requests; of a driver that dies in it, so long.
PARENT_TIMEOUT_MS = 60_000
#: A broker that starts again, or a coordinator that is busy, is asked again so soon.
_RETRY_DELAY_S = 0.05
_WAITED_FOR = PASSING | {ErrorCode.UNSTABLE_OFFSET_COMMIT}

T = TypeVar("T")


class Promises(NamedTuple):
    """What the broker's settings say that exactly-once rests on."""

    separator: str
    transaction_timeout_ms_max: int


class Cluster:
    """The brokers, connected to anew when they were away, for `timeout_ms`. A context manager."""

    def __init__(self, bootstrap_servers: str, timeout_ms: int) -> None:
        """Nothing is connected to yet."""
        self.bootstrap_servers = bootstrap_servers
        self._timeout_ms = timeout_ms
        self._client: Client | None = None
        self._coordinators: dict[tuple[str, str], int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._disconnect()

    def ask(
        self, question: Callable[[Client], T], codes_of: Callable[[T], Iterable[int]] | None = None
    ) -> T:
        """Return what `question` answers, repeated while nobody is there, or a code among
        `codes_of` its answer passes by itself. SinkError: not within the timeout, or refused.
        """
        deadline = time.monotonic() + self._timeout_ms / 1000
        while True:
            try:
                if self._client is None:
                    self._client = Client(self.bootstrap_servers)
                answer = question(self._client)
            except (Unreachable, Refused) as failure:
                passes = isinstance(failure, Unreachable) or failure.code in PASSING
                self._disconnect()
                if not passes or time.monotonic() > deadline:
                    raise SinkError(self._said(failure)) from None
            except ClientError as failure:
                raise SinkError(self._said(failure)) from None
            else:
                codes = () if codes_of is None else codes_of(answer)
                if _WAITED_FOR.isdisjoint(codes) or time.monotonic() > deadline:
                    return answer
                self._coordinators.clear()
            time.sleep(_RETRY_DELAY_S)

    def promises(self) -> Promises:
        """Return what exactly-once rests on. BadOptions: this is not a magnetar that gives it."""

        def settings(client: Client) -> dict[str, str | None]:
            broker = Resource(ResourceType.BROKER, str(client.node_ids[0]))
            ((_, entries),) = describe_configs(client, [broker], [_SEPARATOR, _TIMEOUT_MAX])
            return {entry.name: entry.value for entry in entries}

        found = self.ask(settings)
        instead = "deliveryGuarantee=at-least-once writes without that guarantee."
        if _SEPARATOR not in found:
            raise BadOptions(
                f"the broker at {self.bootstrap_servers} is not magnetar, or one without joint "
                f"transactions: a batch cannot be written exactly once. {instead}"
            )
        if not (separator := found[_SEPARATOR]):
            raise BadOptions(
                f"the broker at {self.bootstrap_servers} has joint transactions turned off "
                f"({_SEPARATOR} is empty): a batch cannot be written exactly once. {instead}"
            )
        return Promises(separator, int(found[_TIMEOUT_MAX] or PARENT_TIMEOUT_MS))

    def check_topics(self, names: Sequence[str]) -> None:
        """Raise SinkError unless all of these topics exist. None is created."""
        self.ask(lambda client: client.topics(names))

    def provide_progress_topic(self) -> None:
        """Make sure that there is a topic to which records of progress belong."""
        if self.ask(_has_progress_topic):
            return
        self.ask(
            lambda client: create_topic(
                client,
                PROGRESS_TOPIC,
                partitions=1,
                replication_factor=-1,
                configs={},
                if_not_exists=True,
                validate_only=False,
                timeout_ms=self._timeout_ms,
            )
        )

    def coordinator_of(self, client: Client, transactional_id: str) -> int:
        """Return the broker that coordinates a transactional id, asked once per connection."""
        return self._once(client.coordinators, "transaction", transactional_id)

    def group_coordinator_of(self, client: Client, group_id: str) -> int:
        return self._once(client.group_coordinators, "group", group_id)

    def _once(
        self, find: Callable[[Iterable[str]], dict[int, list[str]]], kind: str, key: str
    ) -> int:
        if (kind, key) not in self._coordinators:
            ((self._coordinators[kind, key], _),) = find([key]).items()
        return self._coordinators[kind, key]

    def _said(self, failure: ClientError) -> str:
        if isinstance(failure, Unreachable):
            what, _, _ = str(failure).partition(". ")
            return f"within {self._timeout_ms} ms (the option brokerTimeoutMs): {what}."
        return f"{self.bootstrap_servers}: {failure}"

    def _disconnect(self) -> None:
        self._coordinators.clear()
        client, self._client = self._client, None
        if client is not None:
            client.close()


def _has_progress_topic(client: Client) -> bool:
    try:
        client.topics([PROGRESS_TOPIC])
    except Refused as refusal:
        if refusal.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        return False
    return True
