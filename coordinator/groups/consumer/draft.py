"""A decision in the making: records tried on a copy of the group, so that the next can follow.

The group itself changes when the records are in the log. No copy is made before there is a record.
"""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.groups.consumer.group import ConsumerGroup
from coordinator.groups.consumer.records import ConsumerGroupRecord


class Draft:
    """`group` is the group with `records` applied; read it anew after each `add`."""

    __slots__ = ("_is_copy", "group", "records")

    def __init__(self, group: ConsumerGroup, *, is_new: bool = False) -> None:
        """`is_new`: the group is in no shard yet, so it may be changed itself."""
        self.group = group
        self.records: list[ConsumerGroupRecord] = []
        self._is_copy = is_new

    def add(self, records: Iterable[ConsumerGroupRecord]) -> None:
        for record in records:
            if not self._is_copy:
                self.group = self.group.draft()
                self._is_copy = True
            self.group.apply(record)
            self.records.append(record)
