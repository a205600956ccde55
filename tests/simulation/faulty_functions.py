"""Faulty functions: each makes, of a function of the product, one with a fault in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from wire.errors import KafkaError
from wire.records import BATCH_OVERHEAD
from wire.records.spans import scan_records


def nothing(*_: object, **__: object) -> None:
    """Do nothing."""


def round_uncounted(real: Any) -> Any:
    def begin_round(self: Any) -> None:
        generation = self._generation
        real(self)
        self._generation = generation

    return begin_round


async def nothing_async(*_: object, **__: object) -> None:
    """Do nothing, and wait for nothing."""


def always(answer: object) -> Callable[[Any], Any]:
    return lambda _: lambda *_, **__: answer


def always_async(answer: object) -> Callable[[Any], Any]:
    async def answered(*_: object, **__: object) -> object:
        return answer

    return lambda _: answered


def answered_at_once(_: Any) -> Any:
    def when_visible(_self: Any, _id: str, _log: Any, _end: int, outcome: Any, **_: Any) -> Any:
        if isinstance(outcome, KafkaError):
            raise outcome
        return outcome

    return when_visible


def marked_early(real: Any) -> Any:
    return lambda response, _: real(response, ())


def own_alone(real: Any) -> Any:
    return lambda self, works: (real(self, works)[0], ())


def ignored(_: Any) -> Any:
    return nothing


def ignored_async(_: Any) -> Any:
    return nothing_async


def visible_at_once(real: Any) -> Any:
    def append(self: Any, *args: Any, **options: Any) -> Any:
        appended = real(self, *args, **options)
        self.reader.advance(self.state.end_offset)
        return appended

    return append


def without_last_batches(real: Any) -> Any:
    def opening(self: Any, *args: Any, **options: Any) -> Any:
        yield from real(self, *args, **options)
        for state in self.producers.values():
            state.batches = b""

    return opening


def all_but_last_partition(real: Any) -> Any:
    def append(self: Any, works: Any, *args: Any) -> Any:
        fewer = [
            work._replace(partitions=sorted(work.partitions)[:-1])
            if len(work.partitions) > 1
            else work
            for work in works
        ]
        return real(self, fewer, *args)

    return append


def stable_is_durable(_: Any) -> Any:
    def stabilize(self: Any, high_watermark: int) -> int:
        self.last_stable_offset = high_watermark
        return high_watermark

    return stabilize


def all_served(_: Any) -> Any:
    def take_served(self: Any) -> list[Any]:
        served, self.waiters = [waiter for _, waiter in self.waiters], []
        return served

    return take_served


def first_stays(real: Any) -> Any:
    def put(self: Any, key: bytes, offset: int) -> None:
        if self.get(key) < 0:
            real(self, key, offset)

    return put


def with_short_retention(real: Any) -> Any:
    def due(segments: Any, config: Any, **options: Any) -> Any:
        short = replace(config, retention_bytes=4_000, cleanup_policy=frozenset({"delete"}))
        return real(segments, short, **options)

    return due


def swapped(real: Any) -> Any:
    def take_ready(self: Any) -> Any:
        exchanges = self._exchanges
        if len(exchanges) > 1 and exchanges[1].answer is not None:
            exchanges[0], exchanges[1] = exchanges[1], exchanges[0]
        return real(self)

    return take_ready


def head_lost(real: Any) -> Any:
    def received(self: Any, count: int) -> Any:
        frames = real(self, count)
        self._head = b""
        return frames

    return received


def one_further(real: Any) -> Any:
    def appended_before(original: Any, *args: Any) -> Any:
        return real(original._replace(base_offset=original.base_offset + 1), *args)

    return appended_before


def catalog_forgets(real: Any) -> Any:
    def keep(self: Any) -> None:
        if self._stored.committed is None or self._disk.random.random() < 0.5:
            real(self)

    return keep


def earliest_of_each_key(_: Any) -> Any:
    def earliest(batches: Any, _: int) -> Any:
        first: dict[Any, Any] = {}
        for header, batch in batches:
            place: Any = header.base_offset
            if not header.is_transactional:
                spans, _ = scan_records(bytes(batch[BATCH_OVERHEAD:]), 0, header.record_count)
                place = tuple(span[3] for span in spans)
            first.setdefault(place, (header, batch))
        return first.values()

    return earliest


def freed_by_nobody(real: Any) -> Any:
    def compare(group: Any, member: Any, target: Any) -> Any:
        owners, group.owners = group.owners, {}
        try:
            return real(group, member, target)
        finally:
            group.owners = owners

    return compare


def without_pending(real: Any) -> Any:
    def replay(self: Any, *args: Any) -> None:
        kind = type(self.state)
        apply_pending = kind.apply_pending
        kind.apply_pending = nothing
        try:
            real(self, *args)
        finally:
            kind.apply_pending = apply_pending

    return replay


def unsynced(real: Any) -> Any:
    return lambda self, name, sync: real(self, name, sync=False)


def without_directories(real: Any) -> Any:
    return lambda files, barriers, *args: real(
        files, [each._replace(directories=()) for each in barriers], *args
    )


def with_later(**changes: Any) -> Callable[[Any], Any]:
    """Return what `real` returns, with these fields of a marker changed before."""
    return lambda real: (
        lambda self, log, partition, marker, now_ms: real(
            self, log, partition, marker._replace(**changes), now_ms
        )
    )


def one_marker_back(real: Any) -> Any:
    def work_due(txn: Any, *args: Any) -> Any:
        return None

    return work_due


async def true() -> bool:
    return True


def measured(recovery: Any, segments: list[Any], result: Any) -> Any:
    yield from ()
    if segments:
        recovery._measure(segments[-1], result)
    return segments


def admitting_half_logins(real: Any) -> Any:
    def admit(self: Any, api_key: int, now_ms: int) -> None:
        if self._login is None:
            real(self, api_key, now_ms)

    return admit


def once_allowed(real: Any) -> Any:
    allowed = set()

    def require(services: Any, context: Any, *what: Any) -> None:
        if (context.principal, what) not in allowed:
            real(services, context, *what)
            allowed.add((context.principal, what))

    return require


def refused_and_done(real: Any) -> Any:
    def guarded(handler: Any, *needs: Any) -> Any:
        handle = real(handler, *needs)

        def answer(services: Any, request: Any, context: Any) -> Any:
            try:
                return handle(services, request, context)
            except KafkaError:
                handled = handler(services, request, context)
                if asyncio.iscoroutine(handled):
                    task = asyncio.ensure_future(handled)
                    task.add_done_callback(lambda done: done.cancelled() or done.exception())
                raise

        return answer

    return guarded
