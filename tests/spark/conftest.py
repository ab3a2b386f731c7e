"""One Spark session for every test of this room that needs one."""

from __future__ import annotations

import logging
import signal
import uuid
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.spark.spark_topics import Topics
    from tests.spark.table_places import Server


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from roster.spark import session

    logging.getLogger("py4j").setLevel(logging.WARNING)
    warehouse = tmp_path_factory.mktemp("warehouse")
    started = session(
        "roster-tests",
        master="local[2,4]",
        spark_sql_shuffle_partitions=2,
        spark_driver_memory="1g",
        **{"spark.sql.warehouse.dir": str(warehouse), "spark.python.authenticate.socketTimeout": "180s"},
    )
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # pytest would take a SystemExit for a failed test
    started.sparkContext.setLogLevel("ERROR")
    yield started
    started.stop()


@pytest.fixture(scope="session")
def s3() -> Iterator[Server]:
    """An S3 server with a bucket for tables."""
    from tests.spark.table_places import s3_server

    with s3_server() as server:
        yield server


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
