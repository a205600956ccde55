"""AlterUserScramCredentials (API key 51): add, change and remove users of SCRAM (KIP-554).

Version 0.

The client sends the salted password, never the password. A user may be named once in a request,
whatever the mechanisms. If the first change of a user can be made, and there is a second, the user
is told DUPLICATE_RESOURCE, and neither is made; otherwise what is wrong with the first. A request
of more than 10,000 changes is refused as a whole.
"""

from __future__ import annotations

from collections import Counter

from magnetar.apis.authorization import Whole
from magnetar.apis.refusals import refused_in
from magnetar.apis.registry import handles
from magnetar.apis.request_changes import check_changes
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from magnetar.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    MECHANISM_IDS,
    SALT_BYTES_MAX,
    credential,
)
from magnetar.storage.scram_credentials import Credentials, ScramCredentials
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

Change = ScramCredentialDeletion | ScramCredentialUpsertion

#: Users in one commit: at some tens of microseconds each, they take a few milliseconds.
_PIECE = 32


def _refuse(
    request: AlterUserScramCredentialsRequest, version: int, error: KafkaError
) -> AlterUserScramCredentialsResponse:
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(
                user=name, error_code=error.code, error_message=error.detail or None
            )
            for name in {change.name: None for change in _changes(request)}
        ]
    )


def _changes(request: AlterUserScramCredentialsRequest) -> list[Change]:
    return [*request.deletions, *request.upsertions]


@handles(
    AlterUserScramCredentialsRequest,
    versions="0",
    refuse=_refuse,
    needs=[Whole([Operation.ALTER], Resource.CLUSTER)],
    changes_catalog=True,
)
async def alter_user_scram_credentials(
    services: Services, request: AlterUserScramCredentialsRequest, context: RequestContext
) -> AlterUserScramCredentialsResponse:
    changes = _changes(request)
    check_changes(len(changes))
    named = Counter(change.name for change in changes)
    users = services.authentication.credentials
    results: dict[str, AlterUserScramCredentialsResult] = {}
    # One commit for each piece: one for each user would take long for many.
    async for piece in services.turns.pieces(changes, _PIECE):
        replaced: dict[str, Credentials] = {}
        for change in piece:
            if change.name in results:
                continue
            result = AlterUserScramCredentialsResult(user=change.name, error_message=None)
            results[change.name] = result
            with refused_in(result):
                credentials = _changed(users, change)
                if named[change.name] > 1:
                    raise KafkaError(
                        ErrorCode.DUPLICATE_RESOURCE,
                        "A user credential cannot be altered twice in the same request",
                    )
                if credentials:
                    users.check_room(change.name, [each for each in replaced if replaced[each]])
                replaced[change.name] = credentials
        if replaced:
            users.replace(replaced)
    return AlterUserScramCredentialsResponse(results=list(results.values()))


def _changed(users: ScramCredentials, change: Change) -> Credentials:
    """Return the user's credentials after a change. Raises KafkaError."""
    if not change.name:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    mechanism = MECHANISM_IDS.get(change.mechanism)
    if mechanism is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    credentials = dict(users.of(change.name))
    if isinstance(change, ScramCredentialDeletion):
        if credentials.pop(mechanism, None) is None:
            raise KafkaError(
                ErrorCode.RESOURCE_NOT_FOUND,
                "Attempt to delete a user credential that does not exist",
            )
        return credentials
    if change.iterations > ITERATIONS_MAX:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if change.iterations < ITERATIONS_MIN:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    # Its keys would be known to all. Kafka's controller fails over it: UNKNOWN_SERVER_ERROR.
    if not change.salted_password:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Salted password must not be empty")
    if max(len(change.salt), len(change.salted_password)) > SALT_BYTES_MAX:
        raise KafkaError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"Salt and salted password have {SALT_BYTES_MAX} bytes at most",
        )
    credentials[mechanism] = credential(
        mechanism, bytes(change.salt), change.iterations, bytes(change.salted_password)
    )
    return credentials
