"""A broker for this room's tests, and a scripted one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from roster.client import Admin
from roster.testing.broker import running_broker


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with running_broker() as broker:
        yield broker.bootstrap


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap) as client:
        yield client
