"""Error codes are Kafka's, and so is which of them clients try again after."""

from __future__ import annotations

from kio.schema.errors import ErrorCode as KioErrorCode

from wire.error_code import ErrorCode

#: Of Kafka 4.4, which kio does not know.
NEWER = {
    134: ("GROUP_DELETION_FAILED", False),
    135: ("STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED", False),
    136: ("CONTROLLER_ID_NOT_REGISTERED", False),
}


def test_codes_names_and_retriability_are_kafkas() -> None:
    theirs = {int(code): (code.name.upper(), code.retriable) for code in KioErrorCode}
    assert {int(code): (code.name, code.retriable) for code in ErrorCode} == theirs | NEWER


def test_only_errors_are_retried() -> None:
    assert not ErrorCode.NONE.retriable
    assert not ErrorCode.UNKNOWN_SERVER_ERROR.retriable
    assert ErrorCode.NOT_COORDINATOR.retriable
