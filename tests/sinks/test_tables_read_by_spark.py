"""Spark's own readers of Delta and Iceberg tables see whole batches while Roster writes.

Needs an environment with a PySpark that these readers exist for, which `make test-table-readers` makes;
ROSTER_TABLE_READER names its folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.sinks.table_places import PLACES, T0, T1, Row, batch, opened, plain
from tests.sinks.table_worker import SCHEMA, uncommitted

READER = os.environ.get("ROSTER_TABLE_READER")
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.process,
    pytest.mark.skipif(
        READER is None,
        reason=f"no release of delta-spark and iceberg-spark-runtime fits PySpark {pyspark.__version__}: "
        "`make test-table-readers` runs this with PySpark 4.1 as the reader",
    ),
]
SIZE = 5
AHEAD = 20
"""Batches that the writer is ahead of the reader at most: a slow reader's tables do not grow without end."""


class Reader:
    """Spark in a process of its own."""

    def __init__(self, kind: str, folder: Path) -> None:
        command = [f"{READER}/bin/python", str(Path(__file__).parent / "table_reader" / "read.py"), kind, str(folder)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PY", "SPARK_"))}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def rows(self, where: str = "") -> list[Row]:
        """The newest snapshot's rows, or those that fit."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{where}\n")
        self.process.stdin.flush()
        return sorted(tuple(row) for row in json.loads(self.process.stdout.readline()))

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate(timeout=60)


@pytest.mark.parametrize("partition_by", [[], ["shop"]])
@pytest.mark.parametrize("kind", PLACES)
def test_spark_sees_whole_batches_while_writing_goes_on(kind: str, partition_by: list[str], tmp_path: Path) -> None:
    place: Any = PLACES[kind](str(tmp_path))
    sink = opened(place.sink(partition_by=partition_by), T0, T1)
    sink.task_writer(batch({T0: (0, 1)}), SCHEMA)
    written, seen, stop = [0], [0], threading.Event()

    def write() -> None:
        while not stop.wait(0.05):
            if written[-1] >= seen[-1] + AHEAD * SIZE:
                continue
            start = written[-1]
            each = batch({T0: (start, start + SIZE), T1: (start, start + SIZE)})
            sink.commit(uncommitted(sink, each), each)
            written.append(start + SIZE)

    writer = threading.Thread(target=write)
    with Reader(kind, tmp_path) as reader:
        assert reader.rows() == []
        writer.start()
        try:
            while len(set(seen)) < 8:
                least, found = written[-1], reader.rows()
                end = len(found) // 2
                assert found == plain({0: end, 1: end})
                assert end % SIZE == 0, "a part of a batch"
                assert end >= max(least, seen[-1]), "a snapshot of before"
                assert writer.is_alive(), "the writer has failed"
                seen.append(end)
        finally:
            stop.set()
            writer.join()
        assert reader.rows() == plain({0: written[-1], 1: written[-1]})
        # Files and partitions are left out by the statistics that Roster has written.
        wanted = [row for row in plain({0: written[-1], 1: written[-1]}) if row[1] >= 2 * SIZE and row[2] == 1]
        assert reader.rows(f"offset >= {2 * SIZE} and shop = 1") == wanted


@pytest.mark.parametrize("kind", PLACES)
def test_spark_sees_one_row_a_key(kind: str, tmp_path: Path) -> None:
    place: Any = PLACES[kind](str(tmp_path))
    sink = opened(place.sink(mode="upsert", keys=["partition", "shop"], target_file_bytes=1000), T0, T1)
    sink.task_writer(batch({T0: (0, 1)}), SCHEMA)
    with Reader(kind, tmp_path) as reader:
        for start in range(0, 4 * SIZE, SIZE):
            each = batch({T0: (start, start + SIZE), T1: (start, start + SIZE)})
            sink.commit(uncommitted(sink, each), each)
            last = {(partition, shop): offset for partition, offset, shop in plain({0: start + SIZE, 1: start + SIZE})}
            wanted = sorted((partition, offset, shop) for (partition, shop), offset in last.items())
            assert reader.rows() == wanted
        assert reader.rows("shop = 1 and partition = 0") == [row for row in wanted if row[0] == 0 and row[2] == 1]
