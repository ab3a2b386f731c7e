"""DataFrames of rows in the driver's process."""

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
