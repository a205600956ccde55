"""What the pipeline tells of inputs that were counted again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compat_tests.pipeline.evidence import Entry, committed, moved_back, passed_over, told
from compat_tests.pipeline.job import Job

JOB = Job("confluent", "127.0.0.1:9092", "r")


class _Dump:
    """The lines that `magnetar dump --json --records` prints of one partition."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._offset = 0

    def batch(self, records: Sequence[dict[str, Any]], **fields: Any) -> None:
        self.entries.append({"kind": "batch", "base_offset": self._offset, **fields})
        for record in records:
            self.entries.append({"kind": "record", "offset": self._offset, **record})
            self._offset += 1

    def transactional(self, producer_id: int, *records: dict[str, Any]) -> None:
        self.batch(records, producer_id=producer_id, producer_epoch=0, transactional=True)

    def end(self, producer_id: int, marker: str) -> None:
        fields = {"producer_id": producer_id, "producer_epoch": 0, "transactional": True}
        self.batch([{}], **fields, control=True, marker=marker)


def _offsets(partition: int, offset: int, signature: str) -> dict[str, Any]:
    return {
        "decoded": {
            "type": "OffsetCommit",
            "group": JOB.group,
            "topic": JOB.text_topic,
            "partition": partition,
            "offset": offset,
            "metadata": signature + "\0",
        }
    }


def _generation(number: int) -> dict[str, Any]:
    return {"decoded": {"type": "GroupMetadata", "group": JOB.group, "generation": number}}


def test_an_input_counted_twice_is_told_with_both_commits_of_its_offsets() -> None:
    counted = _Dump()
    counted.transactional(1, {"key": "confluent", "value": '{"2": [6, 7]}'})
    counted.transactional(3, {"key": "kafka-python", "value": '{"2": [7]}'})
    counted.end(3, "abort")
    counted.end(1, "commit")
    counted.transactional(3, {"key": "kafka-python", "value": '{"2": [6, 7]}'})
    counted.end(3, "commit")
    offsets = _Dump()
    offsets.batch([_generation(4)])
    offsets.transactional(1, _offsets(2, 8, "confluent, generation 4"))
    offsets.end(1, "commit")
    offsets.batch([_generation(5)])
    offsets.transactional(3, _offsets(2, 8, "kafka-python, generation -1"))
    offsets.end(3, "commit")
    counting, committing = committed(counted.entries), committed(offsets.entries, JOB.group)
    group = "word-counters-r"
    assert told(JOB, [(2, 7), (2, 6)], counting, committing) == [
        "2 inputs, text-2 at 6 to text-2 at 7, counted by:",
        f"  {group}-confluent, producer 1 epoch 0: inputs-counted-r at 0, committed at 3",
        "    text-2 to 8 by confluent, generation 4: __consumer_offsets at 1, in generation 4 of"
        " the group, committed at 2",
        f"  {group}-kafka-python, producer 3 epoch 0: inputs-counted-r at 4, committed at 5",
        "    text-2 to 8 by kafka-python, generation -1: __consumer_offsets at 4, in generation 5"
        " of the group, committed at 5",
    ]
    assert told(JOB, [(2, 7)], counting, committing[:1])[-1] == (
        "    no offsets were committed with it; they should be {2: 8}"
    )


def test_an_input_never_counted_is_told_with_the_offsets_that_passed_it_over() -> None:
    offsets = _Dump()
    offsets.batch([_generation(11)])
    offsets.transactional(1, _offsets(5, 960, "confluent, generation 11"))
    offsets.end(1, "commit")
    again = _offsets(5, 1020, "kafka-python, generation 9")
    offsets.transactional(3, _offsets(4, 1500, "kafka-python, generation 11"), again)
    offsets.end(3, "commit")
    never = [(5, offset) for offset in range(960, 1020)]
    assert list(passed_over(JOB, never, committed(offsets.entries, JOB.group))) == [
        "60 inputs, text-5 at 960 to text-5 at 1019, passed over by producer 3 epoch 0:",
        "    text-4 to 1500 by kafka-python, generation 11: __consumer_offsets at 3, in generation"
        " 11 of the group, committed at 5",
        "    text-5 to 1020 by kafka-python, generation 9: __consumer_offsets at 4, in generation"
        " 11 of the group, committed at 5",
    ]


def test_offsets_that_take_the_group_back_are_told() -> None:
    offsets = _Dump()
    for producer_id, offset, signature in (
        (1, 60, "a"),
        (1, 120, "a"),
        (3, 60, "b"),
        (1, 120, "a"),
    ):
        offsets.transactional(producer_id, _offsets(0, offset, signature))
        offsets.end(producer_id, "commit")
    committing = committed(offsets.entries, JOB.group)
    assert list(moved_back(JOB, [(0, 60), (0, 119)], committing)) == [
        "2 inputs, text-0 at 60 to text-0 at 119, taken back by producer 3 epoch 0:",
        "    text-0 to 60 by b: __consumer_offsets at 4, in generation -1 of the group,"
        " committed at 5",
    ]
    assert not list(moved_back(JOB, [(0, 59), (1, 60)], committing))
