"""A group's committed offsets: read them, go on from them, stage one in an open transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from compat_tests import confluent_client
from compat_tests.client import TIMEOUT_S

#: What a coordinator answers while it starts; librdkafka asks three times, and hands these on.
NOT_YET = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}
#: And while a transaction ends, which Kafka tells the producer before.
_NOT_YET_STABLE = {*NOT_YET, KafkaError.UNSTABLE_OFFSET_COMMIT}
_ASKED_EVERY_S = 0.05
_T = TypeVar("_T")


def commit(member: Consumer, *offsets: TopicPartition) -> None:
    """Commit for the group of a consumer, once its coordinator is there."""
    _asked_until(lambda: member.commit(offsets=list(offsets), asynchronous=False), NOT_YET)


def committed_offset(bootstrap: str, group: str, topic: str, partition: int = 0) -> int:
    """Return the group's stable committed offset, -1001 where there is none."""
    (offset,) = committed_offsets(bootstrap, group, [TopicPartition(topic, partition)])
    return offset


def committed_offsets(
    bootstrap: str, group: str, partitions: Sequence[TopicPartition]
) -> list[int]:
    """Return those of many partitions, in their order."""
    reader = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "isolation.level": "read_committed"}
    )
    try:
        found = _asked_until(
            lambda: _committed(reader, list(partitions), TIMEOUT_S), _NOT_YET_STABLE
        )
    finally:
        reader.close()
    return [each.offset for each in found]


def _asked_until(ask: Callable[[], _T], not_yet: AbstractSet[int]) -> _T:
    """Return the answer, the first that is none of these codes. Raises KafkaException."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in not_yet or time.monotonic() > deadline:
                raise
        time.sleep(_ASKED_EVERY_S)  # Only another question tells that it is ready.


def _committed(
    reader: Consumer, partitions: list[TopicPartition], timeout_s: float
) -> list[TopicPartition]:
    """Return what is committed. Raises KafkaException, also where one partition is refused."""
    found = reader.committed(partitions, timeout_s)
    for each in found:
        if each.error is not None:
            raise KafkaException(each.error)
    return found


def positions(
    reader: Consumer, partitions: list[TopicPartition], timeout_s: float = TIMEOUT_S
) -> list[TopicPartition]:
    """Return where the reader's group goes on: at 0 where it has committed nothing.

    Offsets only. librdkafka that looks for a beginning may go there after a `seek` (see
    docs/clients.md). Raises KafkaException, also where one partition alone is refused.
    """
    found = _committed(reader, partitions, timeout_s) if partitions else []
    for position in found:
        position.offset = max(position.offset, 0)
    return found


def begin_at_positions(reader: Consumer, partitions: list[TopicPartition]) -> None:
    """Begin there. For `on_assign`."""
    reader.assign(positions(reader, partitions))


def check_the_next_member_goes_on(
    bootstrap: str, group: str, topic: str, join: Callable[[], Consumer]
) -> None:
    """Let a member read, commit and leave: the one that joins after it begins where it was."""
    pairs = [(b"k", b"%d" % n) for n in range(10)]
    confluent_client.send(confluent_client.producer(bootstrap), topic, pairs)
    first = join()
    assert [_polled(first) for _ in range(4)] == [b"0", b"1", b"2", b"3"]
    first.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
    first.close()
    assert committed_offset(bootstrap, group, topic) == 4
    assert _polled(join()) == b"4"


def _polled(member: Consumer) -> bytes | None:
    message = member.poll(TIMEOUT_S)
    assert message is not None
    return message.value()


def delete_records(bootstrap: str, *positions: TopicPartition) -> None:
    """Delete the records before each position's offset."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records(list(positions)).values():
        future.result(timeout=TIMEOUT_S)


def staged(
    bootstrap: str, source: str, group: str, transactional_id: str
) -> Callable[[bool], None]:
    """Stage offset 7 in an open transaction; return what ends it (True commits)."""
    writer = confluent_client.producer(bootstrap, transactional_id=transactional_id)
    writer.init_transactions(TIMEOUT_S)
    writer.begin_transaction()
    reader = confluent_client.consumer(bootstrap, group)
    try:
        metadata = reader.consumer_group_metadata()
        writer.send_offsets_to_transaction([TopicPartition(source, 0, 7)], metadata, TIMEOUT_S)
    finally:
        reader.close()

    def end(commit: bool) -> None:
        if commit:
            writer.commit_transaction(TIMEOUT_S)
        else:
            writer.abort_transaction(TIMEOUT_S)

    return end
