"""Markers of a former coordinator, kept out where its successor has found nothing to end.

A shard of the coordinator may move to another node, which drives again what was decided there. A
partition that has its marker already gets no second one. Under transaction version 1 the producer
may then begin its next transaction at the same epoch, and a copy of the marker that the former
coordinator has sent may arrive later still: it would end that transaction. So the partition's node
remembers the coordinator epoch of the successor's question, which is higher. A marker that is
written carries that epoch in the log; this is for those that are not written.

In memory only: what was under way to a node when it ended does not arrive at its next start. Under
version 2 each transaction has an epoch of its own, and the log refuses the late copy.
"""

from __future__ import annotations

#: Producers that are remembered. The copies are seconds late, not hours.
REMEMBERED_MAX = 100_000


class CoordinatorFences:
    """The coordinator epochs below which markers of a producer are refused."""

    __slots__ = ("_epochs",)

    def __init__(self) -> None:
        self._epochs: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._epochs)

    def raise_to(self, producer_id: int, coordinator_epoch: int) -> None:
        """Refuse what an earlier coordinator of the producer sends from now on."""
        known = self._epochs.pop(producer_id, -1)
        # Anew at the end: the first entry is always the oldest.
        self._epochs[producer_id] = max(known, coordinator_epoch)
        if len(self._epochs) > REMEMBERED_MAX:
            del self._epochs[next(iter(self._epochs))]

    def is_fenced(self, producer_id: int, coordinator_epoch: int) -> bool:
        """Return whether a later coordinator of the producer has asked already."""
        return coordinator_epoch < self._epochs.get(producer_id, -1)
