"""A broker to talk to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from roster.testing.broker import running_broker
from tests.broker.rawclient import RawClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from roster.broker import Broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with three partitions a topic, for all tests of a module; each uses topics of its own."""
    with running_broker(tmp_path_factory.mktemp("broker"), default_partitions=3, auto_create_topics=True) as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.address) as connected:
        yield connected
