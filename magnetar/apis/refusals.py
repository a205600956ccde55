"""Log lines about refusals that a response carries per transaction, group or partition.

What is refused as a whole the dispatcher logs. One line a second for each API and error code, with
how many were left out: a client that repeats a mistake must not fill the disk.
"""

from __future__ import annotations

from functools import cache

from magnetar.apis.registry import load_apis
from magnetar.logging import get_logger
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from wire.error_code import ErrorCode
from wire.errors import KafkaError

INTERVAL_MS = 1_000

_log = get_logger("server")

#: (API key, error code) -> when a line was written, and how many were left out since.
_written: dict[tuple[int, ErrorCode], tuple[int, int]] = {}


def log_refusal(
    services: Services,
    context: RequestContext,
    refusal: KafkaError,
    *,
    transactional_id: str | None = None,
    **fields: object,
) -> None:
    """Say who was refused what: client, address, transactional id, TxnId, and `fields`.

    Retriable refusals are the ordinary course of things and shown at debug only.
    """
    write = _log.debug if refusal.code.retriable else _log.info
    kind = (context.api_key, refusal.code)
    written_ms, left_out = _written.get(kind, (0, 0))
    if 0 <= context.now_ms - written_ms < INTERVAL_MS:
        _written[kind] = (written_ms, left_out + 1)
        return
    _written[kind] = (context.now_ms, 0)
    if left_out:
        fields["left_out"] = left_out
    if transactional_id is not None:
        txn = services.transactions.find(transactional_id)
        fields["transactional_id"] = transactional_id[:200]
        fields["txn_id"] = None if txn is None or txn.txn_id is None else str(txn.txn_id)
    write(
        "refused",
        api=_api_names()[context.api_key],
        version=context.version,
        client_id=context.client_id,
        client_address=context.client_address,
        error=str(refusal),
        **fields,
    )


@cache
def _api_names() -> dict[int, str]:
    return {key: api.name for key, api in load_apis().items()}
