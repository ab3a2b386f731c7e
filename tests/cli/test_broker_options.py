"""Options of `roster broker` that are settings of its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from roster.broker import BrokerConfig
from roster.broker.config import OPTIONS, PARTS, SETTING_NAMES
from roster.cli import broker
from roster.cli.root import run
from roster.transactions import TransactionConfig

if TYPE_CHECKING:
    from pathlib import Path

    from roster.model.options import Option


def config_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *options: str) -> BrokerConfig:
    """The configuration that the command would run a broker with."""
    given: list[BrokerConfig] = []

    async def take(config: BrokerConfig, *_: object) -> None:
        given.append(config)

    monkeypatch.setattr(broker, "run", take)
    monkeypatch.setattr(broker.gc, "set_threshold", lambda *_: None)
    monkeypatch.setattr(broker.sys, "setswitchinterval", lambda _: None)
    assert run(["broker", "--data", str(tmp_path / "data"), *options]) == 0
    return given[0]


def test_transactions_have_apache_kafkas_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert config_of(monkeypatch, tmp_path).transactions == TransactionConfig(
        max_timeout_ms=900_000, expiration_ms=604_800_000
    )


def test_limits_of_transactions_are_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = ("--transaction-max-timeout-ms", "5000", "--transactional-id-expiration-ms", "60000")
    config = config_of(monkeypatch, tmp_path, *options)
    assert (config.transactions.max_timeout_ms, config.transactions.expiration_ms) == (5_000, 60_000)


@pytest.mark.parametrize("option", ["--transaction-max-timeout-ms", "--transactional-id-expiration-ms"])
def test_a_limit_of_nothing_is_refused_by_name(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["broker", "--data", str(tmp_path / "data"), option, "0"]) == 2
    assert option in capsys.readouterr().err


def test_each_option_sets_its_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def given(option: Option) -> list[str]:
        if option.kind == "bool":
            return [f"--{option.flag}"]
        return [f"--{option.flag}", NOT_THE_DEFAULT.get(option.name) or str(option.default + 1)]

    tls = [str(tmp_path / "broker.pem")] * 3
    names = ("ssl_keystore_location", "ssl_truststore_location", "ssl_key_password_file")
    NOT_THE_DEFAULT.update(zip(names, tls, strict=True))
    limits = {"max_connections", "max_connections_per_ip", "max_group_size"}  # their default is the most
    NOT_THE_DEFAULT.update(dict.fromkeys(limits, "7"))
    config = config_of(monkeypatch, tmp_path, *(word for option in OPTIONS.values() for word in given(option)))
    initial = BrokerConfig(data_dir=tmp_path)
    parts = {
        part: (getattr(config, part) if part else config, getattr(initial, part) if part else initial) for part in PARTS
    }
    for option in OPTIONS.values():
        now, before = next(pair for part, pair in parts.items() if option.name in SETTING_NAMES[part])
        assert getattr(now, option.name) != getattr(before, option.name) == option.default, option.flag
    assert config.security.sasl_enabled_mechanisms == ("PLAIN", "SCRAM-SHA-256")
    assert config.security.super_users == {"User:a", "User:b"}


NOT_THE_DEFAULT = {
    "protocol": "SASL_SSL",
    "ssl_client_auth": "required",
    "sasl_enabled_mechanisms": "PLAIN, SCRAM-SHA-256",
    "super_users": "User:a; User:b",
}


def test_the_settings_of_all_parts_have_different_names() -> None:
    names = [
        name
        for part, names in SETTING_NAMES.items()
        for name in names
        if part != "transactions" or name != "partitions"
    ]
    assert len(names) == len(set(names)), "a keyword of a test kit's broker would be two settings"
