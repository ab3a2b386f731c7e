"""Options of `roster broker` that are settings of its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from roster.broker import BrokerConfig
from roster.cli import broker
from roster.cli.root import run
from roster.transactions import TransactionConfig

if TYPE_CHECKING:
    from pathlib import Path


def config_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *options: str) -> BrokerConfig:
    """The configuration that the command would run a broker with."""
    given: list[BrokerConfig] = []

    async def take(config: BrokerConfig, _announce: object) -> None:
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
