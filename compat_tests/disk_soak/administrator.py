"""An administrator beside all others: makes a topic, extends it, trims it, deletes it, and looks
each time whether what was answered stands.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

_ANSWER_S = 10.0
_LOOKS_FOR_S = 60.0
_RECORDS, _TRIMMED = 20, 10


class Unanswered(Exception):
    """A step has an unknown outcome: the topic is left as it is."""


class Administrator(threading.Thread):
    """Works until told to end. `faults` are answers that did not stand."""

    def __init__(self, bootstrap: str, run: str) -> None:
        super().__init__(name="administrator", daemon=True)
        self.faults: list[str] = []
        self.topics_done = 0
        self.topics_left = 0
        self._address = bootstrap
        self._run = run
        self._ended = threading.Event()
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def run(self) -> None:
        for number in itertools.count():
            if self._ended.wait(1.0):
                return
            try:
                self._work(f"administered-{self._run}-{number}")
                self.topics_done += 1
            except (KafkaException, Unanswered, TimeoutError):
                self.topics_left += 1

    def end(self) -> None:
        """Begin no more."""
        self._ended.set()
        self.join()

    def _work(self, topic: str) -> None:
        new = NewTopic(topic, num_partitions=3, replication_factor=1)
        self._admin.create_topics([new])[topic].result(_ANSWER_S)
        self._expect(f"{topic} has 3 partitions", lambda: self._partitions(topic) == 3)
        self._admin.create_partitions([NewPartitions(topic, 5)])[topic].result(_ANSWER_S)
        self._expect(f"{topic} has 5 partitions", lambda: self._partitions(topic) == 5)
        self._write(topic)
        place = TopicPartition(topic, 4, _TRIMMED)
        for future in self._admin.delete_records([place]).values():
            future.result(_ANSWER_S)
        self._expect(f"{topic}-4 begins at {_TRIMMED}", lambda: self._start(place) == _TRIMMED)
        self._admin.delete_topics([topic])[topic].result(_ANSWER_S)
        self._expect(f"{topic} is gone", lambda: self._partitions(topic) == 0)

    def _expect(self, what: str, holds: Callable[[], bool]) -> None:
        """Look until there is an answer; a broker that was killed meanwhile gives none."""
        deadline = time.monotonic() + _LOOKS_FOR_S
        while time.monotonic() < deadline:
            try:
                if not holds():
                    self.faults.append(f"the administrator was told otherwise: {what}")
                return
            except (KafkaException, TimeoutError):
                time.sleep(0.2)  # The broker is killed, or its disk is full: asked again.
        self.faults.append(f"the administrator has no answer for {_LOOKS_FOR_S:.0f} s: {what}")

    def _partitions(self, topic: str) -> int:
        found = self._admin.list_topics(timeout=_ANSWER_S).topics.get(topic)
        return 0 if found is None else len(found.partitions)

    def _write(self, topic: str) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._address,
                "enable.idempotence": True,
                "delivery.timeout.ms": 10_000,
                "log_level": 0,
            }
        )
        for number in range(_RECORDS):
            producer.produce(topic, b"%d" % number, partition=4)
        if producer.flush(_ANSWER_S):
            raise Unanswered(topic)

    def _start(self, place: TopicPartition) -> int:
        client = Consumer(
            {"bootstrap.servers": self._address, "group.id": "unused", "log_level": 0}
        )
        try:
            return client.get_watermark_offsets(place, _ANSWER_S)[0]
        finally:
            client.close()
