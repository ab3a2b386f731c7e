"""The Hadoop storage does what the local one does, on the JVM's file system for `file:` paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from roster.spark import ParquetSink, PipelineError
from roster.spark.sinks.storage import HadoopStorage, LocalStorage, Storage

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("kind", ["local", "hadoop"])
def test_files_are_created_only_once_replaced_listed_published_and_removed(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    place: Storage = LocalStorage(str(tmp_path)) if kind == "local" else HadoopStorage(spark, tmp_path.as_uri())
    assert place.read("a/log/1") is None
    assert place.children("a") == place.files("a") == []
    place.prepare("b/c")
    place.prepare("b/c")
    assert place.children("b") == ["c"]
    assert place.create("a/log/1", b"one")
    assert not place.create("a/log/1", b"two")
    assert place.read("a/log/1") == b"one"
    place.replace("a/log/1", b"three")
    place.replace("a/log/2", b"four")
    assert place.read("a/log/1") == b"three"
    assert place.children("a/log") == ["1", "2"]
    assert [name for name in place.files("a") if not name.endswith(".crc")] == ["log/1", "log/2"]
    place.sync("a/log/1")
    place.publish("a/log/1", "day=1/part")
    place.publish("a/log/1", "day=1/part")
    assert place.read("day=1/part") == b"three"
    assert place.beside == f"../.{tmp_path.name}.staging"
    assert place.can_publish_from(place.beside)
    assert place.create(f"{place.beside}/s/x", b"five")
    assert [name for name in place.files(f"{place.beside}/s") if not name.endswith(".crc")] == ["x"]
    place.publish(f"{place.beside}/s/x", "x")
    assert place.read("x") == b"five"
    assert not place.can_publish_from("x/under-a-file")
    place.remove("a/log/2")
    place.remove("a")
    place.remove("a")
    assert place.children("a") == []


def test_a_file_system_that_does_not_answer_is_one_line(spark: SparkSession) -> None:
    with pytest.raises(
        PipelineError, match=r"path: hdfs://127\.0\.0\.1:1/out cannot be used: ConnectException: "
    ) as caught:
        ParquetSink("hdfs://127.0.0.1:1/out").open(spark, "g")
    assert "\n" not in str(caught.value)
