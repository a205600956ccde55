"""DescribeUserScramCredentials (API key 50): mechanisms and iterations of users (KIP-554).

Version 0.

No user named means all. Nothing secret is told.
"""

from __future__ import annotations

from collections import Counter

from magnetar.apis.authorization import Whole
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from magnetar.security.scram import MECHANISM_IDS
from magnetar.storage.scram_credentials import ScramCredentials
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


def _refuse(
    request: DescribeUserScramCredentialsRequest, version: int, error: KafkaError
) -> DescribeUserScramCredentialsResponse:
    """Refuse the request, and each user that it names."""
    message = error.detail or None
    return DescribeUserScramCredentialsResponse(
        error_code=error.code,
        error_message=message,
        results=[
            DescribeUserScramCredentialsResult(
                user=user.name, error_code=error.code, error_message=message
            )
            for user in request.users or ()
        ],
    )


@handles(
    DescribeUserScramCredentialsRequest,
    versions="0",
    refuse=_refuse,
    needs=[Whole([Operation.DESCRIBE], Resource.CLUSTER)],
)
async def describe_user_scram_credentials(
    services: Services, request: DescribeUserScramCredentialsRequest, context: RequestContext
) -> DescribeUserScramCredentialsResponse:
    users = services.authentication.credentials
    named = Counter(user.name for user in request.users or ()) or Counter(users.users())
    return DescribeUserScramCredentialsResponse(
        error_message=None,
        results=[
            _described(users, name, count)
            async for name, count in services.turns.each(named.items())
        ],
    )


def _described(
    users: ScramCredentials, name: str, count: int
) -> DescribeUserScramCredentialsResult:
    result = DescribeUserScramCredentialsResult(user=name, error_message=None)
    credentials = users.of(name)
    if count > 1:
        result.error_code = ErrorCode.DUPLICATE_RESOURCE
        result.error_message = (
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        )
    elif not credentials:
        result.error_code = ErrorCode.RESOURCE_NOT_FOUND
        result.error_message = f"Attempt to describe a user credential that does not exist: {name}"
    else:
        result.credential_infos = [
            CredentialInfo(mechanism=number, iterations=credentials[mechanism].iterations)
            for number, mechanism in MECHANISM_IDS.items()
            if mechanism in credentials
        ]
    return result
