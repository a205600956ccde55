"""UpdateFeatures (API key 57): versions 0-2.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, in_versions, int8, int16, int32


class UpdateFeaturesRequest(Message, api_key=57, versions="0-2", flexible="0+"):
    timeout_ms: int32 = 60000
    feature_updates: list[FeatureUpdateKey] = []
    validate_only: bool = in_versions("1+")


class FeatureUpdateKey(Struct):
    feature: str = ""
    max_version_level: int16 = 0
    allow_downgrade: bool = in_versions("0")
    upgrade_type: int8 = in_versions("1+", default=1)


class UpdateFeaturesResponse(Message, api_key=57, versions="0-2", flexible="0+"):
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = ""
    results: list[UpdatableFeatureResult] = in_versions("0-1", ignorable=True)


class UpdatableFeatureResult(Struct):
    feature: str = ""
    error_code: int16 = 0
    error_message: str | None = ""
