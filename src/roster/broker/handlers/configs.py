"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: settings of topics and of the broker."""

from collections import Counter

from roster.broker.call import Call
from roster.broker.described_settings import Described, broker_settings, topic_settings
from roster.broker.errors import RefusedError, refusing
from roster.broker.handlers.topic_admin import check_once, known_topic
from roster.broker.request_limits import in_slices
from roster.broker.services import Services
from roster.broker.topic_config import TOPIC_SETTINGS, TYPE_LIST, InvalidConfigError, check_settings, items_of
from roster.broker.topics import Topic
from roster.model import Address
from roster.wire import ErrorCode, Message
from roster.wire.messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32
"""Types of resources."""
OPERATION_SET, OPERATION_DELETE, OPERATION_APPEND, OPERATION_SUBTRACT = range(4)


async def describe_configs(services: Services, call: Call[DescribeConfigsRequest]) -> Message:
    """Return the settings of topics and of the broker; groups and client metrics have none here."""
    request = call.message
    response = DescribeConfigsResponse()
    distinct = {(setting.resource_type, setting.resource_name): setting for setting in request.resources}
    async for resource in in_slices(distinct.values()):
        answer = DescribeConfigsResponse.Result(
            resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        response.results.append(answer)
        keys = resource.configuration_keys
        with refusing(answer):
            answer.configs = [
                _shown(setting, request, is_topic=resource.resource_type == TOPIC)
                for setting in _settings(services, resource.resource_type, resource.resource_name)
                if not keys or setting.name in keys
            ]
    return response


def _settings(services: Services, kind: int, name: str) -> list[Described]:
    config = services.config
    if kind == TOPIC:
        return topic_settings(config.log, known_topic(services, name).settings)
    if kind == BROKER and name == str(config.node_id):
        return broker_settings(config, f"{config.security.protocol}://{Address(services.host, services.port)}")
    if (kind == BROKER and name == "") or (kind in (GROUP, CLIENT_METRICS) and name):
        return []
    if kind == BROKER:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"this is broker {config.node_id}, not {name!r}")
    raise RefusedError(ErrorCode.INVALID_REQUEST, f"no resource of type {kind} named {name!r} has settings")


def _shown(
    setting: Described, request: DescribeConfigsRequest, *, is_topic: bool
) -> DescribeConfigsResponse.Result.Config:
    text = "Apache Kafka's broker setting of this name. It is set when the broker starts."
    if is_topic:
        text = f"Apache Kafka's topic setting of this name. Values: {TOPIC_SETTINGS[setting.name].values}."
    return DescribeConfigsResponse.Config(
        name=setting.name,
        value=setting.value,
        read_only=not is_topic,
        config_source=setting.source,
        config_type=setting.type,
        synonyms=[
            DescribeConfigsResponse.Synonym(name=origin.name, value=origin.value, source=origin.source)
            for origin in setting.origins
        ]
        if request.include_synonyms
        else [],
        documentation=text if request.include_documentation else None,
    )


async def alter_configs(services: Services, call: Call[AlterConfigsRequest]) -> Message:
    """Replace the settings of topics: what a request does not name goes back to its default."""
    request = call.message
    response = AlterConfigsResponse()
    times = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    for kind, name in times:
        response.responses.append(AlterConfigsResponse.Resource(resource_type=kind, resource_name=name))
    named = {(resource.resource_type, resource.resource_name): resource for resource in request.resources}
    async for answer in in_slices(response.responses):
        resource = named[answer.resource_type, answer.resource_name]
        with refusing(answer):
            check_once(answer.resource_name, times[answer.resource_type, answer.resource_name])
            topic = _own_topic(services, resource.resource_type, resource.resource_name)
            await _configure(services, topic, _replaced(resource.configs), validate_only=request.validate_only)
    return response


def _replaced(configs: list[AlterConfigsRequest.Resource.Config]) -> dict[str, str]:
    for name, times in Counter(config.name for config in configs).items():
        if times > 1:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"setting {name!r} is in the request more than once")
    for config in configs:
        if config.value is None:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"{config.name} has no value; leave it out for the default")
    return check_settings({config.name: config.value for config in configs})


async def incremental_alter_configs(services: Services, call: Call[IncrementalAlterConfigsRequest]) -> Message:
    """Set or reset settings of topics; the changes of one topic are atomic."""
    request = call.message
    response = IncrementalAlterConfigsResponse()
    async for resource in in_slices(request.resources):
        answer = IncrementalAlterConfigsResponse.Resource(
            resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        response.responses.append(answer)
        with refusing(answer):
            topic = _own_topic(services, resource.resource_type, resource.resource_name)
            settings = _altered(topic.settings, resource.configs)
            await _configure(services, topic, settings, validate_only=request.validate_only)
    return response


def _own_topic(services: Services, kind: int, name: str) -> Topic:
    """Return a topic whose settings clients may change."""
    if kind != TOPIC:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "only the settings of topics can be changed")
    topic = known_topic(services, name)
    if topic.is_internal:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"{topic.name} belongs to the broker")
    return topic


async def _configure(services: Services, topic: Topic, settings: dict[str, str], *, validate_only: bool) -> None:
    if not validate_only:
        await services.topics.reconfigure(topic, settings)


def _altered(settings: dict[str, str], changes: list[IncrementalAlterConfigsRequest.Resource.Config]) -> dict[str, str]:
    altered = dict(settings)
    for change in changes:
        if change.config_operation == OPERATION_SET:
            altered.update(check_settings({change.name: change.value}))
        elif change.config_operation == OPERATION_DELETE:
            altered.pop(change.name, None)
        else:
            altered.update(check_settings({change.name: _with_items(altered, change)}))
    return altered


def _with_items(settings: dict[str, str], change: IncrementalAlterConfigsRequest.Resource.Config) -> str | None:
    """Return a setting that is a list with items appended, or without those that are to go."""
    setting = TOPIC_SETTINGS.get(change.name)
    is_list = setting is not None and setting.type == TYPE_LIST
    if setting is None or not is_list or change.config_operation not in (OPERATION_APPEND, OPERATION_SUBTRACT):
        raise InvalidConfigError(f"{change.name}: only a list can be appended to or subtracted from")
    now, named = items_of(settings.get(change.name, setting.default)), items_of(change.value or "")
    if change.config_operation == OPERATION_SUBTRACT:
        return ",".join(item for item in now if item not in named)
    return ",".join(dict.fromkeys((*now, *named)))
