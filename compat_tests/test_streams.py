"""Kafka Streams: a word count with `exactly_once_v2` whose broker is killed under it.

It needs more of a broker than any client alone: internal topics that it creates and configures,
changelogs that it restores from, DeleteRecords on what it has read, static members, and the
offsets of two topics in one transaction.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from compat_tests import class_archive
from compat_tests.admin import create_topic
from compat_tests.brokers import Broker
from compat_tests.client import TIMEOUT_S, StuckClient
from compat_tests.clients import CONFLUENT
from compat_tests.confluent_client import consumer, producer, send
from compat_tests.java import fast_start
from tools.reference_kafka import java_command

WORD_COUNT = Path(__file__).with_name("WordCount.java")
TEXT, COUNTS, APPLICATION = "text", "counts", "word-count"
TEXT_PARTITIONS = 3
WORDS_OF_A_LINE = 5
INTERNAL = (f"{APPLICATION}-words-repartition", f"{APPLICATION}-counts-changelog")


class Text:
    """What was said so far, word by word."""

    def __init__(self, broker: Broker) -> None:
        self.words: Counter[str] = Counter()
        self._random = random.Random(1)
        self._producer = producer(broker.bootstrap, enable_idempotence=True)

    def say(self, lines: int) -> None:
        """Write so many lines into every partition; returns when they are acknowledged."""
        for partition in range(TEXT_PARTITIONS):
            drawn = [
                [f"w{self._random.randrange(20)}" for _ in range(WORDS_OF_A_LINE)]
                for _ in range(lines)
            ]
            for words in drawn:
                self.words.update(words)
            pairs = [(None, " ".join(words).encode()) for words in drawn]
            send(self._producer, TEXT, pairs, partition)


@contextmanager
def application(broker: Broker, directory: Path) -> Iterator[None]:
    """Run the word count and end it in order."""
    quiet = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2-quiet.properties')}"
    options = (*fast_start(), quiet)
    arguments = (broker.bootstrap, APPLICATION, TEXT, COUNTS, str(directory))
    process = subprocess.Popen(
        java_command(
            WORD_COUNT.stem, *arguments, options=options, beside=class_archive.compiled(WORD_COUNT)
        ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield
        output, _ = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, output.decode()
    finally:
        process.kill()
        process.communicate()


def await_counts(broker: Broker, least: int) -> None:
    """Return when at least so many words are counted."""
    deadline = time.monotonic() + TIMEOUT_S
    while (found := len(CONFLUENT.consume(broker.bootstrap, COUNTS))) < least:
        if time.monotonic() > deadline:
            raise StuckClient(f"{found} of {least} words counted")
        time.sleep(0.05)


def counts_of_words(broker: Broker) -> dict[str, list[int]]:
    counts: dict[str, list[int]] = defaultdict(list)
    for read in CONFLUENT.consume(broker.bootstrap, COUNTS):
        assert read.key is not None
        assert read.value is not None
        counts[read.key.decode()].append(int(read.value))
    return counts


def instance_ids(broker: Broker) -> set[str | None]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    described = admin.describe_consumer_groups([APPLICATION])[APPLICATION].result(TIMEOUT_S)
    return {member.group_instance_id for member in described.members}


def start_offsets(broker: Broker, topic: str) -> list[int]:
    client = consumer(broker.bootstrap)
    found = [
        client.get_watermark_offsets(TopicPartition(topic, partition), timeout=TIMEOUT_S)[0]
        for partition in range(TEXT_PARTITIONS)
    ]
    client.close()
    return found


def test_streams_counts_every_word_once_while_the_broker_is_killed(
    own_broker: Broker, tmp_path: Path
) -> None:
    broker = own_broker
    create_topic(broker.bootstrap, TEXT, TEXT_PARTITIONS)
    create_topic(broker.bootstrap, COUNTS)
    text = Text(broker)
    text.say(400)
    with application(broker, tmp_path / "state"):
        await_counts(broker, 1)
        text.say(400)
        broker.restart(clean=False)
        text.say(100)
        await_counts(broker, text.words.total())
    text.say(100)
    with application(broker, tmp_path / "state"):
        await_counts(broker, text.words.total())
        assert instance_ids(broker) == {f"{APPLICATION}-{thread}" for thread in (1, 2)}
    assert counts_of_words(broker) == {
        word: list(range(1, count + 1)) for word, count in text.words.items()
    }
    repartition, changelog = INTERNAL
    assert all(start_offsets(broker, repartition))
    assert not any(start_offsets(broker, changelog))
