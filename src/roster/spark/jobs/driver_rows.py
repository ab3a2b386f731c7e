"""What a transform works on: DataFrames of rows in the driver's process; and what it cannot do with a batch."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

_LARGE_TYPES = "spark.sql.execution.arrow.useLargeVarTypes"


class DriverRows:
    """Makes one-partition DataFrames, which aggregates need no shuffle for, from Arrow tables of one schema.

    `createDataFrame` makes some thirty calls to the JVM each time, half of a small batch's; here they are made once. If
    this PySpark lacks the internals used below, or the session wants rows in another form, `createDataFrame` is used.
    """

    def __init__(self, spark: SparkSession, columns: StructType) -> None:
        """`columns`: of the tables, whose Arrow schema is `arrow_schema(columns)`."""
        self._spark, self._columns = spark, columns
        self._calls: tuple[Any, Any] | None = None
        self._schema = columns.json()
        context: Any = spark.sparkContext
        # Rows go through the driver's disk, which only `createDataFrame` encrypts.
        if context.getConf().get("spark.io.encryption.enabled", "false") == "false":
            with contextlib.suppress(AttributeError, TypeError, Py4JError):
                functions = context._jvm.PythonSQLUtils
                self._calls = functions.readArrowStreamFromFile, functions.toDataFrame
                self._folder: str = context._temp_dir

    def frame(self, rows: pa.Table) -> DataFrame:
        """Return the rows as a DataFrame."""
        if self._calls is not None and self._spark.conf.get(_LARGE_TYPES, "false") == "false":
            try:
                return self._short(rows, *self._calls)
            except Py4JJavaError:
                raise
            except (AttributeError, TypeError, Py4JError) as error:
                log.debug("createDataFrame makes the frames from now on: %s", error)
                self._calls = None
        return self._spark.createDataFrame(rows, self._columns).coalesce(1)

    def _short(self, rows: pa.Table, read: Any, make: Any) -> DataFrame:
        number, path = tempfile.mkstemp(dir=self._folder)
        try:
            with os.fdopen(number, "wb") as file, pa.ipc.new_stream(file, rows.schema) as stream:
                stream.write_table(rows)
            batches = read(path)
        finally:
            Path(path).unlink()
        session: Any = self._spark
        return ClassicDataFrame(make(batches, self._schema, session._jsparkSession).coalesce(1), session)


WAY_OUT = (
    "The same code by read_stream and write_stream keeps state over batches, as do the pipeline's own aggregate, "
    "deduplicate, join and transform_with_state"
)
_METHODS = {"Aggregate": "groupBy", "Deduplicate": "dropDuplicates", "Distinct": "distinct"}


def notes(df: DataFrame, records: DataFrame) -> list[str]:
    """Return a sentence for each operator whose results cover one batch only; for a frame of Spark Connect none.

    records: the frame of a batch's records, from which `df` is made. Costs some calls into the JVM: meant for a run's
    first batch.
    """
    methods: list[str] = []
    if isinstance(df, ClassicDataFrame) and isinstance(records, ClassicDataFrame):
        source, plan = (frame._jdf.queryExecution().analyzed() for frame in (records, df))
        _is_of_records(plan, source, methods)
    return [f"{method} takes the rows of one batch only" for method in dict.fromkeys(methods)]


def _is_of_records(plan: Any, source: Any, methods: list[str]) -> bool:
    """Return True if the source is this node or below it; add the methods that made operators above it."""
    if plan.sameResult(source):
        return True
    children, kind = plan.children(), plan.nodeName()
    below = [_is_of_records(children.apply(number), source, methods) for number in range(children.size())]
    if any(below) and kind in _METHODS:
        methods.append(_METHODS[kind])
    return any(below)
