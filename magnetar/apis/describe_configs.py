"""DescribeConfigs (API key 32): settings of resources, and where they come from.

Versions 1-4.  1: sources and synonyms (KIP-226).  3: types and documentation (KIP-569).  4:
flexible.

A topic's setting is its own, else the broker's, else the default; the broker's is one that was set
while it ran, else that of its file and flags, else the default; the synonyms list them in that
order. The broker is asked for by its node id; an empty name asks for what was set for every broker.
A logger has a level; a group has its own settings, else the broker's; a subscription of client
metrics has what it was given. A request that names no settings asks for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial

from magnetar.apis.authorization import Each, described_target
from magnetar.apis.refusals import refused_in
from magnetar.apis.registry import handles
from magnetar.config.client_metrics import ClientMetricsConfig
from magnetar.config.described import (
    ConfigSource,
    Described,
    Synonym,
    TopicSettings,
    describe_broker_setting,
    describe_group_setting,
    describe_shared_settings,
    is_sensitive,
)
from magnetar.config.dynamic import find_setting, is_read_only, setting_names
from magnetar.config.group import GroupConfig
from magnetar.config.setting import Setting
from magnetar.config.topic import TopicConfig, listed_settings
from magnetar.runtime.logger_levels import check_node, described_levels
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security import acls
from magnetar.storage.broker_configs import EVERY_BROKER
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from wire.resource_type import ResourceType

_UNKNOWN_TYPE = 0

#: The names of settings that a request asks for; none of them asks for all.
Asked = frozenset[str]
Entries = Iterator[DescribeConfigsResourceResult]
#: What one request has described of the settings that resources of a type inherit, by their names.
#: Most resources inherit nearly all, and their entries are the same objects.
Inherited = dict[str, DescribeConfigsResourceResult]
#: Describes the resource of a name.
Describe = Callable[[Services, str, Asked], Entries]

#: The settings that one response may have: those of 25,000 topics, 200 MB as they are sent.
#: A small request can name a resource a hundred thousand times, and a group of any name has some.
ENTRIES_MAX = 1_000_000
#: Requests that name more than this make their responses one at a time.
_AT_ONCE_MAX = 256


@handles(
    DescribeConfigsRequest,
    versions="1-4",
    needs=[
        Each(acls.Operation.DESCRIBE_CONFIGS, acls.Resource.TOPIC, "resources", described_target)
    ],
)
async def describe_configs(
    services: Services, request: DescribeConfigsRequest, context: RequestContext
) -> DescribeConfigsResponse:
    alone = (
        services.turns.large_response if len(request.resources) > _AT_ONCE_MAX else nullcontext()
    )
    # All settings of a broker take milliseconds.
    await services.turns.begin()
    async with alone:
        return await _describe_all(services, request)


async def _describe_all(
    services: Services, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    describes: dict[int, Describe] = {
        **_DESCRIBE,
        ResourceType.TOPIC: partial(_describe_topic, TopicSettings(services.config), {}),
        ResourceType.GROUP: partial(_describe_group, {}),
    }
    # As in Kafka: what has no settings is refused with all else that the request asks for.
    for resource in request.resources:
        if resource.resource_type not in describes:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Resources of type {resource.resource_type} have no settings.",
            )
    results = []
    entry_count = 0
    async for resource in services.turns.each(request.resources):
        # The message of a success is an empty text in Kafka, not null.
        result = DescribeConfigsResult(
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            error_message="",
        )
        with refused_in(result):
            describe = describes[resource.resource_type]
            asked = frozenset(resource.configuration_keys or ())
            result.configs = [
                _reduced(entry, request)
                for entry in describe(services, resource.resource_name, asked)
            ]
        results.append(result)
        entry_count += len(result.configs)
        if entry_count > ENTRIES_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"The answer has more than {ENTRIES_MAX} settings."
            )
    return DescribeConfigsResponse(results=results)


def _wanted(names: Iterable[str], asked: Asked) -> list[str]:
    """Return the names that are asked for. Null and an empty list alike ask for all."""
    # Before anything is described: of all settings that takes milliseconds.
    return [name for name in names if not asked or name in asked]


def _describe_topic(
    settings: TopicSettings, inherited: Inherited, services: Services, name: str, asked: Asked
) -> Entries:
    own = services.config_resources.topic(name).configs
    for each in _wanted(listed_settings(own), asked):
        entry = None if each in own else inherited.get(each)
        if entry is None:
            entry = _entry(each, TopicConfig.settings[each], settings.describe(each, own))
            if each not in own:
                inherited[each] = entry
        yield entry


def _describe_broker(services: Services, name: str, asked: Asked) -> Entries:
    services.config_resources.broker.check_name(name)
    # For every broker there is only what was set while it ran: file and flags are one broker's own.
    if name == EVERY_BROKER:
        described = describe_shared_settings(services.config)
    else:
        described = {
            each: describe_broker_setting(each, services.config)
            for each in _wanted(setting_names(services.config), asked)
        }
    for each in _wanted(described, asked):
        found = described[each]
        setting = find_setting(each)
        assert setting is not None, "a setting that does not exist cannot be set"
        # Its own name: the setting of a listener is declared without the listener.
        yield _entry(each, setting, found, read_only=is_read_only(each))


def _describe_loggers(services: Services, name: str, asked: Asked) -> Entries:
    check_node(services.node.id, name)
    levels = described_levels()
    for logger in _wanted(levels, asked):
        yield DescribeConfigsResourceResult(
            name=logger,
            value=levels[logger],
            read_only=False,
            config_source=ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG,
            # A level is no setting of the broker, so it has none of their types.
            config_type=_UNKNOWN_TYPE,
            documentation=None,
        )


def _describe_client_metrics(services: Services, name: str, asked: Asked) -> Entries:
    if not name:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "A subscription of client metrics must have a name."
        )
    own = services.config_resources.stored.texts(ResourceType.CLIENT_METRICS, name)
    for each in _wanted(ClientMetricsConfig.settings, asked):
        setting = ClientMetricsConfig.settings[each]
        # Subscriptions inherit nothing: what is not their own is the default.
        text, source = setting.render(setting.default), ConfigSource.DEFAULT_CONFIG
        synonyms = []
        if each in own:
            text, source = own[each], ConfigSource.CLIENT_METRICS_CONFIG
            synonyms.append(Synonym(each, text, source))
        yield _entry(each, setting, Described(text, source, synonyms))


def _describe_group(inherited: Inherited, services: Services, name: str, asked: Asked) -> Entries:
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A group must have a name.")
    own = services.config_resources.stored.texts(ResourceType.GROUP, name)
    for each in _wanted(GroupConfig.settings, asked):
        entry = None if each in own else inherited.get(each)
        if entry is None:
            described = describe_group_setting(each, own, services.config)
            entry = _entry(each, GroupConfig.settings[each], described)
            if each not in own:
                inherited[each] = entry
        yield entry


#: All but topics and groups, of which a request names many: what these inherit is described once.
_DESCRIBE: dict[int, Describe] = {
    ResourceType.BROKER: _describe_broker,
    ResourceType.BROKER_LOGGER: _describe_loggers,
    ResourceType.CLIENT_METRICS: _describe_client_metrics,
}


def _entry(
    name: str, setting: Setting[object], described: Described, *, read_only: bool = False
) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=name,
        value=described.text,
        read_only=read_only,
        is_sensitive=is_sensitive(setting),
        config_source=described.source,
        config_type=setting.type,
        documentation=setting.doc,
        synonyms=[
            DescribeConfigsSynonym(name=synonym, value=text, source=source)
            for synonym, text, source in described.synonyms
        ],
    )


def _reduced(
    entry: DescribeConfigsResourceResult, request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    """Return `entry` without the parts that the request does not ask for."""
    if not request.include_documentation:
        entry.documentation = None
    if not request.include_synonyms:
        entry.synonyms = []
    return entry
