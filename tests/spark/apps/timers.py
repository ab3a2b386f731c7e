"""The driver of a pipeline with timers as a process; its arguments are those of stateful.py behind a time mode.

    timers.py BOOTSTRAP GROUP TOPIC OUT SESSION_TIMEOUT_MS OPEN_SECONDS STATE_DIR TIME_MODE [STANDBYS]

Each number that is a record's value sets a timer of its key, and the number is sent when that is due: by processing
time up to SPAN * STEP_MS later, by event time when the stream, a second a number, is up to SPAN seconds further.
"""

from __future__ import annotations

import pickle
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

from roster.spark.processor.code import Given
from roster.spark.processor.operator import ProcessorOperator
from roster.state.processor.batch import Plan, TimeMode
from tests.spark.apps.stateful import KEYS, main

if TYPE_CHECKING:
    from collections.abc import Iterator

SPAN, STEP_MS = 97, 80
COLUMNS = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
OUTPUT = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("due", pa.int64())])
_DUE = StructType([StructField("due", LongType())])
_NUMBERS = StructType([StructField("numbers", ArrayType(LongType()))])


class Reminder(StatefulProcessor):
    """Sends each number once, when its timer is due."""

    def __init__(self, mode: TimeMode) -> None:
        self._is_processing = mode is TimeMode.PROCESSING

    def init(self, handle):
        self.handle = handle
        self.set = handle.getMapState("set", _DUE, _NUMBERS)

    def handleInputRows(self, key, rows, timerValues):
        now = timerValues.getCurrentProcessingTimeInMs() if self._is_processing else 0
        for row in rows:
            due = now + 1 + STEP_MS * (row.n % SPAN) if self._is_processing else 1000 * (row.n + 2 + row.n % SPAN)
            (others,) = self.set.getValue((due,)) or ([],)
            self.set.updateValue((due,), ([*others, row.n],))
            self.handle.registerTimer(due)
        return iter([])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        due = expiredTimerInfo.getExpiryTimeInMs()
        (numbers,) = self.set.getValue((due,))
        self.set.removeKey((due,))
        for n in numbers:
            yield Row(k=key[0], n=n, due=due)

    def close(self):
        pass


def timed(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    n = batch["value"].cast(pa.string()).cast(pa.int64()).to_pylist()
    # A stream's time begins at 0, and what is not behind that is late, as in Spark.
    at = pa.array([1_000_000 * (each + 1) for each in n], COLUMNS.field("at").type)
    yield pa.RecordBatch.from_arrays(
        [pa.array([each % KEYS for each in n], pa.int64()), pa.array(n, pa.int64()), at], schema=COLUMNS
    )


if __name__ == "__main__":
    mode = TimeMode(sys.argv.pop(8))
    plan = Plan(("k",), mode, None if mode is TimeMode.PROCESSING else "at")
    given = Given(pickle.dumps(Reminder(mode)), OUTPUT, mode, "UTC", {})
    main(ProcessorOperator(plan, given).prepared(), COLUMNS, timed)
