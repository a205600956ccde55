"""DescribeConfigs (API key 32): settings of topics and of the broker, and where they come from.

Versions 1-4.  1: sources and synonyms (KIP-226).  3: types and documentation (KIP-569).  4:
flexible.

A topic's setting is its own, or the broker's, or the default; the synonyms list them in that
order.  The broker is asked by its node id; an empty name asks for cluster-wide defaults, of
which there are none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from magnetar.apis.registry import RequestContext, handles
from magnetar.config.broker import BrokerConfig
from magnetar.config.described import Described, describe_broker_setting, describe_setting
from magnetar.config.setting import Setting
from magnetar.config.topic import TopicConfig
from magnetar.topics import check_name
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

if TYPE_CHECKING:
    from magnetar.broker import Broker

_TOPIC = 2
_BROKER = 4


@handles(DescribeConfigsRequest, versions="1-4")
async def describe_configs(
    broker: Broker, request: DescribeConfigsRequest, context: RequestContext
) -> DescribeConfigsResponse:
    results = []
    for resource in request.resources:
        result = DescribeConfigsResult(
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            error_message=None,
        )
        try:
            result.configs = list(_describe(broker, resource, request))
        except KafkaError as refusal:
            result.error_code = refusal.code
            result.error_message = refusal.detail
        results.append(result)
    return DescribeConfigsResponse(results=results)


def _describe(
    broker: Broker, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> Iterable[DescribeConfigsResourceResult]:
    if resource.resource_type == _TOPIC:
        return _describe_topic(broker, resource, request)
    if resource.resource_type == _BROKER:
        return _describe_broker(broker, resource, request)
    raise KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"Resources of type {resource.resource_type} have no settings here.",
    )


def _describe_topic(
    broker: Broker, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> Iterable[DescribeConfigsResourceResult]:
    check_name(resource.resource_name)
    topic = broker.topics.by_name(resource.resource_name)
    if topic is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {resource.resource_name}."
        )
    return [
        _result(setting, describe_setting(name, topic.configs, broker.config), False, request)
        for name, setting in TopicConfig.settings.items()
        if _is_asked_for(name, resource)
    ]


def _describe_broker(
    broker: Broker, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> Iterable[DescribeConfigsResourceResult]:
    if not resource.resource_name:
        return []
    if resource.resource_name != str(broker.node_id):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"This is broker {broker.node_id}, not {resource.resource_name!r}.",
        )
    return [
        _result(setting, describe_broker_setting(name, broker.config), True, request)
        for name, setting in BrokerConfig.settings.items()
        if _is_asked_for(name, resource)
    ]


def _is_asked_for(name: str, resource: DescribeConfigsResource) -> bool:
    return resource.configuration_keys is None or name in resource.configuration_keys


def _result(
    setting: Setting[object],
    described: Described,
    read_only: bool,
    request: DescribeConfigsRequest,
) -> DescribeConfigsResourceResult:
    result = DescribeConfigsResourceResult(
        name=setting.name,
        value=described.text,
        read_only=read_only,
        config_source=described.source,
        config_type=setting.type,
        documentation=setting.doc if request.include_documentation else None,
    )
    if request.include_synonyms:
        result.synonyms = [
            DescribeConfigsSynonym(name=name, value=text, source=source)
            for name, text, source in described.synonyms
        ]
    return result
