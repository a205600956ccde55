"""Refusals of a request, or of single things in it: how they are answered and logged.

There is one line a second for each API and error code, with the number of those left out: a client
that repeats a mistake must not fill the disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import UUID

from magnetar.logging import get_logger, shown
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from wire.api import API_NAMES
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.message import Message

INTERVAL_MS = 1_000
#: Ids that a client chooses: one may have 32 KB.
_CLIENTS_IDS = ("transactional_id", "group_id")

#: Refusals in the ordinary course of a protocol, logged as retriable ones are.
_ROUTINE = frozenset(
    {
        ErrorCode.MEMBER_ID_REQUIRED,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
    }
)

_log = get_logger("server")

#: (API key, error code) -> when a line was written, and how many were left out since. Bounded by
#: the numbers of APIs and of error codes: no client can make it grow.
_written: dict[tuple[int, ErrorCode], tuple[int, int]] = {}


@contextmanager
def refused_in(result: Any) -> Iterator[None]:
    """Put a KafkaError that the block raises into `result`: its code, and its detail for people."""
    try:
        yield
    except KafkaError as refusal:
        result.error_code = refusal.code
        if hasattr(result, "error_message"):
            result.error_message = refusal.detail or None


def log_refused_request(
    services: Services, context: RequestContext, request: Message, refusal: KafkaError
) -> None:
    """Log that a whole request is refused, with the transaction and the group that it names."""
    fields = {name: getattr(request, name) for name in _CLIENTS_IDS if hasattr(request, name)}
    log_refusal(services, context, refusal, **fields)


def log_refusal(
    services: Services,
    context: RequestContext,
    refusal: KafkaError,
    *,
    transactional_id: str | None = None,
    **fields: object,
) -> None:
    """Count one refusal; log its client, transactional id, TxnId and `fields`.

    A `topic` that the client names by its id is shown by its name.
    Retriable refusals are the ordinary course of things and shown at debug only.
    """
    services.refusals.add(context.api_key, refusal.code)
    is_routine = refusal.code.retriable or refusal.code in _ROUTINE
    write = _log.debug if is_routine else _log.info
    kind = (context.api_key, refusal.code)
    written_ms, left_out = _written.get(kind, (0, 0))
    # A clock that was set back must not silence the line until it has caught up.
    if 0 <= context.now_ms - written_ms < INTERVAL_MS:
        _written[kind] = (written_ms, left_out + 1)
        return
    _written[kind] = (context.now_ms, 0)
    if left_out:
        fields["left_out"] = left_out
    if transactional_id is not None:
        txn = None
        # Raises if another node coordinates the transaction: this node knows only its name.
        with suppress(KafkaError):
            txn = services.transactions.find(transactional_id)
        fields["transactional_id"] = transactional_id
        fields["txn_id"] = None if txn is None or txn.txn_id is None else str(txn.txn_id)
    if isinstance(topic := fields.get("topic"), UUID):
        found = services.topics.by_id(topic)
        fields["topic"] = str(topic) if found is None else found.name
    for name in (*_CLIENTS_IDS, "topic"):
        if isinstance(value := fields.get(name), str):
            fields[name] = shown(value)
    write(
        "refused",
        api=API_NAMES[context.api_key],
        version=context.version,
        **context.described(),
        error=str(refusal),
        **fields,
    )
