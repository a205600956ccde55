"""Who takes part in a churn: forty members, in ten processes, of every library and protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

#: The API key that brokers with the newer protocol have.
CONSUMER_GROUP_HEARTBEAT = 68
#: What the broker runs with: members of the newer protocol have the broker's session timeout.
SETTINGS = {
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "100",
}
TOPICS = 3
PARTITIONS = 8
MEMBERS_PER_PROCESS = 4
#: (library, what is special, group, processes); the new protocol's only where it is served.
_CLASSIC = (
    ("confluent", "", "mixed", 2),
    ("kafka_python", "", "mixed", 2),
    ("aiokafka", "", "mixed", 2),
    ("confluent", "static", "mixed", 1),
    ("confluent", "cooperative", "cooperative", 1),
)
_NEW = (("confluent", "consumer", "consumer", 2),)
_INSTEAD_OF_NEW = (("confluent", "cooperative", "cooperative", 2),)


@dataclass(frozen=True)
class ChurnJob:
    """One process. It travels there as JSON."""

    worker: str
    bootstrap: str
    run: str
    library: str
    #: "", static, cooperative, or consumer: the protocol of KIP-848.
    manner: str
    group: str
    #: From this time on (of time.time) no member leaves by itself.
    leaves_until_s: float
    members: int = MEMBERS_PER_PROCESS
    session_timeout_ms: int = 3000
    max_poll_interval_ms: int = 6000
    stays_s: tuple[float, float] = (6.0, 30.0)
    away_s: tuple[float, float] = (0.1, 2.0)

    @property
    def topics(self) -> list[str]:
        return topics(self.run)

    @property
    def client_ids(self) -> list[str]:
        return [self.client_id(number) for number in range(self.members)]

    def client_id(self, number: int) -> str:
        return f"{self.worker}-{number}"

    def instance(self, number: int) -> str | None:
        """Return the instance id of a static member."""
        return self.client_id(number) if self.manner == "static" else None

    def settings(self, number: int) -> dict[str, Any]:
        """Return a member's settings by the names that the libraries of Python have for them."""
        return {
            "bootstrap_servers": self.bootstrap,
            "group_id": self.group,
            "client_id": self.client_id(number),
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "session_timeout_ms": self.session_timeout_ms,
            "heartbeat_interval_ms": self.session_timeout_ms // 6,
            "max_poll_interval_ms": self.max_poll_interval_ms,
        }

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> ChurnJob:
        return ChurnJob(**json.loads(text))


def topics(run: str) -> list[str]:
    return [f"churn-{run}-{number}" for number in range(TOPICS)]


def jobs(
    bootstrap: str, run: str, leaves_until_s: float, *, new_protocol: bool
) -> Iterator[ChurnJob]:
    """Yield the job of every process."""
    number = 0
    for library, manner, group, processes in (
        *_CLASSIC,
        *(_NEW if new_protocol else _INSTEAD_OF_NEW),
    ):
        for _ in range(processes):
            worker = f"{library}-{number}"
            number += 1
            yield ChurnJob(
                worker, bootstrap, run, library, manner, f"{group}-{run}", leaves_until_s
            )
