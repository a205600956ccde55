"""DescribeUserScramCredentials (API key 50): the users that have credentials: none (KIP-554).

Version 0.

SASL is not served and no credential can be made, so no user has one: each user that is named is
RESOURCE_NOT_FOUND.
"""

from __future__ import annotations

from collections import Counter

from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from wire.error_code import ErrorCode
from wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


@handles(DescribeUserScramCredentialsRequest, versions="0")
async def describe_user_scram_credentials(
    services: Services, request: DescribeUserScramCredentialsRequest, context: RequestContext
) -> DescribeUserScramCredentialsResponse:
    named = Counter(user.name for user in request.users or ())
    return DescribeUserScramCredentialsResponse(
        error_message=None,
        results=[_refused(name, count) for name, count in named.items()],
    )


def _refused(name: str, count: int) -> DescribeUserScramCredentialsResult:
    if count > 1:
        code, message = ErrorCode.DUPLICATE_RESOURCE, f"{name} is named {count} times."
    else:
        code, message = ErrorCode.RESOURCE_NOT_FOUND, f"{name} has no credentials."
    return DescribeUserScramCredentialsResult(user=name, error_code=code, error_message=message)
