"""The journal: damaged, it is a reason not to start, or every byte that it gives is true.

An input is the number of batches that the log holds already (one byte), then the journal's file.
The journal's records hold the log's next batches, which are the same in every input. So what the
log holds after the replay must be a beginning of those.
"""

from __future__ import annotations

from functools import cache
from itertools import accumulate
from random import Random
from uuid import UUID

from logstore.directory.journal_replay import replay_journal
from logstore.sync.journal import GENERATION_BITS, JOURNAL, Entry, Journal, JournalDamaged
from tests.logstore.simulated_disk import SimulatedDisk
from tools.fuzz.mutations import mutated
from tools.fuzz.target import Target, judge
from wire.records import SimpleRecord, build_batch

_DIRECTORY = "/data"
_LOG = "t-0/00000000000000000000.log"
_TOPIC_ID = UUID(int=7)
_BATCHES = 12
#: A record of a real journal is never larger; larger ones than this only make the inputs slower.
_VALUE_BYTES = (0, 1, 30, 30, 300)


@cache
def _batches() -> list[bytes]:
    """Return the batches of the log."""
    return [
        bytes(
            build_batch(
                [SimpleRecord(b"k", b"v" * _VALUE_BYTES[number % len(_VALUE_BYTES)], 1_000)],
                base_offset=number,
            )
        )
        for number in range(_BATCHES)
    ]


@cache
def _positions() -> list[int]:
    return [0, *accumulate(map(len, _batches()))]


def _generate(random: Random) -> bytes:
    held = random.randrange(_BATCHES)
    disk = SimulatedDisk()
    disk.make_directory(_DIRECTORY)
    journal = Journal(disk, _DIRECTORY, random.getrandbits(GENERATION_BITS))
    next_batch = random.randrange(held + 1)
    for _ in range(random.randrange(6)):
        if random.random() < 0.1:
            journal.begin_round()
        entries = []
        for _ in range(random.randrange(1, 4)):
            if next_batch < _BATCHES:
                data, position = _batches()[next_batch], _positions()[next_batch]
                entries.append(Entry(_TOPIC_ID.bytes, _LOG, position, data))
                next_batch += 1
        if entries:
            journal.append(entries)
    data = journal.file.read(journal.size + random.choice((0, 0, 100)), 0)
    if random.random() < 0.8:
        data = mutated(random, data)
    return bytes((held,)) + data


def _run(given: bytes) -> None:
    if not given:
        return
    held, data = given[0] % (_BATCHES + 1), given[1:]
    disk = SimulatedDisk()
    for directory in (_DIRECTORY, f"{_DIRECTORY}/t-0"):
        disk.make_directory(directory)
    whole = b"".join(_batches())
    log = disk.open(f"{_DIRECTORY}/{_LOG}", create=True)
    log.write((whole[: _positions()[held]],), 0)
    disk.open(f"{_DIRECTORY}/{JOURNAL}", create=True).write((data,), 0)
    try:
        replay_journal(disk, _DIRECTORY, lambda _: _TOPIC_ID)
    except JournalDamaged:
        judge(log.size() == _positions()[held], "a damaged journal changes nothing")
        return
    once = log.read(log.size(), 0)
    judge(len(once) >= _positions()[held], "a replay takes nothing away")
    judge(whole.startswith(once), "a replay writes what was appended, and nothing else")
    replay_journal(disk, _DIRECTORY, lambda _: _TOPIC_ID)
    judge(log.read(log.size(), 0) == once, "a second replay changes nothing")


TARGET = Target("journal", _generate, _run)
