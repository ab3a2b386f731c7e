"""Commands with --config against a secured Apache Kafka: each connects, each mistake is one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from roster.cli.root import run
from roster.client import GroupMember, OffsetAndMetadata
from roster.model import TopicPartition
from tests.real.realparts.cluster import unique
from tests.real.realparts.secured import STRANGER, STRANGER_PASSWORD, USER_PASSWORD

if TYPE_CHECKING:
    from tests.real.realparts.secured import SecuredKafka

JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="{}" password="{}";'


def properties(path: Path, kafka: SecuredKafka, **changes: str | None) -> str:
    """A file as Java's tools take it; `changes` by names with _ for the dots, None leaves one out."""
    settings: dict[str, str | None] = {
        "bootstrap.servers": kafka.address("SECURE"),
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": JAAS.format("rita", USER_PASSWORD),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": kafka.certificates["ca"],
    }
    settings |= {name.replace("_", "."): value for name, value in changes.items()}
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items() if value is not None))
    return str(path)


def test_every_command_connects(
    secured_kafka: SecuredKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = properties(tmp_path / "client.properties", secured_kafka)
    topic, group = unique("shop"), unique("shop")

    def done(*words: str) -> str:
        assert run([*words]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"id": number}) + "\n" for number in range(50)))
    done("topics", "create", topic, "--partitions", "2", "--command-config", config)
    loaded = done("load", str(rows), "--topic", topic, "--key", "id", "--json", "--config", config)
    assert json.loads(loaded.splitlines()[-1])["acknowledged"] == 50
    assert topic in done("topics", "list", "--config", config)
    assert "leader" in done("topics", "describe", topic, "--config", config)
    read = done("topics", "read", topic, "--json", "--config", config)
    assert len(read.splitlines()) == 50
    done("topics", "grow", topic, "3", "--config", config)
    security = secured_kafka.scram()
    with GroupMember(secured_kafka.address("SECURE"), group, [topic], security=security) as member:
        owned = member.wait(0, 60)
        member.commit({TopicPartition(topic, 0): OffsetAndMetadata(5)}, owned)
        assert group in done("groups", "list", "--config", config)
        assert "rita" not in done("groups", "describe", group, "--config", config)
        done("plan", "--group", group, "--config", config)
    assert topic in done("groups", "describe", group, "--config", config)
    done("groups", "reset", group, "--topic", topic, "--to", "latest", "--yes", "--config", config)
    done("groups", "delete", group, "--yes", "--config", config)
    done("topics", "delete", topic, "--yes", "--config", config)


def test_a_mistake_is_one_line(secured_kafka: SecuredKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "client.properties"
    cases: list[tuple[dict[str, str | None], int, str]] = [
        ({"sasl_jaas_config": JAAS.format("rita", "hidden")}, 1, "check sasl.username, sasl.password"),
        ({"sasl_mechanism": "SCRAM-SHA-1"}, 2, f"--config: {path}: sasl.mechanism: 'SCRAM-SHA-1' is not one"),
        ({"ssl_truststore_location": secured_kafka.certificates["other-ca"]}, 1, "set ssl.ca.location"),
        ({"ssl_truststore_location": "/nowhere"}, 2, "ssl.truststore.location: /nowhere cannot be read"),
        ({"security_protocol": None}, 2, "security.protocol: is missing"),
        ({"ssl_typo": "x"}, 2, "ssl.typo: is not a security setting that Roster knows"),
        ({"bootstrap_servers": "a b"}, 2, "bootstrap.servers: 'a b' is not host:port"),
    ]
    for changes, code, said in cases:
        config = properties(path, secured_kafka, **changes)
        assert run(["topics", "list", "--config", config]) == code
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("roster: error: ")
        assert said in line
        assert "hidden" not in line
    assert run(["topics", "list", "--config", str(tmp_path / "none")]) == 2
    assert "cannot be read (No such file or directory)" in capsys.readouterr().err


def test_a_missing_acl_is_one_line(
    secured_kafka: SecuredKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, group = secured_kafka.create_topic("shop"), unique("shop")
    otto = JAAS.format(STRANGER, STRANGER_PASSWORD)
    config = properties(tmp_path / "client.properties", secured_kafka, sasl_jaas_config=otto)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": 1}\n')
    cases = [
        (["topics", "create", unique("shop"), "--command-config", config], "grant this client CREATE on the topic"),
        (["topics", "read", topic, "--config", config], "grant"),
        (["groups", "describe", group, "--config", config], "grant this client READ"),
        (["load", str(rows), "--topic", unique("shop"), "--partitions", "1", "--config", config], "grant this client"),
    ]
    for words, said in cases:
        assert run(words) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line, line


def test_the_command_line_comes_before_the_file(
    secured_kafka: SecuredKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = properties(tmp_path / "client.properties", secured_kafka, bootstrap_servers="127.0.0.1:1")
    assert run(["topics", "list", "--config", config, "--bootstrap", secured_kafka.address("SECURE")]) == 0
    assert run(["topics", "list", "--config", config]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_an_empty_variable_is_no_file(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """So the demo keeps a user's ROSTER_CONFIG away from its own broker."""
    monkeypatch.setenv("ROSTER_CONFIG", "")
    assert run(["topics", "list", "--bootstrap", "127.0.0.1:1"]) == 1
    assert "cannot connect to 127.0.0.1:1" in capsys.readouterr().err
    monkeypatch.setenv("ROSTER_CONFIG", "/nowhere.properties")
    assert run(["topics", "list", "--bootstrap", "127.0.0.1:1"]) == 2
    assert "--config: /nowhere.properties: cannot be read" in capsys.readouterr().err


def test_who_may_not_read_the_offsets_is_told_so_before_spark_starts(
    secured_kafka: SecuredKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roster.spark.session", None)
    config = properties(tmp_path / "client.properties", secured_kafka)
    assert run(["history", "record", "--to", str(tmp_path / "history"), "--once", "--config", config]) == 1
    assert "topic __consumer_offsets; grant it DESCRIBE and READ" in capsys.readouterr().err
