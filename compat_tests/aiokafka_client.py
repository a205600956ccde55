"""aiokafka."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from compat_tests.client import TIMEOUT_S, Client, Isolation, Pair, Read, StuckClient, Writing


async def send(client: AIOKafkaProducer, topic: str, pairs: Sequence[Pair]) -> list[int]:
    """Produce `pairs`, wait for all of them, return their offsets; an error of one is raised."""
    futures = [await client.send(topic, value, key, partition=0) for key, value in pairs]
    return [metadata.offset for metadata in await asyncio.gather(*futures)]


class AioKafkaClient(Client):
    name = "aiokafka"

    def _write(self, bootstrap: str, topic: str, pairs: Sequence[Pair], writing: Writing) -> None:
        asyncio.run(_within(_produce(bootstrap, topic, pairs, writing)))

    def consume(
        self, bootstrap: str, topic: str, isolation: Isolation = "read_committed"
    ) -> list[Read]:
        return asyncio.run(_within(_consume(bootstrap, topic, isolation)))


async def _within(work: Any) -> Any:
    try:
        return await asyncio.wait_for(work, TIMEOUT_S)
    except TimeoutError:
        raise StuckClient(f"aiokafka did not finish within {TIMEOUT_S} s") from None


async def _produce(bootstrap: str, topic: str, pairs: Sequence[Pair], writing: Writing) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        compression_type=None if writing.codec == "none" else writing.codec,
        enable_idempotence=writing.is_idempotent,
        transactional_id=writing.transactional_id,
    ) as client:
        if writing.transactional_id is None:
            await send(client, topic, pairs)
            return
        await client.begin_transaction()
        await send(client, topic, pairs)
        if writing.commits:
            await client.commit_transaction()
        else:
            await client.abort_transaction()


async def _consume(bootstrap: str, topic: str, isolation: Isolation) -> list[Read]:
    partition = TopicPartition(topic, 0)
    found: list[Read] = []
    async with AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level=isolation,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    ) as client:
        client.assign([partition])
        await client.seek_to_beginning(partition)
        end = (await client.end_offsets([partition]))[partition]
        while await client.position(partition) < end:
            batches = await client.getmany(partition, timeout_ms=200)
            for records in batches.values():
                found += [Read(each.offset, each.key, each.value) for each in records]
    return [read for read in found if read.offset < end]
