"""What a start reads to its end is whole, or the start ends and names the file and the place."""

from __future__ import annotations

import pytest

from logstore.segments.file_ledger import FileLedger
from logstore.segments.ledger import DamagedLog
from tests.logstore.segments.test_ledger_recovery import DIRECTORY, Disk

FIRST = "00000000000000000000.log"


def closed(disk: Disk) -> FileLedger:
    """Return a ledger that trusts its files, as after a clean stop: nothing is scanned."""
    ledger, _ = disk.filled()
    ledger.close()
    return disk.open(clean=True)


def offsets(ledger: FileLedger, first: int = 0) -> list[int]:
    return [header.base_offset for header, _ in ledger.batches.iterate(first)]


def second_batch(disk: Disk) -> int:
    """Return where the second batch of the first segment begins."""
    file = disk.disk.open(f"{DIRECTORY}/{FIRST}")
    return 12 + int.from_bytes(file.read(4, 8), "big")


def test_a_whole_log_is_read_to_its_end() -> None:
    ledger = closed(Disk())
    assert offsets(ledger) == list(range(ledger.end_offset))
    assert offsets(ledger, 7) == list(range(7, ledger.end_offset))


@pytest.mark.parametrize(
    ("within", "data"),
    [
        (0, (0).to_bytes(8, "big")),  # its offset, which no CRC covers
        (8, bytes(4)),  # its length
        (16, b"\1"),  # its magic
        (0, bytes(60)),  # a write that the disk has lost
        (65, b"\xff"),  # a record
    ],
)
def test_a_batch_that_is_not_what_was_written_ends_the_reading(within: int, data: bytes) -> None:
    disk = Disk()
    ledger = closed(disk)
    position = second_batch(disk)
    disk.edit(FIRST, position + within, data)
    with pytest.raises(DamagedLog, match=rf"{FIRST}: .* at byte {position}: .*magnetar check"):
        offsets(ledger)


def test_an_index_that_lies_hides_no_batch() -> None:
    disk = Disk()
    ledger = closed(disk)
    expected = offsets(ledger, 5)
    ledger.close()
    index = FIRST.replace(".log", ".index")
    assert disk.size(index)
    # The first entry: the offset 1, at a byte where no batch begins; then, where a later one does.
    for entry in ((1, 3), (1, 5 * second_batch(disk))):
        disk.edit(index, 0, b"".join(number.to_bytes(4, "big") for number in entry))
        ledger = disk.open(clean=True)
        assert offsets(ledger, 5) == expected
        ledger.close()
