"""What a node remembers of transactions whose coordinator is another node.

A partition takes transactional data only if the coordinator holds it in the producer's transaction.
Where the coordinator is another node, the leader of the partition asks before the first batch, and
remembers the answer until the transaction's marker arrives: the coordinator sends one to every
partition that it holds, so what was answered holds until then. Nothing is lost by forgetting: the
leader asks again. The coordinator may answer more than it was asked.

A marker may arrive between the question and the answer. Then the answer is about a transaction that
has ended, and data appended on its strength would hang. So a question is a `Question`, which a
marker of that producer makes void for that partition. Kafka calls the same a verification guard
(KIP-890).
"""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.transactions.metadata import TopicPartition


class Question:
    """One question to a coordinator, about what a producer's transaction holds."""

    __slots__ = ("producer_epoch", "producer_id", "transactional_id", "void")

    def __init__(self, transactional_id: str, producer_id: int, producer_epoch: int) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        #: The partitions that got a marker of the producer since the question was asked.
        self.void: set[TopicPartition] = set()


class RememberedHolds:
    """The partitions of this node that transactions coordinated elsewhere hold."""

    __slots__ = ("_asked", "_held", "_producers")

    def __init__(self) -> None:
        #: By producer id: its epoch, the partitions that its transaction holds, and the
        #: transactional id: a request that names another one has no rights to the transaction.
        self._held: dict[int, tuple[int, set[TopicPartition], str]] = {}
        #: The producers whose transactions hold a partition, so that one that goes finds them.
        self._producers: dict[TopicPartition, set[int]] = {}
        #: By producer id: the questions that have no answer yet.
        self._asked: dict[int, list[Question]] = {}

    def __len__(self) -> int:
        """The number of producers about which something is remembered or asked."""
        return len(self._held.keys() | self._asked.keys())

    def holds(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        partition: TopicPartition,
    ) -> bool:
        """Return whether the id's transaction, of this producer and epoch, is known to hold
        `partition`."""
        held = self._held.get(producer_id)
        return (
            held is not None
            and held[0] == producer_epoch
            and partition in held[1]
            and held[2] == transactional_id
        )

    def ask(self, transactional_id: str, producer_id: int, producer_epoch: int) -> Question:
        """Begin a question. It ends with `answered`, whatever becomes of it."""
        question = Question(transactional_id, producer_id, producer_epoch)
        self._asked.setdefault(producer_id, []).append(question)
        return question

    def answered(self, question: Question, held: Iterable[TopicPartition] = ()) -> None:
        """End a question; remember those of `held` that got no marker meanwhile.

        `held` are partitions of this node: no other gets the marker that makes it forget them.
        """
        producer_id, epoch = question.producer_id, question.producer_epoch
        asked = self._asked[producer_id]
        asked.remove(question)
        if not asked:
            del self._asked[producer_id]
        self.told(question.transactional_id, producer_id, epoch, set(held) - question.void)

    def told(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        held: set[TopicPartition],
    ) -> None:
        """Remember what a coordinator has said by itself.

        `held` as in `answered`. Call it in order with the coordinator's markers: what was said
        before a marker, and is heard after it, is about a transaction that has ended.
        """
        if not held:
            return
        known = self._held.get(producer_id)
        if known is not None and known[0] < producer_epoch:
            for partition in [*known[1]]:
                self._forget(producer_id, partition)
            known = None
        if known is None:
            self._held[producer_id] = (producer_epoch, held, transactional_id)
        elif known[0] == producer_epoch:
            known[1].update(held)
        else:
            return
        for partition in held:
            self._producers.setdefault(partition, set()).add(producer_id)

    def on_marker(self, producer_id: int, partition: TopicPartition) -> None:
        """A marker of the producer is in `partition`: its transaction is over there."""
        for question in self._asked.get(producer_id, ()):
            question.void.add(partition)
        if producer_id in self._producers.get(partition, ()):
            self._forget(producer_id, partition)

    def forget_partition(self, partition: TopicPartition) -> None:
        """This node leads the partition no more: it is gone, or its markers go to another node."""
        for questions in self._asked.values():
            for question in questions:
                question.void.add(partition)
        for producer_id in [*self._producers.get(partition, ())]:
            self._forget(producer_id, partition)

    def _forget(self, producer_id: int, partition: TopicPartition) -> None:
        """Forget that the producer's transaction holds the partition, which it does."""
        partitions = self._held[producer_id][1]
        partitions.remove(partition)
        if not partitions:
            del self._held[producer_id]
        producers = self._producers[partition]
        producers.remove(producer_id)
        if not producers:
            del self._producers[partition]
