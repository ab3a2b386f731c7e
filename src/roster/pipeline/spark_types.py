"""PySpark's classes in annotations: at run time they are Any, so what names or extends them runs without PySpark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from pyspark import AccumulatorParam, SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType
else:
    DataFrame = SparkContext = SparkSession = StructType = Any

    class AccumulatorParam(Generic[TypeVar("T")]):
        """PySpark calls its methods, and does not look at its class."""


__all__ = ["AccumulatorParam", "DataFrame", "SparkContext", "SparkSession", "StructType"]
