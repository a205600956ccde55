"""Whether the outputs are exactly the truth: read back with read_committed, compare with a count
of our own.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from compat_tests.pipeline.job import OUTPUT_PARTITIONS, Job

_READ_TIMEOUT_S = 60.0
Input = tuple[int, int]


@dataclass
class Truth:
    """What was produced: the words, and how many records each input partition took."""

    words: Counter[str] = field(default_factory=Counter)
    inputs: Counter[int] = field(default_factory=Counter)


@dataclass(frozen=True)
class Verdict:
    """Empty `faults` is exactly once. Each fault is a sentence that names a witness."""

    words: int
    distinct_words: int
    inputs: int
    aborted_records: int
    faults: tuple[str, ...]
    #: (partition, offset) of the inputs that were counted more than once, and of those that never.
    counted_again: tuple[Input, ...] = ()
    never_counted: tuple[Input, ...] = ()


def judge(job: Job, truth: Truth) -> Verdict:
    """Read both outputs of a finished run and say what is wrong with them."""
    counted = Counter[str]()
    committed = read_all(job.bootstrap, job.counts_topic, OUTPUT_PARTITIONS, "read_committed")
    for _, _, key, value in committed:
        counted[key.decode()] += int(value)
    inputs: Counter[Input] = Counter()
    for *_, value in read_all(job.bootstrap, job.inputs_topic, 1, "read_committed"):
        for partition, offsets in json.loads(value).items():
            inputs.update((int(partition), offset) for offset in offsets)
    written = read_all(job.bootstrap, job.counts_topic, OUTPUT_PARTITIONS, "read_uncommitted")
    return Verdict(
        words=counted.total(),
        distinct_words=len(counted),
        inputs=len(inputs),
        aborted_records=len(written) - len(committed),
        faults=(*_input_faults(inputs, truth), *_word_faults(counted, truth)),
        counted_again=_counted_again(inputs),
        never_counted=_never_counted(inputs, truth),
    )


def _counted_again(inputs: Counter[Input]) -> tuple[Input, ...]:
    return tuple(sorted(each for each, times in inputs.items() if times > 1))


def _never_counted(inputs: Counter[Input], truth: Truth) -> tuple[Input, ...]:
    return tuple(sorted(_expected(truth) - inputs.keys()))


def _expected(truth: Truth) -> set[Input]:
    return {(p, offset) for p, count in truth.inputs.items() for offset in range(count)}


def _input_faults(inputs: Counter[Input], truth: Truth) -> list[str]:
    groups = {
        "never counted": _never_counted(inputs, truth),
        "counted more than once": _counted_again(inputs),
        "counted but never produced": sorted(inputs.keys() - _expected(truth)),
    }
    return [
        f"{len(found)} inputs {what}, the first is text-{found[0][0]} at {found[0][1]}"
        for what, found in groups.items()
        if found
    ]


def _word_faults(counted: Counter[str], truth: Truth) -> list[str]:
    wrong = sorted(
        word for word in counted.keys() | truth.words.keys() if counted[word] != truth.words[word]
    )
    if not wrong:
        return []
    word = wrong[0]
    return [
        f"{len(wrong)} words have a wrong count, the first is {word!r}: "
        f"{counted[word]} for {truth.words[word]}"
    ]


def read_all(
    bootstrap: str, topic: str, partitions: int, isolation: str
) -> list[tuple[int, int, bytes, bytes]]:
    """Return every (partition, offset, key, value) of a topic, up to the end of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "verdict",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found: list[tuple[int, int, bytes, bytes]] = []
    ended: set[int] = set()
    deadline = time.monotonic() + _READ_TIMEOUT_S
    try:
        while len(ended) < partitions:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic}: no end of partition within {_READ_TIMEOUT_S} s")
            batch: list[Any] = consumer.consume(5000, 0.2)
            for message in batch:
                error = message.error()
                if error is None:
                    found.append(
                        (message.partition(), message.offset(), message.key(), message.value())
                    )
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()
    return found
