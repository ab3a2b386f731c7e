"""Questions of tools about settings and topics by pages: answers as Apache Kafka gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roster.broker import BrokerConfig
from roster.broker.described_settings import broker_settings
from tests.real.realparts.exchange import Exchange, scenario
from tests.waiting import until


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
