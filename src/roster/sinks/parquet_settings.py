"""Maps Spark's Parquet settings to pyarrow's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructType

from roster.pipeline.spark_schemas import arrow_schema
from roster.sinks.tasks.parquet import ParquetWriter
from roster.sinks.tasks.partitions import is_supported

COMPRESSIONS = {
    "none": "none",
    "uncompressed": "none",
    "snappy": "snappy",
    "gzip": "gzip",
    "zstd": "zstd",
    "brotli": "brotli",
    "lz4_raw": "lz4",
    "lz4raw": "lz4",
}
"""Names of `spark.sql.parquet.compression.codec` that pyarrow writes, with pyarrow's; `lz4` is framed as in Hadoop."""

_TIMESTAMPS: dict[str, dict[str, object]] = {
    "INT96": {"use_deprecated_int96_timestamps": True},
    "TIMESTAMP_MICROS": {"coerce_timestamps": "us"},
    "TIMESTAMP_MILLIS": {"coerce_timestamps": "ms", "allow_truncated_timestamps": True},
}
_TIMESTAMP_TYPE = "spark.sql.parquet.outputTimestampType"
_PLAIN = {
    *("binary", "boolean", "byte", "date", "double", "float", "integer", "long", "short", "string"),
    *("timestamp", "timestamp_ntz"),
}
_NEEDED = {
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.files.maxRecordsPerFile": "0",
}
"""Settings that only Spark's writer follows when they have other values; PySpark's defaults."""
_ROW_METADATA = "org.apache.spark.sql.parquet.row.metadata"
_VERSION = "org.apache.spark.version"
"""Keys by which Spark finds its own schema again, and knows which calendar old dates are in."""


def parquet_writer(
    spark: SparkSession,
    root: str,
    schema: StructType,
    partition_by: Sequence[str],
    compression: str | None,
    row_group_bytes: int,
    target_file_bytes: int,
) -> ParquetWriter | None:
    """Return a writer below `root`; None if pyarrow cannot match the session's settings."""
    if why_spark_writes(spark, schema, partition_by, compression):
        return None
    codec, kind = _codec(spark, compression), _setting(spark, _TIMESTAMP_TYPE)
    written = StructType([field for field in schema.fields if field.name not in partition_by])
    return ParquetWriter(
        root,
        arrow_schema(schema),
        tuple(partition_by),
        COMPRESSIONS[codec],
        row_group_bytes,
        target_file_bytes,
        options={"store_decimal_as_integer": True, **_TIMESTAMPS[kind]},
        metadata={_ROW_METADATA: written.json(), _VERSION: spark.version},
    )


def why_spark_writes(
    spark: SparkSession, schema: StructType, partition_by: Sequence[str], compression: str | None
) -> str:
    """Return why only Spark's own writer can write such rows, and what to change; "" if pyarrow can."""
    codec, kind = _codec(spark, compression), _setting(spark, _TIMESTAMP_TYPE)
    names = [field.name for field in schema.fields]
    types = {field.name: field.dataType for field in schema.fields}
    if codec not in COMPRESSIONS:
        return f"pyarrow has no compression {codec!r}. Use one of {', '.join(COMPRESSIONS)}"
    if kind not in _TIMESTAMPS:
        return f"{_TIMESTAMP_TYPE} is {kind!r}. Use one of {', '.join(_TIMESTAMPS)}"
    for name, value in _NEEDED.items():
        if _setting(spark, name) != value:
            return f"{name} is {_setting(spark, name)!r}. Set {value}"
    # A column without time zone stays INT64 for Spark; pyarrow has one way for all columns.
    if kind != "TIMESTAMP_MICROS" and _has(schema, "timestamp_ntz"):
        return f"{_TIMESTAMP_TYPE} is {kind}, and a column is timestamp_ntz. Set TIMESTAMP_MICROS"
    if (
        # Spark reports these errors.
        len({name.lower() for name in names}) < len(names)
        or len(set(partition_by)) != len(partition_by)
        or not set(partition_by) < set(names)
        or not all(is_supported(types[name].typeName()) for name in partition_by)
        or not _is_plain(schema)
    ):
        return "columns are twice the same, none but partition_by, or of a type that pyarrow writes in another way"
    return ""


def _codec(spark: SparkSession, compression: str | None) -> str:
    return (compression or _setting(spark, "spark.sql.parquet.compression.codec")).lower()


def _setting(spark: SparkSession, name: str) -> str:
    value: Any = spark.conf.get(name)
    return str(value)


def _is_plain(kind: DataType) -> bool:
    """Return True if Spark and pyarrow write columns of this type alike."""
    if isinstance(kind, StructType):
        return bool(kind.fields) and all(_is_plain(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _is_plain(kind.elementType)
    if isinstance(kind, MapType):
        return _is_plain(kind.keyType) and _is_plain(kind.valueType)
    return isinstance(kind, DecimalType) or kind.typeName() in _PLAIN


def _has(kind: DataType, name: str) -> bool:
    if isinstance(kind, StructType):
        return any(_has(field.dataType, name) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _has(kind.elementType, name)
    if isinstance(kind, MapType):
        return _has(kind.keyType, name) or _has(kind.valueType, name)
    return kind.typeName() == name
