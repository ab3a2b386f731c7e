"""What tools ask about a cluster of one broker: where settings come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from roster.broker.config import LogConfig
from roster.testing.broker import running_broker
from roster.wire import ErrorCode
from roster.wire.messages import (
    AlterConfigsRequest,
    CreateTopicsRequest,
    DescribeConfigsRequest,
)
from tests.broker.rawclient import RawClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from roster.broker import Broker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker with a retention of its own and topics a (3 partitions), b (1) and c (2)."""
    log = LogConfig(retention_ms=5_000_000)
    with running_broker(tmp_path, node_id=4, default_partitions=7, log=log) as running:
        with RawClient(running.address) as client:
            topics = [
                CreateTopicsRequest.Topic(name=name, num_partitions=count, replication_factor=1)
                for name, count in (("c", 2), ("a", 3), ("b", 1))
            ]
            client.ask(CreateTopicsRequest(topics=topics), 7)
        yield running


def described(client: RawClient, kind: int, name: str, *keys: str) -> dict[str, tuple[str, int, list[Any]]]:
    resource = DescribeConfigsRequest.Resource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
    )
    (told,) = client.ask(DescribeConfigsRequest(resources=[resource], include_synonyms=True), 4).results
    assert told.error_code == 0, told.error_message
    return {
        each.name: (each.value, each.config_source, [(o.name, o.value, o.source) for o in each.synonyms])
        for each in told.configs
    }


def altered(client: RawClient, *resources: tuple[str, dict[str, str | None]], validate_only: bool = False) -> list[int]:
    asked = [
        AlterConfigsRequest.Resource(
            resource_type=2,
            resource_name=name,
            configs=[AlterConfigsRequest.Config(name=key, value=value) for key, value in settings.items()],
        )
        for name, settings in resources
    ]
    told = client.ask(AlterConfigsRequest(resources=asked, validate_only=validate_only), 2)
    return [each.error_code for each in told.responses]


def test_settings_have_a_text_for_those_who_ask_for_it(client: RawClient) -> None:
    topic = CreateTopicsRequest.Topic(name="t", num_partitions=1, replication_factor=1)
    client.ask(CreateTopicsRequest(topics=[topic]), 7)
    for kind, name, key, text in (
        (2, "t", "segment.bytes", "Apache Kafka's topic setting of this name. Values: from 14 to 2147483647."),
        (2, "t", "cleanup.policy", "Apache Kafka's topic setting of this name. Values: delete, compact."),
        (2, "t", "retention.bytes", f"Apache Kafka's topic setting of this name. Values: any number to {2**63 - 1}."),
        (4, "4", "log.segment.bytes", "Apache Kafka's broker setting of this name. It is set when the broker starts."),
    ):
        resource = DescribeConfigsRequest.Resource(resource_type=kind, resource_name=name, configuration_keys=[key])
        for asked in (False, True):
            request = DescribeConfigsRequest(resources=[resource], include_documentation=asked)
            (told,) = client.ask(request, 4).results
            assert [each.documentation for each in told.configs] == [text if asked else None]


def test_settings_say_where_they_come_from(client: RawClient) -> None:
    of_broker = [("log.retention.ms", "5000000", 4), ("log.retention.ms", "-1", 5)]
    assert described(client, 2, "a", "retention.ms", "max.message.bytes") == {
        "retention.ms": ("5000000", 4, of_broker),
        "max.message.bytes": ("1048588", 5, [("message.max.bytes", "1048588", 5)]),
    }
    assert altered(client, ("a", {"retention.ms": "7"})) == [0]
    own = [("retention.ms", "7", 1), *of_broker]
    assert described(client, 2, "a", "retention.ms") == {"retention.ms": ("7", 1, own)}


def test_the_broker_has_settings_under_kafkas_names(client: RawClient, broker: Broker) -> None:
    settings = described(client, 4, "4")
    assert settings["advertised.listeners"][:2] == (f"PLAINTEXT://{broker.bootstrap}", 4)
    assert settings["num.partitions"] == ("7", 4, [("num.partitions", "7", 4), ("num.partitions", "1", 5)])
    assert settings["auto.create.topics.enable"][:2] == ("false", 5)
    assert settings["min.insync.replicas"][:2] == ("1", 5)
    assert settings["log.retention.ms"][0] == "5000000"
    assert settings["node.id"][:2] == ("4", 4)
    assert settings["transaction.max.timeout.ms"][:2] == ("900000", 5)
    assert settings["offsets.retention.check.interval.ms"][:2] == ("600000", 5)
    assert described(client, 4, "") == described(client, 32, "group") == described(client, 16, "metrics") == {}


def test_settings_have_the_types_of_kafkas_broker_configuration(client: RawClient) -> None:
    asked = DescribeConfigsRequest(resources=[DescribeConfigsRequest.Resource(resource_type=4, resource_name="4")])
    types = {each.name: each.config_type for each in client.ask(asked, 4).results[0].configs}
    boolean, whole, long, several = 1, 3, 5, 7
    assert types["auto.create.topics.enable"] == boolean
    assert types["log.dirs"] == several
    assert {types[name] for name in ("num.partitions", "group.max.size", "transactional.id.expiration.ms")} == {whole}
    longs = ("connections.max.idle.ms", "log.retention.check.interval.ms", "offsets.retention.check.interval.ms")
    assert {types[name] for name in longs} == {long}


def test_altered_settings_replace_all_others(client: RawClient) -> None:
    def own() -> dict[str, str]:
        return {name: value for name, (value, source, _) in described(client, 2, "b").items() if source == 1}

    assert altered(client, ("b", {"retention.ms": "7", "segment.ms": "8"})) == [0]
    assert altered(client, ("b", {"retention.ms": "9"}), validate_only=True) == [0]
    assert own() == {"retention.ms": "7", "segment.ms": "8"}
    assert altered(client, ("b", {"segment.ms": "6"})) == [0]
    assert own() == {"segment.ms": "6"}
    assert altered(client, ("b", {"segment.ms": None})) == [ErrorCode.INVALID_REQUEST]
    assert altered(client, ("b", {"nonsense": "1"}), ("none", {})) == [ErrorCode.INVALID_CONFIG, 3]
    assert altered(client, ("b", {}), ("b", {"retention.ms": "1"})) == [ErrorCode.INVALID_REQUEST]
    assert own() == {"segment.ms": "6"}
    assert altered(client, ("b", {})) == [0]
    assert own() == {}


def test_how_long_deleted_keys_are_remembered_is_a_topics_setting(client: RawClient, broker: Broker) -> None:
    def remembered() -> int:
        topic = broker.services.topics.get("a")
        assert topic is not None
        return topic.logs[0].config.delete_retention_ms

    assert described(client, 2, "a", "delete.retention.ms")["delete.retention.ms"][:2] == ("86400000", 5)
    assert altered(client, ("a", {"delete.retention.ms": "900"})) == [0]
    assert remembered() == 900
    assert altered(client, ("a", {"delete.retention.ms": "-1"})) == [ErrorCode.INVALID_CONFIG]


@pytest.mark.parametrize(
    ("name", "of_broker", "least"),
    [
        ("flush.messages", "log.flush.interval.messages", 1),
        ("flush.ms", "log.flush.interval.ms", 0),
        ("max.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms", 1),
    ],
)
def test_how_often_a_topic_is_synced_and_compacted_are_settings(
    client: RawClient, broker: Broker, name: str, of_broker: str, least: int
) -> None:
    longest = str(2**63 - 1)
    default = (of_broker, longest, 5)
    assert described(client, 2, "b", name) == {name: (longest, 5, [default])}
    assert described(client, 4, "4", of_broker) == {of_broker: (longest, 5, [default])}
    assert altered(client, ("b", {name: "12345678"})) == [0]
    assert described(client, 2, "b", name) == {name: ("12345678", 1, [(name, "12345678", 1), default])}
    assert altered(client, ("b", {name: str(least - 1)})) == [ErrorCode.INVALID_CONFIG]
    lags = {"min.compaction.lag.ms": "2000", "max.compaction.lag.ms": "1000"}
    assert altered(client, ("b", lags)) == [ErrorCode.INVALID_CONFIG]
    if name == "max.compaction.lag.ms":
        topic = broker.services.topics.get("b")
        assert topic is not None
        assert topic.logs[0].config.max_compaction_lag_ms == 12_345_678
    assert altered(client, ("b", {})) == [0]
