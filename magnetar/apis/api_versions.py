"""ApiVersions (API key 18): the APIs that this broker serves, and their versions.

Versions 0-5.  1: throttle time.  3: flexible, and the client's name and version (KIP-511), refused
with INVALID_REQUEST where they break its syntax.  4: features whose lowest version is 0 are listed.
5: the cluster and the node that the client means to reach, REBOOTSTRAP_REQUIRED where it reached
others (KIP-1242).

The response is built from the declarations of the handlers. Its header is always version 0, and a
version that is not served is answered in version 0 with UNSUPPORTED_VERSION and the one entry a
client needs to try again. Produce is listed from version 0, though versions 0-2 are refused when
they are used, as in Kafka 4: librdkafka before 2.11 takes a higher first version for a broker
without Produce (KAFKA-18659).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from magnetar.apis.registry import Api, handles, load_apis
from magnetar.logging import shown
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

_PRODUCE = 0
#: Served only where something takes the metrics of clients.
TELEMETRY_APIS = (71, 72)
#: The finalized version of each feature. transaction.version 2 is KIP-890's: clients that know it
#: leave out AddPartitionsToTxn and AddOffsetsToTxn. group.version 1 is KIP-848's.
FINALIZED = {"group.version": 1, "transaction.version": 2}
#: Rises with every change of finalized versions: clients keep the newest they saw.
FEATURES_EPOCH = 1
_ZERO_FEATURES_SINCE = 4
_NO_NODE = -1
_CLIENT_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@handles(ApiVersionsRequest, versions="0-5")
async def api_versions(
    services: Services, request: ApiVersionsRequest, context: RequestContext
) -> ApiVersionsResponse:
    # Version 3 brought the two texts. Before it they are empty, which the syntax would refuse.
    if context.version >= 3:
        # As in Kafka, where they become tags of metrics.
        for text in (request.client_software_name, request.client_software_version):
            if not _CLIENT_SOFTWARE.fullmatch(text):
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"client software {shown(text)!r}")
        named = (request.client_software_name, request.client_software_version)
        context.connection.session.software = named
    _check_destination(services, request)
    return ApiVersionsResponse(
        api_keys=[
            _entry(api)
            for key, api in sorted(load_apis().items())
            if key not in TELEMETRY_APIS or services.telemetry is not None
        ],
        supported_features=_supported(context.version),
        finalized_features_epoch=FEATURES_EPOCH,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=version, min_version_level=version)
            for name, version in FINALIZED.items()
        ],
    )


def _check_destination(services: Services, request: ApiVersionsRequest) -> None:
    """Refuse a client that a stale address has brought here: REBOOTSTRAP_REQUIRED.

    A client says both cluster and node, or neither, as before version 5: else INVALID_REQUEST.
    """
    meant = (request.cluster_id, request.node_id)
    if meant == (None, _NO_NODE):
        return
    if request.cluster_id is None or request.node_id == _NO_NODE:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "cluster id and node id belong together")
    if meant != (services.node.cluster_id, services.node.id):
        raise KafkaError(
            ErrorCode.REBOOTSTRAP_REQUIRED,
            f"this is node {services.node.id} of cluster {services.node.cluster_id},"
            f" not {request.node_id} of {shown(request.cluster_id)}",
        )


def unsupported_version_response(apis: Mapping[int, Api]) -> ApiVersionsResponse:
    """Return the response to a version that is not served; it is sent in version 0."""
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        # The one entry that a client of any version can read, and from which it picks a version.
        api_keys=[_entry(apis[ApiVersionsRequest.api_key])],
    )


def _supported(version: int) -> list[SupportedFeatureKey]:
    """Return the features; clients before version 4 cannot read one whose lowest version is 0."""
    if version < _ZERO_FEATURES_SINCE:
        return []
    return [
        SupportedFeatureKey(name=name, min_version=0, max_version=finalized)
        for name, finalized in FINALIZED.items()
    ]


def _entry(api: Api) -> ApiVersion:
    return ApiVersion(
        api_key=api.key,
        # KAFKA-18659: a higher version makes an old librdkafka give up on this broker.
        min_version=0 if api.key == _PRODUCE else api.min_version,
        max_version=api.max_version,
    )
