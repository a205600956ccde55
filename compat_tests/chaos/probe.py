"""How long a client waits: a producer that goes on sending a record to each partition in turn.

The waits include those of librdkafka itself, whose settings are as low as a client may choose.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from compat_tests.admin import create_topic

PARTITIONS = 6
_EVERY_S = 0.05


class Sent(NamedTuple):
    """One record: when it was sent, to which partition, how long its acknowledgement took."""

    at_s: float
    partition: int
    waited_s: float


def is_served(since: Iterable[Sent]) -> bool:
    """Whether each partition has acknowledged two of these records.

    A few busy ones must not stand for one that is not served.
    """
    counts = Counter(each.partition for each in since)
    return all(counts[partition] >= 2 for partition in range(PARTITIONS))


class Probe(threading.Thread):
    """Runs from `start` until `end`."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._servers, self._topic = bootstrap, topic
        self._ends = threading.Event()
        self._waiting: dict[int, float] = {}
        self._acknowledged: list[Sent] = []
        #: What the producer was told in place of acknowledgements.
        self.errors: list[str] = []
        self._lock = threading.Lock()
        create_topic(bootstrap, topic, PARTITIONS)

    def run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "enable.idempotence": True,
                "linger.ms": 0,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "delivery.timeout.ms": 300_000,
                "log_level": 0,
            }
        )
        number = 0
        while not self._ends.wait(_EVERY_S):
            self._send(producer, number)
            number += 1
            producer.poll(0)
        producer.flush(30)

    def end(self) -> None:
        """Send nothing more."""
        self._ends.set()
        self.join(40)

    def longest(self, begin_s: float, end_s: float) -> float:
        """Return the longest wait, so far, of a record that was sent between two moments."""
        now_s = time.monotonic()
        with self._lock:
            waited = [each.waited_s for each in self._acknowledged if begin_s <= each.at_s < end_s]
            waited += [now_s - at_s for at_s in self._waiting.values() if begin_s <= at_s < end_s]
        return max(waited, default=0.0)

    def is_served_since(self, moment_s: float) -> bool:
        """Whether nothing from before a moment waits, and each partition serves after it."""
        with self._lock:
            later = [each for each in self._acknowledged if each.at_s >= moment_s]
            waiting = any(at_s < moment_s for at_s in self._waiting.values())
        return is_served(later) and not waiting

    def _send(self, producer: Producer, number: int) -> None:
        at_s, partition = time.monotonic(), number % PARTITIONS

        def told(error: KafkaError | None, message: Message) -> None:
            with self._lock:
                del self._waiting[number]
                if error is None:
                    self._acknowledged.append(Sent(at_s, partition, time.monotonic() - at_s))
                else:
                    self.errors.append(str(error))

        with self._lock:
            self._waiting[number] = at_s
        producer.produce(self._topic, str(number), partition=partition, on_delivery=told)
