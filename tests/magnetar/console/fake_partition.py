"""The log of one partition of the fake cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from wire.records import SimpleRecord, build_batch, build_marker


@dataclass
class Partition:
    """A log of batches; `open` are the producers with an open transaction, by first offset."""

    log: bytearray = field(default_factory=bytearray)
    end: int = 0
    open: dict[int, int] = field(default_factory=dict)
    aborted: list[tuple[int, int]] = field(default_factory=list)

    @property
    def stable(self) -> int:
        return min(self.open.values(), default=self.end)

    def write(self, *values: bytes | None, producer_id: int = -1, **fields: Any) -> None:
        """Append a batch; with a producer id it belongs to its transaction."""
        if producer_id >= 0:
            self.open.setdefault(producer_id, self.end)
        self.log += build_batch(
            [
                SimpleRecord(fields.get("key"), value, 60_000, fields.get("headers", ()))
                for value in values
            ],
            base_offset=self.end,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=0 if producer_id >= 0 else -1,
            is_transactional=producer_id >= 0,
        )
        self.end += len(values)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        first = self.open.pop(producer_id)
        if not commit:
            self.aborted.append((producer_id, first))
        self.log += build_marker(
            base_offset=self.end,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            commit=commit,
            timestamp_ms=60_000,
        )
        self.end += 1
