"""PySpark's classes in annotations: at run time they are Any, so what only names them runs without PySpark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType
else:
    DataFrame = SparkContext = SparkSession = StructType = Any

__all__ = ["DataFrame", "SparkContext", "SparkSession", "StructType"]
