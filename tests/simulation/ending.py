"""The end of a history, of one broker or of several: everything is read, and counted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from coordinator.transactions.metadata import TopicPartition
from tests.simulation.clients.reader import Reader
from tests.simulation.observations import Observations
from tests.simulation.simulated_broker import Gone


def name_of_last_reader(*, is_committed: bool) -> str:
    """Return the name of who reads everything at the end."""
    return f"the end{' (committed)' if is_committed else ''}"


async def read_all(
    readers: Iterable[Reader],
    counts: Mapping[str, int],
    seen: Observations,
    *,
    is_committed: bool,
) -> None:
    """Read every partition to its end, and note what there is.

    `readers` have the name of the last reader, and all partitions between them; `counts` are the
    partitions of each topic.
    """
    for reader in readers:
        while True:
            try:
                await reader.read_to_the_end()
                break
            except Gone:
                await asyncio.sleep(0.1)
    name = name_of_last_reader(is_committed=is_committed)
    for partition in all_partitions(counts):
        seen.final[partition, is_committed] = [
            record
            for one in seen.fetched
            if one.reader == name and one.partition == partition
            for record in one.records
        ]


def all_partitions(counts: Mapping[str, int]) -> list[TopicPartition]:
    """Return the partitions of these topics, in their order."""
    return [TopicPartition(name, index) for name, count in counts.items() for index in range(count)]


def committed_values(seen: Observations) -> dict[TopicPartition, list[str]]:
    """Return what a read_committed reader found at the end."""
    return {
        partition: [str(one.value) for one in records]
        for (partition, is_committed), records in seen.final.items()
        if is_committed
    }


def extent_of(seen: Observations, incarnations: int) -> tuple[int, ...]:
    """Return acknowledged records, committed transactions, fetches, brokers."""
    return (
        sum(one.offset >= 0 for one in seen.sent),
        sum(one.ended_s < float("inf") for one in seen.history.transactions),
        len(seen.fetched),
        incarnations,
    )
