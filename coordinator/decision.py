"""What a pure rule decides: the records to append, and the answer to give.

`decide(state, request, now_ms) -> Decision`. A rule that refuses raises `KafkaError(code, detail)`,
and nothing has happened. The runtime (`magnetar/runtime/shard.py`) appends the records to the
shard's log and applies them in the same step, waits until they are durable, and only then answers.
Applying records is the only way in which state changes. Replay applies the same records.

What the world still owes (markers, deadlines, answers to others) is derived from the state that the
records lead to, not from the decision: so a restart asks the same question and finds the same work.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

RecordT = TypeVar("RecordT")
AnswerT = TypeVar("AnswerT", covariant=True)


class Urgency(Enum):
    """When appended records have to be durable."""

    AWAITED = auto()
    """An answer waits: sync them as soon as the disk is free."""
    RELAXED = auto()
    """No answer waits yet: they ride the next sync, or have one of their own within 50 ms."""
    ONE_RECORD = auto()
    """All or nothing with everything else that the same step appends so, to whichever logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Generic[RecordT, AnswerT]):
    """What carries out a request."""

    records: tuple[RecordT, ...] = ()
    """Each is the whole new value of its key, in log order. Empty where the request is carried out
    already: the answer still waits until the log's end at the time of the decision is durable,
    since what the answer rests on may not be durable yet."""
    answer: AnswerT
    """What the client is told once the records are durable."""
