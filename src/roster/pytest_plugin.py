"""The pytest plugin: fixtures with a Kafka broker. pytest loads it if Roster is installed.

Nothing else of Roster is imported until a test uses a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from roster.testing.broker import BrokerProcess
    from roster.testing.embedded import EmbeddedBroker

MARKER = "roster_broker"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(**settings): settings of the broker of the fixtures roster_broker and roster_broker_process",
    )


@pytest.fixture(scope="session")
def roster_broker_settings() -> dict[str, object]:
    """Settings of every broker: override it in a conftest.py; a marker's settings take precedence."""
    return {}


@pytest.fixture
def roster_broker(request: pytest.FixtureRequest, roster_broker_settings: dict[str, Any]) -> Iterator[EmbeddedBroker]:
    """A broker for one test (`roster.testing.EmbeddedBroker`); `.bootstrap` is its address."""
    from roster.testing.embedded import EmbeddedBroker  # noqa: PLC0415

    with EmbeddedBroker(**{**roster_broker_settings, **_marked(request)}) as broker:
        yield broker


@pytest.fixture(scope="session")
def roster_session_broker(roster_broker_settings: dict[str, Any]) -> Iterator[EmbeddedBroker]:
    """One broker for the whole test run; each test should use topic and group names of its own."""
    from roster.testing.embedded import EmbeddedBroker  # noqa: PLC0415

    with EmbeddedBroker(**roster_broker_settings) as broker:
        yield broker


@pytest.fixture
def roster_broker_process(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[BrokerProcess]:
    """A broker in a process of its own (`roster.testing.BrokerProcess`), for a real `kill -9`.

    A marker's settings are the options of `roster broker` with underscores.
    """
    from roster.testing.broker import BrokerProcess  # noqa: PLC0415

    options: list[str] = []
    for name, value in {"initial_rebalance_delay_ms": 0, "log_level": "error", **_marked(request)}.items():
        option = f"--{name.replace('_', '-')}"
        options += [option] if value is True else [option, str(value)]
    with BrokerProcess(tmp_path_factory.mktemp("roster-broker") / "data", *options) as broker:
        yield broker


def _marked(request: pytest.FixtureRequest) -> dict[str, object]:
    """Return the settings of the test's markers; those nearest to the test take precedence."""
    settings: dict[str, Any] = {}
    for mark in reversed(list(request.node.iter_markers(MARKER))):
        if mark.args:
            raise pytest.UsageError(f"@pytest.mark.{MARKER} takes settings by name: {MARKER}(auto_create_topics=True)")
        settings.update(mark.kwargs)
    return settings
