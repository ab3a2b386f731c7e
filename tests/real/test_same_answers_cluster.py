"""Questions of tools about settings and topics by pages: answers as Apache Kafka gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roster.broker import BrokerConfig
from roster.broker.described_settings import broker_settings
from tests.real.realparts.exchange import Exchange, scenario
from tests.waiting import until


@scenario
def test_topics_by_pages(x):
    a, b = x.topic("a", partitions=3), x.topic("b", partitions=1)

    def ask(label: str, *names: str, limit: int = 2_000, cursor: tuple[str, int] | None = None) -> None:
        first = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
        topics = [{"name": name} for name in names]
        told = x.ask("DescribeTopicPartitions", 0, topics=topics, response_partition_limit=limit, cursor=first)
        told["topics"].sort(key=lambda topic: topic["name"])
        x.note(label, told)

    ask("both", b, a, b)
    ask("one that is missing", a, x.stem + "-no")
    for limit in (-1, 0, 1, 2, 3, 4):
        ask(f"at most {limit}", a, b, limit=limit)
        ask(f"at most {limit} from the second on", a, b, limit=limit, cursor=(a, 1))
    ask("behind the last", a, b, cursor=(a, 7))
    ask("from the second topic", a, b, cursor=(b, 0))
    ask("a cursor that was not asked for", a, cursor=(b, 0))
    ask("a negative cursor", a, cursor=(a, -1))


@scenario
def test_settings_are_replaced(x):
    topic = x.topic()

    def alter(label: str, configs: dict[str, Any], *, kind: int = 2, name: str = topic, version: int = 2) -> None:
        asked = [{"name": key, "value": value} for key, value in configs.items()]
        resources = [{"resource_type": kind, "resource_name": name, "configs": asked}]
        told = x.call(label, "AlterConfigs", version, resources=resources, validate_only="only" in label)
        if "only" not in label and not told["responses"][0]["error_code"]:
            until(lambda: set(own(x, topic)) == set(configs), 60, "settings are not applied")
        x.note(f"{label}: own settings", own(x, topic))

    for version in range(3):
        alter(f"v{version}", {"cleanup.policy": "compact", "max.message.bytes": "5000"}, version=version)
        alter(f"v{version} one less", {"max.message.bytes": "6000"}, version=version)
    alter("validate only", {"cleanup.policy": "compact"})
    alter("unknown setting", {"nonsense": "1"})
    alter("bad value", {"max.message.bytes": "x"})
    alter("no value", {"max.message.bytes": None})
    alter("unknown topic", {"max.message.bytes": "1"}, name=x.stem + "-no")
    alter("unknown type", {}, kind=1)
    alter("nothing", {})


def own(x: Exchange, topic: str) -> dict[str, Any]:
    """The settings that a topic has of its own, with what the broker says of them."""
    resources = [{"resource_type": 2, "resource_name": topic, "configuration_keys": None}]
    told = x.ask("DescribeConfigs", 4, resources=resources, include_synonyms=True, include_documentation=False)
    return {each["name"]: each for each in told["results"][0]["configs"] if each["config_source"] == 1}


@scenario
def test_the_brokers_settings_have_kafkas_names_and_types(x):
    names = [each.name for each in broker_settings(BrokerConfig(data_dir=Path()), "")]
    resources = [{"resource_type": 4, "resource_name": "1", "configuration_keys": names}]
    told = x.ask("DescribeConfigs", 4, resources=resources, include_synonyms=False, include_documentation=False)
    x.note("types", {each["name"]: each["config_type"] for each in told["results"][0]["configs"]})


@pytest.mark.gate
@scenario
def test_resources_with_settings(x):
    topic = x.topic()
    for types in ([2], [4], [16], [32], [2, 4, 2], [1], [99], [2, 99]):
        told = x.ask("ListConfigResources", 1, resource_types=types)
        found = [each for each in told["config_resources"] if each["resource_name"] in (topic, "1")]
        told["config_resources"] = sorted(found, key=lambda each: each["resource_type"])
        x.note(str(types), told)
    x.call("v0", "ListConfigResources", 0)
