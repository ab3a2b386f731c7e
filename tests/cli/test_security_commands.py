"""`roster users` in a data directory, and rights that commands need on a running broker."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from roster.cli.root import run
from tests.broker.secured import PASSWORDS, Secured, secured_broker
from tests.broker.test_secured_clients import acl, confluent_admin
from tests.real.realparts.cluster import unique

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_broker(tmp_path_factory.mktemp("secured")) as running:
        yield running


def config(secured: Secured, path: Path, user: str, password: str) -> str:
    settings = {**secured.settings("rita"), "sasl.username": user, "sasl.password": password}
    lines = [f"{name}={value}" for name, value in settings.items()]
    path.write_text("\n".join([f"bootstrap.servers={secured.bootstrap}", *lines]))
    return str(path)


@pytest.fixture
def admin(secured: Secured, tmp_path: Path) -> str:
    return config(secured, tmp_path / "admin.properties", "admin", PASSWORDS["admin"])


def type_in(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_users_of_a_stopped_brokers_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = str(tmp_path / "data")
    type_in(monkeypatch, "s3cr3t\n")
    assert run(["users", "add", "nina", "--data", data]) == 0
    assert run(["users", "list", "--data", data, "--json"]) == 0
    assert "s3cr3t" not in (tmp_path / "data" / "security.json").read_text()
    out = capsys.readouterr().out
    assert json.loads(out[out.index("{") :]) == {"nina": {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 8192}}
    assert run(["users", "remove", "nina", "--data", data, "--yes"]) == 0
    assert run(["users", "remove", "nina", "--data", data, "--yes"]) == 2
    assert "there is no user 'nina'" in capsys.readouterr().err


def test_users_of_a_running_broker_are_listed(secured: Secured, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["users", "list", "--data", str(secured.broker.config.data_dir), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["otto"]


def test_a_directory_in_use_names_the_way_to_change_it(
    secured: Secured, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    type_in(monkeypatch, "s3cr3t\n")
    assert run(["users", "add", "nina", "--data", str(secured.broker.config.data_dir)]) == 1
    assert "while the broker runs, kafka-configs.sh changes its users" in capsys.readouterr().err


def test_an_empty_password_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    type_in(monkeypatch, "")
    assert run(["users", "add", "nina", "--data", str(tmp_path)]) == 2
    assert "password is empty" in capsys.readouterr().err


def test_a_right_that_is_missing_is_named(
    secured: Secured, admin: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = unique("till")
    otto = config(secured, tmp_path / "otto.properties", "otto", PASSWORDS["otto"])
    assert run(["topics", "create", topic, "--command-config", otto]) == 1
    assert "grant this client CREATE" in capsys.readouterr().err
    (tmp_path / "shops.csv").write_text("shop\nRome\n")
    assert run(["topics", "create", f"{topic}-hidden", "--command-config", admin]) == 0
    assert run(["load", str(tmp_path / "shops.csv"), "--topic", f"{topic}-hidden", "--command-config", otto]) == 2
    assert "or this user lacks DESCRIBE on it; pass --partitions N" in capsys.readouterr().err
    rights = [acl("otto", ResourceType.TOPIC, "till", right) for right in (AclOperation.CREATE, AclOperation.DESCRIBE)]
    authority = confluent_admin(secured)
    for done in authority.create_acls(rights).values():
        done.result(60)
    assert run(["topics", "create", topic, "--command-config", otto]) == 0
    wrong = config(secured, tmp_path / "wrong.properties", "otto", "another")
    assert run(["topics", "list", "--config", wrong]) == 1
    assert "refused user 'otto'" in capsys.readouterr().err
