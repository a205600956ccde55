"""TxnId: the 128-bit name of one transaction, never reused (the idea is Pulsar's TxnID).

Kafka names a transaction by its transactional id, which is every transaction of that producer. This
one goes into logs, the CLI and metrics, and is the same from the first partition added to the end,
also when the end fences the producer's epoch.

    bits 127-112  partition of `__transaction_state` that coordinates it
    bits 111-96   producer epoch at its begin
    bits  95-64   count of transactions within that epoch, from 0
    bits  63-0    producer id
"""

from __future__ import annotations

from dataclasses import dataclass

COUNT_MAX = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class TxnId:
    """One transaction."""

    coordinator_partition: int
    producer_epoch: int
    count: int
    producer_id: int

    def to_bytes(self) -> bytes:
        """Return the 16 bytes, most significant first."""
        high = self.coordinator_partition << 48 | self.producer_epoch << 32 | self.count
        return (high << 64 | self.producer_id).to_bytes(16, "big")

    @classmethod
    def from_bytes(cls, value: bytes) -> TxnId:
        """Return the id that `to_bytes` made the 16 bytes of `value` of."""
        bits = int.from_bytes(value, "big")
        return cls(
            coordinator_partition=bits >> 112,
            producer_epoch=bits >> 96 & 0xFFFF,
            count=bits >> 64 & COUNT_MAX,
            producer_id=bits & 0xFFFF_FFFF_FFFF_FFFF,
        )

    def __str__(self) -> str:
        return (
            f"{self.coordinator_partition:04x}-{self.producer_epoch:04x}"
            f"-{self.count:08x}-{self.producer_id:016x}"
        )
