"""A broker for the plug-ins' tests, and topics on it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from roster.broker import Broker
from roster.client import Admin
from roster.testing.broker import running_broker

_NUMBERS = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker() as running:
        yield running


@pytest.fixture
def topic(broker: Broker) -> str:
    """A topic of six partitions that no other test uses."""
    name = f"plugins-{next(_NUMBERS)}"
    with Admin(broker.bootstrap) as admin:
        admin.create_topic(name, 6)
    return name
