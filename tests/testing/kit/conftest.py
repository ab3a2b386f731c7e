"""The kit's broker, for its own tests."""

import pytest

from roster.testing import EmbeddedBroker


@pytest.fixture
def broker():
    with EmbeddedBroker(partitions=2) as broker:
        yield broker
