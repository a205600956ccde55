"""UpdateFeatures (API key 57): raise or lower the versions of finalized features (KIP-584).

Versions 0-2.  1: type of the upgrade, validate only (KIP-778).  2: no results of single features.

The finalized versions follow from the release: a request for the versions that are there already
succeeds, any other is INVALID_UPDATE_VERSION, for all features that it names.
"""

from __future__ import annotations

from magnetar.apis.api_versions import FINALIZED
from magnetar.apis.authorization import Whole
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3


@handles(UpdateFeaturesRequest, versions="0-2", needs=[Whole([Operation.ALTER], Resource.CLUSTER)])
async def update_features(
    services: Services, request: UpdateFeaturesRequest, context: RequestContext
) -> UpdateFeaturesResponse:
    async for update in services.turns.each(request.feature_updates):
        reason = _reason_against(update)
        if reason is not None:
            raise KafkaError(
                ErrorCode.INVALID_UPDATE_VERSION,
                "The update failed for all features since the following feature had an error:"
                f" Invalid update version {update.max_version_level} for feature {update.feature}."
                f" {reason}",
            )
    return UpdateFeaturesResponse(
        error_message=None,
        results=[
            UpdatableFeatureResult(feature=update.feature, error_message=None)
            async for update in services.turns.each(request.feature_updates)
        ],
    )


def _reason_against(update: FeatureUpdateKey) -> str | None:
    if update.upgrade_type not in (_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE):
        return "The controller does not support the given upgrade type."
    finalized = FINALIZED.get(update.feature)
    if finalized is None:
        return "This broker does not support this feature."
    if update.max_version_level != finalized:
        return f"This release of magnetar has version {finalized}, which cannot be changed."
    return None
