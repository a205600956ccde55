"""Which records of a batch a Produce has refused, and why, as its answer says it (KIP-467)."""

from __future__ import annotations

from wire.error_code import ErrorCode
from wire.errors import RecordsRefused
from wire.messages.produce import BatchIndexAndErrorMessage, PartitionProduceResponse


def name_records(
    answer: PartitionProduceResponse, refusal: RecordsRefused, partition: str, count_max: int
) -> None:
    """Say which records were refused, `count_max` at most, and why, in Kafka's words (KIP-467)."""
    flaws = [(index, reason.replace("{partition}", partition)) for index, reason in refusal.flaws]
    answer.record_errors = [
        BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=reason)
        for index, reason in flaws[:count_max]
    ]
    if refusal.code is ErrorCode.INVALID_TIMESTAMP:
        answer.error_message = "One or more records have been rejected due to invalid timestamp"
        return
    first = ", ".join(
        f"RecordError(batchIndex={index}, message='{reason}')" for index, reason in flaws[:3]
    )
    answer.error_message = (
        f"One or more records have been rejected due to {refusal.count} record errors"
        f" in total, and only showing the first three errors at most: [{first}]"
    )
