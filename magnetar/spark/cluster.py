"""The cluster that a sink writes to: connected again after failures, and checked for its promises.

confluent-kafka cannot list votes, and fences no producer but itself. So the requests that decide a
batch go through `magnetar.client`. Source: docs/joint_transactions.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Self, TypeVar

from magnetar.client import Client, ClientError, Refused, Unreachable
from magnetar.client.cluster import TRANSIENT, WAITED_FOR
from magnetar.client.configs import Resource, describe_configs
from magnetar.client.security import PLAINTEXT, Security
from magnetar.client.topics import create_topic
from magnetar.spark.errors import BadOptions, SinkError
from magnetar.spark.progress import PROGRESS_TOPIC
from wire.error_code import ErrorCode
from wire.resource_type import ResourceType

_SEPARATOR = "joint.transactions.separator"
_TIMEOUT_MAX = "transaction.max.timeout.ms"
#: The parent's transaction lasts for a few requests. This bounds it if the driver dies meanwhile.
PARENT_TIMEOUT_MS = 60_000
_RETRY_DELAY_S = 0.05

T = TypeVar("T")


class Promises(NamedTuple):
    """The broker's settings that exactly-once rests on."""

    separator: str
    transaction_timeout_ms_max: int


class Cluster:
    """The brokers, connected to again for up to `timeout_ms` after a failure. A context manager."""

    def __init__(
        self, bootstrap_servers: str, timeout_ms: int, security: Security = PLAINTEXT
    ) -> None:
        """Connect to nothing yet."""
        self.bootstrap_servers = bootstrap_servers
        self._security = security
        self._timeout_ms = timeout_ms
        # Connected on demand: a task may hold a cluster and never ask it.
        self._client: Client | None = None
        self._coordinators: dict[tuple[str, str], int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._disconnect()

    def ask(
        self, question: Callable[[Client], T], codes_of: Callable[[T], Iterable[int]] | None = None
    ) -> T:
        """Return the answer of `question`, asked again while no broker is reachable, or while a
        code among `codes_of` the answer is transient. SinkError: the timeout is over, or refused.
        """
        deadline = time.monotonic() + self._timeout_ms / 1000
        while True:
            try:
                if self._client is None:
                    self._client = Client(self.bootstrap_servers, security=self._security)
                answer = question(self._client)
            except (Unreachable, Refused) as failure:
                passes = isinstance(failure, Unreachable) or failure.code in TRANSIENT
                # After a refusal too: a new connection finds the coordinator anew.
                self._disconnect()
                if not passes or time.monotonic() > deadline:
                    raise SinkError(self._explained(failure)) from None
            except ClientError as failure:
                raise SinkError(self._explained(failure)) from None
            else:
                codes = () if codes_of is None else codes_of(answer)
                # After the deadline the answer goes back with its code, which the caller checks and
                # names.
                if WAITED_FOR.isdisjoint(codes) or time.monotonic() > deadline:
                    return answer
                # The coordinator may have moved: NOT_COORDINATOR is one of these codes.
                self._coordinators.clear()
            time.sleep(_RETRY_DELAY_S)

    def promises(self) -> Promises:
        """Return what exactly-once rests on. BadOptions: this broker does not promise it."""

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
        """Create the topic that records of progress name, unless it exists."""
        # Looked for first: a user without the right to create topics can have it created once.
        if self.ask(_has_progress_topic):
            return
        self.ask(
            lambda client: create_topic(client, PROGRESS_TOPIC, partitions=1, if_not_exists=True)
        )

    def coordinator_of(self, client: Client, transactional_id: str) -> int:
        """Return the broker that coordinates a transactional id, asked once per connection."""
        return self._once(client.coordinator_of, "transaction", transactional_id)

    def group_coordinator_of(self, client: Client, group_id: str) -> int:
        """Return the broker that coordinates a group, asked once per connection."""
        return self._once(client.group_coordinator_of, "group", group_id)

    def _once(self, find: Callable[[str], int], kind: str, key: str) -> int:
        if (kind, key) not in self._coordinators:
            self._coordinators[kind, key] = find(key)
        return self._coordinators[kind, key]

    def _explained(self, failure: ClientError) -> str:
        if isinstance(failure, Unreachable):
            # The first sentence only: the rest is advice for the command line.
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
