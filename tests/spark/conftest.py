"""Topics, groups and an S3 server for the tests of this room."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.spark.sinks.table_places import Server
    from tests.spark.spark_topics import Topics


@pytest.fixture(scope="session")
def s3() -> Iterator[Server]:
    """An S3 server with a bucket for tables."""
    from tests.spark.sinks.table_places import s3_server

    with s3_server() as server:
        yield server


@pytest.fixture(autouse=True)
def programs_end() -> Iterator[None]:
    """End the programs that a test has started and left running, JVMs and tasks too."""
    from tests.spark.programs import ended

    with ended():
        yield


@pytest.fixture
def group() -> str:
    """A group that no other test uses."""
    return f"g-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def topics() -> Iterator[Topics]:
    """Topics on a Roster broker of this room's own."""
    from roster.testing.broker import running_broker
    from tests.spark.spark_topics import Topics

    with running_broker() as broker, Topics(broker.bootstrap) as made:
        yield made
