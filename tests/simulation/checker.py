"""The judge of a history: what Kafka promises its clients, checked against what they saw. Pure.

Each rule yields witnesses, sentences that begin with a word for the anomaly:

    lost        acknowledged, and not where the broker said, though nothing has deleted it
    duplicated  an idempotent producer's record is in a partition twice
    reordered   two records of one producer are there in the other order than they were sent in
    changed     an offset holds one record, and another at another time
    skipped     a reader went past a record that is there
    dirty read  a read_committed reader saw a record that no reader finds at the end
    back        a watermark that was told is higher than one that was asked for later
    stale       a fetch begun after an acknowledgement ends before the record
    owned twice a member is told that a partition is its own while another has it still
    untrimmed   a deletion of records was acknowledged, and records below it came back
    cycle       one transaction ended before another began, or was read by it, and stands behind it
    unsettled   at the end the stable offset, or the high watermark, is not the end of the log

What a disk has lost that lied is the business of `damage`, not of these rules.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import combinations

from coordinator.transactions.metadata import TopicPartition
from tests.simulation.history import Outcome, Transaction
from tests.simulation.observations import Fetched, Observations, Seen, Sent

#: Partitions whose records may go by themselves: compacted, or kept only for a while.
Kept = dict[str, str]


def judge(seen: Observations, kept: Kept) -> list[str]:
    """Return everything that is wrong. `kept`: `compact` or `retained`, by topic; else for ever."""
    by_partition: dict[TopicPartition, list[Fetched]] = defaultdict(list)
    for one in seen.fetched:
        by_partition[one.partition].append(one)
    return [
        *seen.witnesses,
        *_lost(seen, kept),
        *_duplicated(seen),
        *_reordered(seen),
        *_changed(seen),
        *_skipped(seen, kept),
        *(found for partition, told in by_partition.items() for found in _back(partition, told)),
        *_stale(seen, by_partition),
        *_untrimmed(seen, by_partition),
        *_lost_commits(seen),
        *_owned_twice(seen),
        *_cycles(seen),
    ]


def _final(seen: Observations, partition: TopicPartition) -> list[Seen]:
    return seen.final.get((partition, True), [])


def _first_kept(seen: Observations, partition: TopicPartition, kept: Kept) -> int:
    """Return from which offset on everything must be there: deletions before it were asked for."""
    if kept.get(partition.topic) == "retained":
        return max(one.log_start_offset for one in seen.fetched if one.partition == partition)
    asked = [one.before_offset for one in seen.trimmed if one.partition == partition]
    return max(asked, default=0)


def _lost(seen: Observations, kept: Kept) -> Iterator[str]:
    starts = {one.partition: 0 for one in seen.sent}
    starts = {partition: _first_kept(seen, partition, kept) for partition in starts}
    there = {
        partition: {one.offset: one for one in _final(seen, partition)} for partition in starts
    }
    last = {
        partition: {one.key: one.offset for one in _final(seen, partition)} for partition in starts
    }
    newest: dict[tuple[TopicPartition, str], int] = {}
    #: The last tombstone of a key that may have been appended, though its producer heard no answer:
    #: it may be gone itself, with all that was before. A key has one producer.
    erased: dict[tuple[TopicPartition, str], int] = {}
    for one in seen.sent:
        key = one.partition, one.key
        if one.offset >= 0:
            newest[key] = max(newest.get(key, -1), one.offset)
        elif one.value is None and not one.is_refused:
            erased[key] = one.number
    for one in seen.sent:
        if one.offset < starts[one.partition] or one.offset < 0:
            continue
        found = there[one.partition].get(one.offset)
        if found is None and kept.get(one.partition.topic) == "compact":
            # Gone for a newer record of its key, or it is a tombstone.
            newer = last[one.partition].get(one.key, -1) > one.offset
            if newer or one.value is None or newest[one.partition, one.key] > one.offset:
                continue
            if erased.get((one.partition, one.key), -1) > one.number:
                continue
        if found is None or (found.key, found.value) != (one.key, one.value):
            yield f"lost: {one.value} was acknowledged at {one.partition} {one.offset}: {found}"


def _duplicated(seen: Observations) -> Iterator[str]:
    for (partition, is_committed), records in seen.final.items():
        if not is_committed:
            continue
        for value, count in Counter(one.value for one in records if one.value is not None).items():
            if count > 1:
                yield f"duplicated: {value} is {count} times in {partition}"


def _reordered(seen: Observations) -> Iterator[str]:
    numbers = {one.value: (one.producer, one.number) for one in seen.sent if one.value is not None}
    for (partition, is_committed), records in seen.final.items():
        if not is_committed:
            continue
        last: dict[str, int] = {}
        for one in records:
            if one.value in numbers:
                producer, number = numbers[one.value]
                if number < last.get(producer, 0):
                    yield f"reordered: {one.value} is behind {last[producer]} in {partition}"
                last[producer] = number


def _changed(seen: Observations) -> Iterator[str]:
    """Records that were visible, or are, at the same offset."""
    known: dict[tuple[TopicPartition, int], tuple[str, Seen]] = {}
    readings = [(one.reader, one.partition, one.records) for one in seen.fetched]
    readings += [("the end", each[0], tuple(records)) for each, records in seen.final.items()]
    for reader, partition, records in readings:
        for one in records:
            before = known.setdefault((partition, one.offset), (reader, one))
            if before[1] != one:
                yield f"changed: {partition}: {before[0]} saw {before[1]}, {reader} saw {one}"


def _skipped(seen: Observations, kept: Kept) -> Iterator[str]:
    """What each reader saw is what is there at the end, of the offsets that it went over."""
    offsets = {key: [one.offset for one in records] for key, records in seen.final.items()}
    partitions = dict.fromkeys(one.partition for one in seen.fetched)
    trimmed = {partition: _first_kept(seen, partition, kept) for partition in partitions}
    for one in seen.fetched:
        key = one.partition, one.is_committed
        found = offsets.get(key, [])
        start = max(one.from_offset, trimmed[one.partition])
        expected = found[bisect_left(found, start) : bisect_left(found, one.next_offset)]
        told = [record.offset for record in one.records if record.offset >= start]
        if missing := sorted(set(expected) - set(told)):
            yield f"skipped: {one.reader} read {one.partition} past {missing}"
        gone = sorted(set(told) - set(expected))
        if gone and one.partition.topic not in kept:
            word = "dirty read" if one.is_committed else "vanished"
            yield f"{word}: {one.reader} saw {gone} in {one.partition}, and they are not there"


def _back(partition: TopicPartition, told: Iterable[Fetched]) -> Iterator[str]:
    """No watermark is lower than one that was told before it was asked for."""
    by_told = sorted(told, key=lambda one: one.told_s)
    by_asked = sorted(by_told, key=lambda one: one.asked_s)
    for name in ("high_watermark", "last_stable_offset", "log_start_offset"):
        highest, reached = -1, 0
        for one in by_asked:
            while by_told[reached].told_s < one.asked_s:
                highest = max(highest, getattr(by_told[reached], name))
                reached += 1
            if getattr(one, name) < highest:
                yield f"back: {name} of {partition} is {getattr(one, name)} after {highest}"
                return


def _stale(seen: Observations, by_partition: dict[TopicPartition, list[Fetched]]) -> Iterator[str]:
    acknowledged: dict[TopicPartition, list[Sent]] = defaultdict(list)
    for one in seen.sent:
        if one.offset >= 0:
            acknowledged[one.partition].append(one)
    for partition, sent in acknowledged.items():
        sent.sort(key=lambda one: one.told_s)
        highest, reached = -1, 0
        for fetched in sorted(by_partition[partition], key=lambda one: one.asked_s):
            while reached < len(sent) and sent[reached].told_s < fetched.asked_s:
                highest = max(highest, sent[reached].offset)
                reached += 1
            if fetched.high_watermark <= highest:
                yield (
                    f"stale: {fetched.reader} was told that {partition} ends at"
                    f" {fetched.high_watermark}, and {highest} was acknowledged before"
                )
                break


def _untrimmed(
    seen: Observations, by_partition: dict[TopicPartition, list[Fetched]]
) -> Iterator[str]:
    for trim in seen.trimmed:
        for one in by_partition[trim.partition]:
            if one.asked_s > trim.told_s and one.log_start_offset < trim.low_watermark:
                yield (
                    f"untrimmed: {trim.partition} starts at {one.log_start_offset} after"
                    f" {trim.low_watermark} was acknowledged"
                )
                break


def _lost_commits(seen: Observations) -> Iterator[str]:
    """Offsets of a group never go back: each member begins where the last one has committed, and
    none commits any more when another one has."""
    by_key = defaultdict(list)
    for one in seen.committed:
        by_key[one.group_id, one.partition].append(one)
    for (group_id, partition), told in by_key.items():
        for later in told:
            before = [one.offset for one in told if one.told_s < later.asked_s]
            if before and later.offset < max(before):
                yield (
                    f"lost commit: {group_id} is at {later.offset} of {partition} after"
                    f" {max(before)}"
                )
                break


def _owned_twice(seen: Observations) -> Iterator[str]:
    """A partition is given to a member when the one before has given it back, or is none any more.

    One that is answered as the owner later on was the owner all the time.
    """
    by_key = defaultdict(list)
    for one in seen.owned:
        by_key[one.group_id, one.partition].append(one)
    for (group_id, partition), owned in by_key.items():
        for before, after in combinations(sorted(owned, key=lambda one: one.since_s), 2):
            if before.since_s < after.since_s < before.confirmed_s:
                yield (
                    f"owned twice: {after.member} got {partition} of {group_id} at {after.since_s},"
                    f" {before.member} had it still at {before.confirmed_s}"
                )
                break


def _cycles(seen: Observations) -> Iterator[str]:
    """Transactions stand in the order of time in every partition that they share."""
    offsets: dict[str, tuple[TopicPartition, int]] = {
        one.value: (partition, one.offset)
        for (partition, is_committed), records in seen.final.items()
        if is_committed
        for one in records
        if one.value is not None
    }
    spans: dict[str, dict[TopicPartition, tuple[int, int]]] = {}
    for one in seen.history.transactions:
        spans[one.name] = _span(one, offsets)
    committed = [one for one in seen.history.transactions if one.outcome is Outcome.COMMITTED]
    committed.sort(key=lambda one: one.ended_s)
    for later in seen.history.transactions:
        for earlier in committed:
            if earlier.ended_s >= later.began_s:
                break
            for partition, (first, _) in spans[later.name].items():
                _, last = spans[earlier.name].get(partition, (-1, -1))
                if last > first:
                    yield (
                        f"cycle: {earlier.name} had ended when {later.name} began, and is behind"
                        f" it in {partition}"
                    )


def _span(
    one: Transaction, offsets: dict[str, tuple[TopicPartition, int]]
) -> dict[TopicPartition, tuple[int, int]]:
    span: dict[TopicPartition, tuple[int, int]] = {}
    for partition, values in one.values.items():
        found = [offsets[value][1] for value in values if value in offsets]
        if found:
            span[partition] = min(found), max(found)
    return span
