"""What a pure rule hands back: the records that make it so, and what the client will hear.

`decide(state, request, now_ms) -> Decision`: a refusal raises `KafkaError(code, detail)` and
nothing has happened. The runtime appends the records to the shard's log and applies them at once,
waits until they are durable, and only then answers. Applying the records is the only way in which
state changes; replay applies the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

RecordT = TypeVar("RecordT")
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class Decision(Generic[RecordT]):
    """The records that carry out a request, each the whole new value of its key, in log order.

    Empty where the request is already carried out: the answer still waits until the log's end at
    the time of the decision is durable, since what it rests on may not be yet.
    """

    records: tuple[RecordT, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered(Decision[RecordT], Generic[RecordT, AnswerT]):
    """A decision whose answer is not plain from the state that its records lead to."""

    answer: AnswerT
