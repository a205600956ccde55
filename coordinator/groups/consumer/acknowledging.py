"""Whether members know what they have: told again what they never said that they own.

An answer carries the assignment only where it has changed, and the only one that does may be lost:
librdkafka gives a heartbeat up that takes long, and asks again without saying what it owns, as
KIP-848 has it do. In Apache Kafka such a member's new partitions are then read by nobody. Here
it is told again until a heartbeat names exactly what it has. To be told twice changes nothing for
a client, so one that is slow to take partitions over may be told too often.

Nothing here is in the log: after a start every client says all it knows, and is told everything.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.groups.consumer.exchange import HeartbeatAnswer, HeartbeatRequest
from coordinator.groups.consumer.partitions import Assigned, as_target

#: A client reads the answer of one heartbeat, and says what it owns with the next.
HEARTBEATS_UNTIL_AGAIN = 3


class Acknowledging:
    """The members of one group that have been told of partitions and not said that they own them.

    At most one entry for each member; `forget` those that go.
    """

    __slots__ = ("_told_at_ms",)

    def __init__(self) -> None:
        self._told_at_ms: dict[str, int] = {}

    def answered(
        self, request: HeartbeatRequest, answer: HeartbeatAnswer, assigned: Assigned, now_ms: int
    ) -> HeartbeatAnswer:
        """Return what to answer to the request of a member that has `assigned` now: `answer`, with
        the assignment if it is time to tell that again. O(partitions) only where it says or is told
        something.
        """
        member_id = answer.member_id
        if request.owned is not None and request.owned == as_target(assigned):
            self._told_at_ms.pop(member_id, None)
            return answer
        if answer.assignment is None:
            told_at_ms = self._told_at_ms.get(member_id)
            patience_ms = HEARTBEATS_UNTIL_AGAIN * answer.heartbeat_interval_ms
            if told_at_ms is None or now_ms - told_at_ms < patience_ms:
                return answer
            answer = replace(answer, assignment=assigned)
        self._told_at_ms[member_id] = now_ms
        return answer

    def forget(self, member_id: str) -> None:
        self._told_at_ms.pop(member_id, None)
